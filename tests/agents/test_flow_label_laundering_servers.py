"""Label laundering through third-party servers: memory, files, git and a database.

Each is a real process. A session with both labels writes; a session without labels reads it and
then needs approval to send.
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
from tests.agents.labeled_stores import APPROVAL_REQUIRED, BOTH, Caller, World, create_world

pytestmark = pytest.mark.django_db(transaction=True)

Call = Callable[..., CallOutcome]
NodeServer = Callable[[str], str]
SECRET_TEXT = "the salary of Ann"
SQLITE = Path(__file__).parents[2] / ".venv-sdk1" / "bin" / "mcp-server-sqlite"


@dataclass(frozen=True)
class StoreServer:
    """A server's command, the calls that write, and the call that reads the text back."""

    command: tuple[str, ...]
    writes: tuple[tuple[str, dict[str, Any]], ...]
    reads: tuple[str, dict[str, Any]]
    env: tuple[tuple[str, str], ...] = ()


def memory(folder: Path, node: NodeServer) -> StoreServer:
    entity = {"name": "Ann", "entityType": "person", "observations": [SECRET_TEXT]}
    return StoreServer(
        (node("mcp-server-memory"),),
        (("create_entities", {"entities": [entity]}),),
        ("read_graph", {}),
        (("MEMORY_FILE_PATH", str(folder / "memory.jsonl")),),
    )


def files(folder: Path, node: NodeServer) -> StoreServer:
    path = str(folder / "ann.txt")
    return StoreServer(
        (node("mcp-server-filesystem"), str(folder)),
        (("write_file", {"path": path, "content": SECRET_TEXT}),),
        ("read_text_file", {"path": path}),
    )


def git(folder: Path, node: NodeServer) -> StoreServer:
    del node
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for name, value in (("user.name", "Ann"), ("user.email", "ann@example.org")):
        subprocess.run(["git", "-C", str(folder), "config", name, value], check=True)
    (folder / "a").write_text("a")
    repository = {"repo_path": str(folder)}
    return StoreServer(
        (sys.executable, "-m", "mcp_server_git", "--repository", str(folder)),
        (
            ("git_add", {**repository, "files": ["a"]}),
            ("git_commit", {**repository, "message": SECRET_TEXT}),
        ),
        ("git_log", repository),
    )


def database(folder: Path, node: NodeServer) -> StoreServer:
    del node
    if not SQLITE.exists():
        pytest.skip("mcp-server-sqlite isn't installed: run tests/clients/install")
    return StoreServer(
        (str(SQLITE), "--db-path", str(folder / "db.sqlite3")),
        (
            ("create_table", {"query": "CREATE TABLE notes (text TEXT)"}),
            ("write_query", {"query": f"INSERT INTO notes VALUES ('{SECRET_TEXT}')"}),  # noqa: S608
        ),
        ("read_query", {"query": "SELECT text FROM notes"}),
    )


@pytest.fixture
def world(acme: Organization, helper: Agent) -> Iterator[World]:
    with create_world(acme, helper) as new_world:
        yield new_world


@pytest.fixture
def store(
    request: pytest.FixtureRequest,
    world: World,
    tmp_path: Path,
    node_server: NodeServer,
    settings: Settings,
) -> Iterator[tuple[StoreServer, Server]]:
    """A running server, approved and attached to the agent."""
    folder = tmp_path / "place"
    folder.mkdir()
    store_server: StoreServer = request.param(folder, node_server)
    command, *arguments = store_server.command
    settings.BONOBOT_LAUNCHERS = (*settings.BONOBOT_LAUNCHERS, command)
    config = {"command": command, "args": arguments, "env": dict(store_server.env)}
    spec = ServerSpec(name="place", transport_type="stdio", endpoint_config=config)
    server = create_server(world.administrator, spec)
    yield store_server, factories.approve_server(world.acme, server, world.helper)
    get_runtime().call(get_connection_pool().forget_server, server.pk)


STORES = [
    pytest.param(memory, marks=pytest.mark.npm, id="memory"),
    pytest.param(files, marks=pytest.mark.npm, id="filesystem"),
    pytest.param(git, id="git"),
    pytest.param(database, id="sqlite"),
]


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_data_stored_by_a_real_server_keeps_its_labels(
    world: World, call: Call, store: tuple[StoreServer, Server]
) -> None:
    store_server, server = store

    def use(name: str, arguments: dict[str, Any], caller: Caller) -> str:
        outcome = call(
            f"mcp_place_{name}", arguments, session_id=caller.session and caller.session.pk
        )
        assert outcome.outcome == "ok", outcome.text
        return outcome.text

    without_labels, with_labels, reader = (world.start_session() for _ in range(3))
    # A session without labels leaves none and needs no approval.
    use(*store_server.writes[0], without_labels)
    assert (get_store_labels(server), without_labels.try_to_send()) == ((), "")
    with_labels.read_labeled_data()
    for name, arguments in (
        store_server.writes if len(store_server.writes) == 1 else store_server.writes[1:]
    ):
        use(name, arguments, with_labels)
    assert get_store_labels(server) == BOTH
    assert reader.try_to_send() == ""
    assert SECRET_TEXT in use(*store_server.reads, reader)
    assert reader.try_to_send() == APPROVAL_REQUIRED
