"""Folders and files of presets must be in allowed folders, after resolving links."""

from pathlib import Path
from typing import Any

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.principals import build_cli_principal
from bonobot.core.problems import InvalidInput
from mcp_servers.presets.catalog import load_catalog
from mcp_servers.presets.services import build_server_spec, get_preset

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return Organization.objects.create(name="Acme", slug="acme")


@pytest.fixture
def workspace(settings: Any, tmp_path: Path) -> Path:
    settings.BONOBOT_VAR = tmp_path / "var"
    settings.BONOBOT_PRESET_FOLDERS = (str(tmp_path / "shared"),)
    (tmp_path / "shared" / "notes").mkdir(parents=True)
    return tmp_path / "var" / "workspaces" / "acme"


def fill_arguments(acme: Organization, preset: str, **values: str) -> list[str]:
    principal = build_cli_principal(acme)
    spec = build_server_spec(principal, get_preset(principal, preset), values, name="files")
    return [*spec.endpoint_config["args"], *spec.endpoint_config.get("env", {}).values()]


def refusal(acme: Organization, preset: str, **values: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        fill_arguments(acme, preset, **values)
    return caught.value


def test_a_missing_organization_workspace_is_created(acme: Organization, workspace: Path) -> None:
    assert fill_arguments(acme, "filesystem", FOLDER=str(workspace / "papers"))[-1] == str(
        workspace / "papers"
    )
    assert (workspace / "papers").is_dir()
    assert oct((workspace / "papers").stat().st_mode)[-3:] == "700"
    assert fill_arguments(acme, "memory", MEMORY_FILE=str(workspace / "m" / "x.jsonl"))[
        -1
    ].endswith("x.jsonl")
    assert (workspace / "m").is_dir()


def test_a_folder_that_an_administrator_allowed_is_accepted(
    acme: Organization, workspace: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    assert fill_arguments(acme, "filesystem", folder=str(shared / "notes"))[-1] == str(
        shared / "notes"
    )
    assert refusal(acme, "filesystem", FOLDER=str(shared / "nothing")).code == "folder_missing"
    assert not (shared / "nothing").exists()


@pytest.mark.parametrize(
    "value", ["/etc", "{own}/../other", "{own}x", "{own}/../../workspaces/acme/in"]
)
def test_other_folders_are_refused_with_field_value_and_remedy(
    acme: Organization, workspace: Path, value: str
) -> None:
    value = value.format(own=workspace)
    problem = refusal(acme, "filesystem", FOLDER=value)
    assert (problem.code, problem.field) == ("folder_not_allowed", "FOLDER")
    assert value in str(problem)
    assert str(workspace) in problem.remedy
    assert "BONOBOT_PRESET_FOLDERS" in problem.remedy


def test_a_symlink_to_the_outside_is_refused(
    acme: Organization, workspace: Path, tmp_path: Path
) -> None:
    workspace.mkdir(parents=True)
    (workspace / "out").symlink_to(tmp_path)
    (workspace / "in").symlink_to(workspace)
    assert refusal(acme, "filesystem", FOLDER=str(workspace / "out")).code == "folder_not_allowed"
    assert (
        refusal(acme, "filesystem", FOLDER=str(workspace / "out" / "x")).code
        == "folder_not_allowed"
    )
    assert fill_arguments(acme, "filesystem", FOLDER=str(workspace / "in"))[-1] == str(workspace)


def test_the_workspace_of_another_organization_is_refused(
    acme: Organization, workspace: Path
) -> None:
    other = workspace.parent / "other"
    other.mkdir(parents=True)
    assert refusal(acme, "filesystem", FOLDER=str(other)).code == "folder_not_allowed"


def test_an_optional_file_can_be_empty(acme: Organization, workspace: Path) -> None:
    assert "@modelcontextprotocol/server-memory" in fill_arguments(acme, "memory")[-1]


def test_each_path_parameter_of_a_stdio_preset_is_marked() -> None:
    def is_path(parameter: dict[str, Any]) -> bool:
        return str(parameter.get("pattern", "")).startswith("/")

    entries = [entry for entry in load_catalog() if entry.transport_type == "stdio"]
    paths = [each for entry in entries for each in entry.parameters if is_path(each)]
    assert paths
    assert [each["name"] for each in paths if each.get("kind") not in ("folder", "file")] == []
