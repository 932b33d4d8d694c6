"""What a server sends to one session only reaches the client that the session belongs to."""

from collections.abc import Callable, Iterator

import pytest

from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Launcher, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.agents.gateway.conftest import Session, Stream, Wire
from tests.npm_servers import serve_everything

pytestmark = [pytest.mark.npm, pytest.mark.django_db(transaction=True)]

SERVER = "/mcp/servers/everything"
URI = "demo://resource/static/document/features.md"
UPDATED, LOG = "notifications/resources/updated", "notifications/message"


@pytest.fixture(params=["http", "stdio"])
def everything(
    request: pytest.FixtureRequest,
    acme: Organization,
    helper: Agent,
    node_server: Callable[[str], str],
) -> Iterator[Server]:
    """Server-everything, which sends updates and logs to the session that asks for them."""
    boss, program = factories.build_administrator(acme), node_server("mcp-server-everything")
    if request.param == "stdio":
        Launcher.objects.create(command=program)
        fields = {"transport_type": "stdio", "endpoint_config": {"command": program}}
    else:
        url = request.getfixturevalue("everything_url")
        fields = {"transport_type": "http", "endpoint_config": {"url": url}, "allow_private": True}
    spec = ServerSpec(name="everything", approval=Server.Approval.ALWAYS, **fields)
    server = factories.approve_server(acme, create_server(boss, spec))
    attach_server(boss, helper, server, allowed_resources=["*"])
    yield server
    get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def everything_url(node_server: Callable[[str], str], free_port: int) -> Iterator[str]:
    with serve_everything(node_server, free_port) as url:
        yield url


def receive(stream: Stream, method: str) -> dict:
    """Return the next notification of a method."""
    while (message := stream.next()) is not None:
        if message["method"] == method:
            return dict(message["params"])
    raise AssertionError(f"the stream ended without {method}")


def call(session: Session, tool: str) -> None:
    assert not session.ask("tools/call", {"name": tool, "arguments": {}}).result.get("isError")


def test_updates_of_a_session_reach_its_client(everything: Server, wire: Wire) -> None:
    session = wire.handshake(SERVER)
    stream = session.follow()
    assert session.ask("resources/subscribe", {"uri": URI}).result == {}
    call(session, "toggle-subscriber-updates")
    assert [receive(stream, UPDATED)["uri"] for _ in range(2)] == [URI, URI]
    stream.close()


def test_updates_of_a_session_reach_a_modern_client(everything: Server, wire: Wire) -> None:
    stream = wire.listen(SERVER, {"notifications": {"resourceSubscriptions": [URI]}})
    receive(stream, "notifications/subscriptions/acknowledged")
    params = {"name": "toggle-subscriber-updates", "arguments": {}}
    assert not wire.modern(SERVER, "tools/call", params).result.get("isError")
    assert receive(stream, UPDATED)["uri"] == URI
    stream.close()


def test_logs_that_belong_to_no_request_reach_the_client_of_the_session(
    everything: Server, wire: Wire
) -> None:
    session = wire.handshake(SERVER)
    stream = session.follow()
    call(session, "toggle-simulated-logging")
    assert "message" in receive(stream, LOG)["data"]
    stream.close()
