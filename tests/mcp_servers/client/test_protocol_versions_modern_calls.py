"""Calls that servers of both eras answer only in the modern era."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.jsonrpc import McpRequest
from mcp_servers.client.pool import ConnectionPool
from mcp_servers.client.protocol_versions import MAX_MODERN_CALLS, MODERN_SUFFIX, ModernCalls
from tests.mcp_servers.client.endpoints import (
    ALL,
    HOLDER,
    SCRIPT,
    SERVERS,
    call,
    failure,
    http,
    stdio,
    text_of,
)
from tests.mcp_servers.client.test_eras import LiveHost, discover
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RecordedRequest

ANSWER = {"name": {"action": "accept", "content": {"name": "Ada"}}}
SAFE = {"declaration": {"annotations": {"idempotentHint": True}}}
FASTMCP_ERROR = (
    "Tool 'x' returned an InputRequiredResult to request client input, but the multi-round-trip "
    "result type (SEP-2322) only exists at MCP 2026-07-28; this connection negotiated '2025-11-25'."
)


async def send(
    connections: ConnectionPool,
    endpoint: ServerEndpoint,
    method: str,
    params: dict[str, Any],
    **options: Any,
) -> dict[str, Any]:
    return await connections.send_request(
        endpoint, method, params, holder=HOLDER, host=LiveHost(), **options
    )


async def test_a_call_is_repeated_in_the_modern_era_only_if_that_is_safe(
    connections: ConnectionPool, make_endpoint: Callable[..., ServerEndpoint]
) -> None:
    endpoint, host = make_endpoint(**await discover(connections, make_endpoint())), LiveHost()
    assert text_of(await call(connections, endpoint, "ask", host=host)) == "Hello Ada"

    error = await failure(call(connections, endpoint, "greet", host=host))
    assert (error.code, error.rpc_code) == ("upstream_error", -32603)
    assert "2026-07-28" in str(error)
    assert text_of(await call(connections, endpoint, "list_greeted", host=host)) == "1"
    first = await call(connections, endpoint, "greet", host=host)
    assert first["resultType"] == "input_required"
    params = {"name": "greet", "arguments": {}, "inputResponses": ANSWER}
    last = await send(connections, endpoint, "tools/call", params)
    assert text_of(last) == "Hello Ada"

    for method, params in {
        "tools/call": {"name": "greet_safely", "arguments": {}},
        "prompts/get": {"name": "greeting"},
        "resources/read": {"uri": "test://greeting/en"},
    }.items():
        options = SAFE if method == "tools/call" else {}
        first = await send(connections, endpoint, method, params, **options)
        assert first["resultType"] == "input_required"
    # Other calls keep their live connection.
    assert text_of(await call(connections, endpoint, "ask", host=host)) == "Hello Ada"


async def test_a_caller_without_a_live_connection_is_told_why_the_call_fails(
    connections: ConnectionPool, make_endpoint: Callable[..., ServerEndpoint]
) -> None:
    endpoint = make_endpoint(**await discover(connections, make_endpoint()))
    error = await failure(call(connections, endpoint, "ask", holder="server:other"))
    assert (error.code, error.rpc_code) == ("upstream_error", -32600)
    assert "the caller can't answer such requests" in error.rpc_message


async def test_releasing_a_holder_ends_its_modern_child(connections: ConnectionPool) -> None:
    def build_endpoint(**more: Any) -> ServerEndpoint:
        script = str(SERVERS / SCRIPT)
        return stdio(sys.executable, script, "stdio", allowed_requests=ALL, start_s=60, **more)

    endpoint = build_endpoint(**await discover(connections, build_endpoint()))
    params = {"name": "greet_safely", "arguments": {}}
    await send(connections, endpoint, "tools/call", params, **SAFE)
    assert connections.find_connection(endpoint, HOLDER)
    assert connections.find_connection(endpoint, HOLDER + MODERN_SUFFIX)
    await connections.release(HOLDER, endpoint.server_id)
    assert not connections.find_connection(endpoint, HOLDER)
    assert not connections.find_connection(endpoint, HOLDER + MODERN_SUFFIX)


@pytest.mark.parametrize(
    ("code", "message", "is_repeated"),
    [(-32602, FASTMCP_ERROR, True), (-32602, "Bad arguments", False), (-32603, "Oops", False)],
)
async def test_only_the_error_of_the_other_era_leads_to_a_modern_call(
    connections: ConnectionPool, code: int, message: str, is_repeated: bool
) -> None:
    def respond(request: RecordedRequest) -> bytes:
        if request.method == "initialize":
            return raw_http_server.initialization(request, "s1")
        if request.id is None:
            return raw_http_server.response(202 if request.verb == "POST" else 405, kind="")
        if "mcp-session-id" in request.headers:
            return raw_http_server.error(request, code, 200, text=message)
        return raw_http_server.text(request)

    async with raw_http_server.modern(respond).listening() as server:
        endpoint = http(server.url, allowed_requests=ALL, era="modern", discovery={})
        calling = call(connections, endpoint, "x", host=LiveHost())
        if is_repeated:
            assert text_of(await calling) == "ok"
        else:
            error = await failure(calling)
            assert (error.code, error.rpc_code) == ("upstream_error", code)
        assert server.methods().count("tools/call") == 1 + is_repeated


def test_the_oldest_calls_are_forgotten() -> None:
    calls = ModernCalls()
    requests = [
        McpRequest("resources/read", {"uri": f"test://{number}"})
        for number in range(MAX_MODERN_CALLS + 1)
    ]
    for request in requests:
        calls.add(request)
    assert [calls.contains(request) for request in requests[:2]] == [False, True]


def test_a_tool_whose_definition_changed_is_tried_again() -> None:
    calls = ModernCalls()
    params = {"name": "x", "arguments": {}}
    calls.add(McpRequest("tools/call", params, declaration={"description": "old"}))
    changed = McpRequest("tools/call", params, declaration={"description": "new"})
    assert not calls.contains(changed)
