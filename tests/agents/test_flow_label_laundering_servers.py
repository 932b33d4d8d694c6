"""Laundering through servers that nobody here wrote: memory, files, git and a database.

Each is a real process. A session under both labels writes; what a session that has seen nothing
reads there is what was written, and it is asked about before it sends.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from agents.calls.pipeline import CallOutcome
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.flow_labels.store_labels import get_store_labels
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.agents.labeled_stores import ASKED, BOTH, Caller, World, world_of

pytestmark = pytest.mark.django_db(transaction=True)

Call = Callable[..., CallOutcome]
NodeServer = Callable[[str], str]
WRITTEN = "the salary of Ann"
SQLITE = Path(__file__).parents[2] / ".venv-sdk1" / "bin" / "mcp-server-sqlite"


@dataclass(frozen=True)
class Place:
    """A server's command, the calls that write there, and the one that reads it back."""

    command: tuple[str, ...]
    writes: tuple[tuple[str, dict[str, Any]], ...]
    reads: tuple[str, dict[str, Any]]
    env: tuple[tuple[str, str], ...] = ()


def memory(folder: Path, node: NodeServer) -> Place:
    entity = {"name": "Ann", "entityType": "person", "observations": [WRITTEN]}
    return Place(
        (node("mcp-server-memory"),),
        (("create_entities", {"entities": [entity]}),),
        ("read_graph", {}),
        (("MEMORY_FILE_PATH", str(folder / "memory.jsonl")),),
    )


def files(folder: Path, node: NodeServer) -> Place:
    path = str(folder / "ann.txt")
    return Place(
        (node("mcp-server-filesystem"), str(folder)),
        (("write_file", {"path": path, "content": WRITTEN}),),
        ("read_text_file", {"path": path}),
    )


def git(folder: Path, node: NodeServer) -> Place:
    del node
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for name, value in (("user.name", "Ann"), ("user.email", "ann@example.org")):
        subprocess.run(["git", "-C", str(folder), "config", name, value], check=True)
    (folder / "a").write_text("a")
    where = {"repo_path": str(folder)}
    return Place(
        (sys.executable, "-m", "mcp_server_git", "--repository", str(folder)),
        (
            ("git_add", {**where, "files": ["a"]}),
            ("git_commit", {**where, "message": WRITTEN}),
        ),
        ("git_log", where),
    )


def database(folder: Path, node: NodeServer) -> Place:
    del node
    if not SQLITE.exists():
        pytest.skip("mcp-server-sqlite isn't installed: run tests/clients/install")
    return Place(
        (str(SQLITE), "--db-path", str(folder / "db.sqlite3")),
        (
            ("create_table", {"query": "CREATE TABLE notes (text TEXT)"}),
            ("write_query", {"query": f"INSERT INTO notes VALUES ('{WRITTEN}')"}),  # noqa: S608
        ),
        ("read_query", {"query": "SELECT text FROM notes"}),
    )


@pytest.fixture
def world(acme: Organization, helper: Agent) -> Iterator[World]:
    with world_of(acme, helper) as one:
        yield one


@pytest.fixture
def place(
    request: pytest.FixtureRequest,
    world: World,
    tmp_path: Path,
    node_server: NodeServer,
    settings: Settings,
) -> Iterator[tuple[Place, Server]]:
    """A server that runs, approved and given to the agent as it was discovered."""
    folder = tmp_path / "place"
    folder.mkdir()
    found: Place = request.param(folder, node_server)
    command, *arguments = found.command
    settings.BONOBOT_LAUNCHERS = (*settings.BONOBOT_LAUNCHERS, command)
    config = {"command": command, "args": arguments, "env": dict(found.env)}
    spec = ServerSpec(name="place", transport_type="stdio", endpoint_config=config)
    server = create_server(world.boss, spec)
    yield found, factories.approve_server(world.acme, server, world.helper)
    get_runtime().call(get_connection_pool().forget_server, server.pk)


PLACES = [
    pytest.param(memory, marks=pytest.mark.npm, id="memory"),
    pytest.param(files, marks=pytest.mark.npm, id="filesystem"),
    pytest.param(git, id="git"),
    pytest.param(database, id="sqlite"),
]


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_data_stored_by_a_real_server_keeps_its_labels(
    world: World, call: Call, place: tuple[Place, Server]
) -> None:
    how, server = place

    def use(name: str, arguments: dict[str, Any], who: Caller) -> str:
        outcome = call(f"mcp_place_{name}", arguments, session_id=who.session and who.session.pk)
        assert outcome.outcome == "ok", outcome.text
        return outcome.text

    clean, dirty, reader = (world.session() for _ in range(3))
    # Work that has seen nothing leaves no labels, and needs no approval.
    use(*how.writes[0], clean)
    assert (get_store_labels(server), clean.sends()) == ((), "")
    dirty.under_labels()
    for name, arguments in how.writes if len(how.writes) == 1 else how.writes[1:]:
        use(name, arguments, dirty)
    assert get_store_labels(server) == BOTH
    assert reader.sends() == ""
    assert WRITTEN in use(*how.reads, reader)
    assert reader.sends() == ASKED
