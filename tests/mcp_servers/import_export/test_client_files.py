"""Each client's configuration file is found in its usual place."""

import json
from pathlib import Path

import pytest

from bonobot.core.problems import InvalidInput, NotFound
from mcp_servers.import_export import parse_import
from mcp_servers.import_export.client_files import (
    CLIENT_NAMES,
    UserMachine,
    list_config_paths,
    read_client_config,
    read_text,
)


def build_machine(tmp_path, platform="linux", **environ):
    return UserMachine(
        home=tmp_path / "home", folder=tmp_path / "here", environ=environ, platform=platform
    )


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("linux", {}, "home/.config/Claude/claude_desktop_config.json"),
        ("darwin", {}, "home/Library/Application Support/Claude/claude_desktop_config.json"),
        ("win32", {}, "home/AppData/Roaming/Claude/claude_desktop_config.json"),
    ],
)
def test_desktop_settings_are_read_from_the_systems_folder(tmp_path, platform, environ, expected):
    paths = list_config_paths("claude-desktop", build_machine(tmp_path, platform, **environ))
    assert paths == (tmp_path / expected,)


def test_the_environment_can_set_the_settings_folder(tmp_path):
    linux = build_machine(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "xdg"))
    assert list_config_paths("claude-desktop", linux)[0].is_relative_to(tmp_path / "xdg")
    windows = build_machine(tmp_path, "win32", APPDATA=str(tmp_path / "roaming"))
    assert list_config_paths("vscode", windows)[1].is_relative_to(tmp_path / "roaming")


def test_a_projects_file_is_preferred_to_the_users(tmp_path):
    machine = build_machine(tmp_path)
    project, user = list_config_paths("cursor", machine)
    write_json(user, {"mcpServers": {"mine": {"url": "https://a.example"}}})
    assert read_client_config("cursor", machine).path == user
    write_json(project, {"mcpServers": {"ours": {"url": "https://a.example"}}})
    config = read_client_config("cursor", machine)
    assert (config.path, config.other_paths) == (project, (user,))


@pytest.mark.parametrize("client", CLIENT_NAMES)
def test_without_a_file_all_searched_paths_are_listed(tmp_path, client):
    machine = build_machine(tmp_path)
    with pytest.raises(NotFound) as caught:
        read_client_config(client, machine)
    assert all(str(path) in caught.value.remedy for path in list_config_paths(client, machine))


def test_only_user_and_project_servers_are_read_from_claude_codes_state(tmp_path):
    machine = build_machine(tmp_path)
    server = {"url": "https://a.example"}
    projects = {
        str(machine.folder): {"mcpServers": {"of-project": server}},
        "/elsewhere": {"mcpServers": {"of-another": server}},
    }
    state = {"mcpServers": {"mine": server}, "projects": projects, "history": ["x" * 300_000]}
    write_json(machine.home / ".claude.json", state)
    names = [entry.name for entry in parse_import(read_client_config("claude-code", machine).text)]
    assert names == ["mine", "of-project"]


def test_a_binary_file_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InvalidInput) as caught:
        read_text(tmp_path / "binary")
    assert caught.value.code == "not_text"
    with pytest.raises(NotFound):
        read_text(tmp_path)
