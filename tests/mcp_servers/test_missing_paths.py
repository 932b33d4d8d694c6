"""Folders and paths that a stdio server didn't find: found in its error, and corrected in place."""

from pathlib import Path

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden
from mcp_servers.missing_paths import MissingPath, correct_path, find_missing_path
from mcp_servers.models import Server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "node_modules" / "files" / "index.js"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def create_failed_server(
    acme: Organization, path: Path | str, *, folder: str = "", detail: str = "Can't find `{path}`."
) -> Server:
    """Create a server whose last error names the path."""
    server = admin_client.create_web_server(acme)
    config = {
        "command": "node",
        "args": [str(path), "stdio"],
        **({"cwd": folder} if folder else {}),
    }
    Server.objects.update(
        transport_type=Server.Transport.STDIO,
        endpoint_config=config,
        status=Server.Status.ERROR,
        status_code="server_crashed",
        status_detail=detail.format(path=path),
    )
    server.refresh_from_db()
    return server


def test_a_hidden_path_suggests_the_folder_of_its_packages(
    acme: Organization, script: Path, tmp_path: Path
) -> None:
    missing = find_missing_path(create_failed_server(acme, script))
    assert missing == MissingPath(str(script), is_folder=False, is_hidden=True)
    assert missing.suggestion == str(tmp_path)


def test_errors_about_other_things_have_no_missing_path(acme: Organization, script: Path) -> None:
    assert find_missing_path(create_failed_server(acme, script, detail="It failed.")) is None


def test_the_folder_is_set_on_the_overview_and_the_server_connects_again(
    acme: Organization, script: Path, tmp_path: Path
) -> None:
    server = create_failed_server(acme, script)
    root = admin_client.sign_in(acme, None)
    assert f'value="{tmp_path}"' in root.get("mcp_servers_server_change", server.pk)
    page = root.post("mcp_servers_server_path", server.pk, path="/no/such/folder")
    assert "doesn&#x27;t exist on this host" in page
    assert 'value="/no/such/folder"' in page
    page = root.post("mcp_servers_server_path", server.pk, path="/usr")
    assert "doesn&#x27;t contain" in page
    page = root.post("mcp_servers_server_path", server.pk, path=str(tmp_path))
    assert "data-connect" in page
    server.refresh_from_db()
    assert server.endpoint_config["cwd"] == str(tmp_path)


def test_a_path_that_doesnt_exist_is_replaced_in_the_arguments(
    acme: Organization, tmp_path: Path
) -> None:
    server = create_failed_server(acme, tmp_path / "missing")
    missing = find_missing_path(server)
    assert missing is not None
    assert not missing.is_hidden
    correct_path(factories.build_administrator(acme), server, missing, str(tmp_path))
    assert server.endpoint_config["args"] == [str(tmp_path), "stdio"]
    assert "cwd" not in server.endpoint_config


def test_a_missing_folder_is_replaced(acme: Organization, tmp_path: Path) -> None:
    detail = "Its folder `/no/such/folder` doesn't exist on this host."
    server = create_failed_server(acme, "x.js", folder="/no/such/folder", detail=detail)
    missing = find_missing_path(server)
    assert missing == MissingPath("/no/such/folder", is_folder=True, is_hidden=False)
    correct_path(factories.build_administrator(acme), server, missing, str(tmp_path))
    assert server.endpoint_config["cwd"] == str(tmp_path)


def test_only_platform_administrators_can_set_a_path(
    acme: Organization, script: Path, tmp_path: Path
) -> None:
    server = create_failed_server(acme, script)
    owner = admin_client.sign_in(acme, Role.OWNER)
    assert 'name="path"' not in owner.get("mcp_servers_server_change", server.pk)
    owner.post("mcp_servers_server_path", server.pk, status=403, path=str(tmp_path))
    missing = find_missing_path(server)
    assert missing is not None
    with pytest.raises(Forbidden):
        correct_path(factories.create_member(acme, Role.OWNER, "eve"), server, missing, "/usr")
