"""Concurrent calls of a client in which servers request input."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.gateway import mcp_host
from agents.gateway.mcp_host import ExclusiveConnections
from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, Reply, Session, Stream
from tests.agents.gateway.upstream_server import ABLE, Json, Upstream, attach_upstream

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
ASKER = Path(__file__).parents[2] / "servers" / "client_request_server.py"
NAMES = ("Ann", "Ben", "Cho")


@pytest.fixture
def handshake_servers(acme: Organization, helper: Agent) -> Iterator[tuple[Upstream, Upstream]]:
    """Two servers of the handshake era that request input during a call."""
    with (
        Upstream("first", handshake=True).listening() as first,
        Upstream("second", handshake=True).listening() as second,
    ):
        for upstream in (first, second):
            attach_upstream(upstream, acme, helper)
        yield first, second


@pytest.fixture
def stdio_server(acme: Organization, helper: Agent, tmp_path: Path) -> Server:
    """A stdio server of the handshake era that sends the requests in its arguments."""
    spec = ServerSpec(
        name="asker",
        transport_type="stdio",
        endpoint_config={
            **{"command": sys.executable, "args": [str(ASKER), "handshake"]},
            "env": {"ASKER_FILE": str(tmp_path / "asker")},
        },
        approval=Server.Approval.ALWAYS,
        elicitation=True,
    )
    administrator = factories.build_administrator(acme)
    server = factories.approve_server(acme, create_server(administrator, spec))
    attach_server(administrator, helper, server)
    return server


def call(gateway_client: GatewayClient, tool: str, **more: Any) -> Json:
    params = {"name": f"mcp_{tool}", "arguments": {}, **more}
    return gateway_client.modern(AGENT, "tools/call", params, capabilities=ABLE).result


def call_with_answer(
    gateway_client: GatewayClient, tool: str, pending: Json, name: str, **more: Any
) -> str:
    answer = {"action": "accept", "content": {"name": name}}
    responses = dict.fromkeys(pending["inputRequests"], answer)
    result = call(
        gateway_client, tool, requestState=pending["requestState"], inputResponses=responses, **more
    )
    assert result["resultType"] == "complete"
    return str(result["content"][0]["text"])


def test_two_servers_can_request_input_of_a_modern_client(
    handshake_servers: tuple[Upstream, Upstream], gateway_client: GatewayClient
) -> None:
    pending = {mark: call(gateway_client, f"{mark}_ask") for mark in ("first", "second")}
    for mark, result in pending.items():
        assert result["resultType"] == "input_required"
        assert f"{mark} asks" in json.dumps(result["inputRequests"])
    assert "Ben" in call_with_answer(gateway_client, "second_ask", pending["second"], "Ben")
    assert "Ann" in call_with_answer(gateway_client, "first_ask", pending["first"], "Ann")
    assert [len(upstream.client_responses) for upstream in handshake_servers] == [1, 1]
    rows = list(AuditRow.objects.filter(tool_name="ask", outcome="ok"))
    assert len(rows) == 2
    for row in rows:
        details = json.loads(row.closed)["details"]
        assert details["answer_wait_ms"] > 0
        assert details["execution_time_ms"] == row.duration_ms


def test_two_calls_of_a_modern_client_get_their_own_responses(
    handshake_servers: tuple[Upstream, Upstream], gateway_client: GatewayClient
) -> None:
    pending = [call(gateway_client, "first_ask", arguments={"n": n}) for n in range(2)]
    for n, name in ((1, "Ben"), (0, "Ann")):
        text = call_with_answer(gateway_client, "first_ask", pending[n], name, arguments={"n": n})
        assert [option for option in NAMES if option in text] == [name]


def test_concurrent_stdio_calls_with_requests_have_their_own_processes(
    stdio_server: Server, gateway_client: GatewayClient
) -> None:
    def build_arguments(text: str) -> Json:
        form = {"mode": "form", "message": text, "requestedSchema": {"type": "object"}}
        return {"requests": [{"method": "elicitation/create", "params": form}]}

    pending = [
        call(gateway_client, "asker_ask", arguments=build_arguments(f"{n}?")) for n in range(2)
    ]
    for n, result in enumerate(pending):
        (item,) = result["inputRequests"].values()
        assert item["params"]["message"] == f"{n}?"
    for n, name in ((1, "Ben"), (0, "Ann")):
        text = call_with_answer(
            gateway_client, "asker_ask", pending[n], name, arguments=build_arguments(f"{n}?")
        )
        assert [item for item in NAMES if item in text] == [name]


def test_a_handshake_client_is_asked_on_the_stream_of_its_call(
    handshake_servers: tuple[Upstream, Upstream], gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(AGENT, capabilities={"elicitation": {}})
    calls = [start_call(session, "mcp_first_ask", n, {"n": n}) for n in range(2)]
    calls.append(start_call(session, "mcp_second_ask", 2, {}))
    requests = [item.next() for item in calls]
    for mark, item in zip(("first", "first", "second"), requests, strict=True):
        assert item is not None
        assert item["params"]["message"] == f"{mark} asks"
    for n in (2, 1, 0):
        answer(session, requests[n], NAMES[n])
        response = calls[n].next()
        assert response is not None
        text = response["result"]["content"][0]["text"]
        assert [item for item in NAMES if item in text] == [NAMES[n]]
        calls[n].close()


def start_call(session: Session, tool: str, number: int, arguments: Json) -> Stream:
    """Start a call and return the stream of its response."""
    params = {"name": tool, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 100 + number, "method": "tools/call", "params": params}
    content, mount = json.dumps(message).encode(), session._wire._mount
    return Stream(mount, "POST", AGENT, session._with_bearer(), content)


def answer(session: Session, request: Json | None, name: str) -> Reply:
    assert request is not None
    result = {"action": "accept", "content": {"name": name}}
    body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
    return session._wire.send("POST", AGENT, body, **session._with_bearer())


def test_the_number_of_parallel_connections_is_limited_and_free_ones_are_reused() -> None:
    async def acquire_connections() -> list[str]:
        connections, keys = ExclusiveConnections(), []
        contexts = [
            connections.acquire_connection("me", None) for _ in range(mcp_host.MAX_CONNECTIONS)
        ]
        keys = [await context.__aenter__() for context in contexts]
        waiting = asyncio.ensure_future(connections.acquire_connection("me", None).__aenter__())
        async with connections.acquire_connection("another", None) as other_connection:
            assert other_connection == "another"
        assert not waiting.done()
        await contexts[3].__aexit__(None, None, None)
        return [*keys, await waiting]

    connection_keys = get_runtime().call(acquire_connections)
    assert connection_keys[0] == "me"
    assert len(set(connection_keys[:-1])) == mcp_host.MAX_CONNECTIONS
    assert connection_keys[-1] == connection_keys[3]
