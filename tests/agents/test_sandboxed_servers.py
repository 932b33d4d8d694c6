"""Programs started by a server of an organization can't leave its sandbox."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from pytest_django import Settings

from agents.calls.pipeline import CallOutcome
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.presets.allowed_folders import get_organization_folder
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories

pytestmark = [pytest.mark.sandbox, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def repository(acme: Organization) -> Iterator[Path]:
    """A repository in the organization's workspace, with a hook that reads Bonobot's key."""
    folder = get_organization_folder(acme.pk) / "repository"
    folder.mkdir(parents=True)
    var = Path(django_settings.BONOBOT_VAR)
    (var / "keys").mkdir(exist_ok=True)
    (var / "keys" / "canary").write_text("canary-of-this-machine")
    hook = folder / ".git" / "hook.sh"
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    hook.write_text(
        f"#!/bin/sh\necho ran >{folder}/ran\ncat {var}/keys/canary >>{folder}/ran\ncat\n"
    )
    hook.chmod(0o755)
    (folder / "notes.txt").write_text("notes")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def git(
    acme: Organization,
    helper: Agent,
    repository: Path,
    settings: Settings,
) -> Iterator[Server]:
    """The git server from PyPI, created by an organization without sandbox settings."""
    settings.BONOBOT_STDIO_SANDBOX = "sandbox"
    factories.create_organization("others")  # with several organizations every server is sandboxed
    config = {"command": sys.executable, "args": ["-m", "mcp_server_git", "--repository"]}
    config["args"].append(str(repository))  # type: ignore[attr-defined]
    spec = ServerSpec(name="git", transport_type="stdio", endpoint_config=config)
    server = create_server(factories.build_administrator(acme), spec)
    yield factories.approve_server(acme, server, helper)
    get_runtime().call(get_connection_pool().forget_server, server.pk)


def configure(repository: Path, name: str, value: str) -> None:
    """Change the configuration of a repository, as a tool that writes files could."""
    subprocess.run(["git", "-C", str(repository), "config", name, value], check=True)


@pytest.mark.parametrize(
    ("setting", "tool", "arguments"),
    [
        ("core.fsmonitor", "git_status", {}),
        ("filter.x.clean", "git_add", {"files": ["notes.txt"]}),
        ("diff.external", "git_diff_unstaged", {}),
    ],
)
def test_programs_run_by_a_git_repository_cant_read_files_of_bonobot(
    git: Server,
    repository: Path,
    call: Callable[..., CallOutcome],
    setting: str,
    tool: str,
    arguments: dict[str, object],
) -> None:
    if tool == "git_diff_unstaged":
        subprocess.run(["git", "-C", str(repository), "add", "notes.txt"], check=True)
        (repository / "notes.txt").write_text("changed")
    configure(repository, setting, str(repository / ".git" / "hook.sh"))
    (repository / ".gitattributes").write_text("notes.txt filter=x\n")
    call(f"mcp_git_{tool}", {"repo_path": str(repository), **arguments})
    output = (repository / "ran").read_text()
    assert output.startswith("ran\n")
    assert "canary" not in output


def test_a_server_of_an_organization_is_sandboxed_by_default(git: Server) -> None:
    assert (git.sandbox, git.network) == ("sandbox", "egress")
    endpoint = build_endpoint(git)
    assert endpoint.sandbox is not None
    assert endpoint.sandbox.folders == (
        str(get_organization_folder(git.organization_id) / "repository"),
    )
    assert str(git.organization_id) in endpoint.sandbox.home
    assert endpoint.sandbox.hidden == (str(django_settings.BONOBOT_VAR),)
