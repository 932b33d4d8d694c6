"""Clients of either era behind the gateway, and servers that support both."""

import sys
from collections.abc import Callable, Iterator

import pytest

from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, processes
from tests.agents.gateway.conftest import GatewayClient

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
SCRIPT = "live_requests_server.py"
HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
ABLE = {"elicitation": {}, "sampling": {}}


@pytest.fixture
def register(acme: Organization, helper: Agent) -> Iterator[Callable[..., Server]]:
    """A function that registers a server, which may request everything."""
    administrator, servers = factories.build_administrator(acme), []

    def create(**fields) -> Server:
        spec = ServerSpec(
            name="live",
            approval=Server.Approval.ALWAYS,
            elicitation=True,
            sampling=Server.Sampling.ALLOW,
            **fields,
        )
        server = factories.approve_server(acme, create_server(administrator, spec))
        attach_server(administrator, helper, server)
        servers.append(server)
        return server

    yield create
    for server in servers:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture(scope="module")
def live_url() -> Iterator[str]:
    """The URL of one process of the server for all tests; none reads what another left in it."""
    with processes.serve(SCRIPT, "http") as url:
        yield url


@pytest.fixture(params=["http", "stdio"])
def server(request: pytest.FixtureRequest, register: Callable[..., Server]) -> Server:
    """A server that supports both eras and was discovered as modern."""
    if request.param == "stdio":
        args = ["-m", f"tests.servers.{SCRIPT.removesuffix('.py')}", "stdio"]
        config = {"command": sys.executable, "args": args}
        return register(transport_type="stdio", endpoint_config=config)
    url = request.getfixturevalue("live_url")
    return register(transport_type="http", endpoint_config={"url": url}, allow_private=True)


def build_call(tool: str) -> dict[str, object]:
    return {"name": f"mcp_live_{tool}", "arguments": {}}


def read_text(result: dict) -> str:
    return str(result["content"][0]["text"])


def test_a_client_of_the_handshake_era_is_asked_in_the_middle_of_a_call(
    server: Server, gateway_client: GatewayClient
) -> None:
    assert server.era == "modern"
    session = gateway_client.handshake(AGENT, capabilities=ABLE)
    answers = {
        "ask": {"action": "accept", "content": {"name": "Ada"}},
        "sample": {"role": "assistant", "content": {"type": "text", "text": "blue"}, "model": "m"},
    }
    texts = []
    for tool, answer in answers.items():
        stream = session.begin("tools/call", build_call(tool))
        session.answer(stream.next() or {}, result=answer)
        texts.append(read_text((stream.next() or {})["result"]))
        stream.close()
    assert texts == ["Hello Ada", "painted blue"]
    assert Server.objects.get().era == "modern"


def test_a_client_of_the_handshake_era_is_asked_for_the_input_that_a_modern_result_requests(
    server: Server, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(AGENT, capabilities=ABLE)
    # It may have had an effect, so it isn't repeated, and the next call is modern.
    error = session.ask("tools/call", build_call("greet")).message["error"]
    assert (error["code"], "2026-07-28" in error["message"]) == (-32603, True)
    texts = []
    for tool in ("greet", "greet_safely", "ask"):
        stream = session.begin("tools/call", build_call(tool))
        answer = {"action": "accept", "content": {"name": "Ada"}}
        session.answer(stream.next() or {}, result=answer)
        texts.append(read_text((stream.next() or {})["result"]))
        stream.close()
    assert texts == ["Hello Ada"] * 3


def test_each_client_gets_the_era_that_it_needs(
    server: Server, gateway_client: GatewayClient
) -> None:
    able, unable = (
        gateway_client.handshake(AGENT, capabilities=ABLE),
        gateway_client.handshake(AGENT),
    )
    results = [
        able.ask("tools/call", build_call("era")).result,
        unable.ask("tools/call", build_call("era")).result,
        gateway_client.modern(AGENT, "tools/call", build_call("era"), capabilities=ABLE).result,
    ]
    assert [read_text(result) for result in results] == [HANDSHAKE, MODERN, MODERN]


def test_a_client_is_only_asked_in_a_mode_that_it_supports(
    server: Server, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(AGENT, capabilities={"elicitation": {"url": {}}})
    reply = session.ask("tools/call", build_call("ask"))
    assert "doesn't support" in str(reply.message)
