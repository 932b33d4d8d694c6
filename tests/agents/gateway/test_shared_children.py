"""Handshake sessions of a principal share children that keep no session state."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.gateway import client_sessions
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from mcp_servers.build_endpoint import keeps_session_state
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec, build_changed_spec
from mcp_servers.services import create_server, update_server
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, Session, token_of
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "/mcp/servers/talk"
SCRIPT = Path(__file__).parents[2] / "servers" / "talkative_server.py"
POKE = {"name": "poke", "arguments": {"times": 0}}


@pytest.fixture
def talk(acme: Organization) -> Iterator[Server]:
    config = {"command": sys.executable, "args": ["-I", "-S", str(SCRIPT)]}
    spec = ServerSpec(name="talk", transport_type="stdio", endpoint_config=config)
    server = factories.approve_server(
        acme, create_server(factories.build_administrator(acme), spec)
    )
    yield server
    get_runtime().call(get_connection_pool().forget_server, server.pk)


def count_children(server: Server) -> int:
    pool = get_connection_pool()._stdio_pool
    return sum(
        server_id == server.pk and holder.startswith("gateway:")
        for server_id, holder in pool._entries
    )


def call(session: Session) -> None:
    assert session.ask("tools/call", POKE).result["content"]


def test_sessions_of_a_principal_share_a_child_that_ends_with_the_last(
    talk: Server, gateway_client: GatewayClient, acme: Organization
) -> None:
    sessions = [gateway_client.handshake(PATH) for _ in range(3)]
    other_session = gateway_client.handshake(
        PATH, token=token_of(factories.build_administrator(acme))
    )
    for session in (*sessions, other_session):
        call(session)
    assert count_children(talk) == 2
    other_session.end()
    for session in sessions[:2]:
        session.end()
    eventually(lambda: count_children(talk) == 1, what="the end of the other's child")
    call(sessions[2])
    sessions[2].end()
    eventually(lambda: count_children(talk) == 0, what="the end of the child")


def test_sessions_whose_server_may_ask_use_a_child_each_at_a_time(
    talk: Server, gateway_client: GatewayClient
) -> None:
    sessions = [gateway_client.handshake(PATH, capabilities={"elicitation": {}}) for _ in range(2)]
    for session in sessions:
        call(session)
    assert count_children(talk) == 1
    stream = sessions[0].begin("tools/call", {"name": "hold", "arguments": {}})
    eventually(
        lambda: any(
            entry.connection.busy for entry in get_connection_pool()._stdio_pool._entries.values()
        ),
        what="the call",
    )
    call(sessions[1])
    assert count_children(talk) == 2
    stream.close()
    for session in sessions:
        session.end()
    eventually(lambda: count_children(talk) == 0, what="the end of the children")


def test_each_session_has_a_child_if_the_server_keeps_state(
    talk: Server, gateway_client: GatewayClient, acme: Organization
) -> None:
    administrator = factories.build_administrator(acme)
    update_server(administrator, talk, build_changed_spec(talk, session_state="kept"))
    sessions = [gateway_client.handshake(PATH) for _ in range(2)]
    for session in sessions:
        call(session)
    assert count_children(talk) == 2
    sessions[0].end()
    eventually(lambda: count_children(talk) == 1, what="the end of the first child")


def test_a_closed_stream_frees_the_child(
    talk: Server, gateway_client: GatewayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sessions, "DISCONNECT_GRACE_S", 0.0)
    session = gateway_client.handshake(PATH)
    stream = session.follow()
    call(session)
    assert count_children(talk) == 1
    stream.close()
    eventually(lambda: count_children(talk) == 0, what="the end of the child")
    call(session)  # the session itself goes on


@pytest.mark.parametrize(
    ("state", "command", "kept"),
    [
        ("auto", ["npx", "-y", "@playwright/mcp@1"], True),
        ("auto", ["npx", "-y", "@modelcontextprotocol/server-everything"], False),
        ("none", ["npx", "-y", "@playwright/mcp@1"], False),
        ("kept", ["clock"], True),
    ],
)
def test_programs_known_to_keep_state_arent_shared_unless_configured(
    state: str, command: list[str], kept: bool
) -> None:
    config = {"command": command[0], "args": command[1:]}
    assert keeps_session_state(Server(session_state=state, endpoint_config=config)) is kept
