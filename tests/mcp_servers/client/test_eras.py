"""Servers that support both eras are called in the one that the caller needs."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_servers.client.answer_server_requests import Host, build_declared_capabilities
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.mcp_extensions import build_client_extensions
from mcp_servers.client.pool import ConnectionPool
from tests import processes
from tests.mcp_servers.client.endpoints import (
    ALL,
    HOLDER,
    SCRIPT,
    SERVERS,
    call,
    failure,
    faulty_stdio,
    http,
    stdio,
    text_of,
)
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RecordedRequest

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"


class LiveHost(Host):
    """Answers immediately, which needs a live connection."""

    def capabilities(self, endpoint: ServerEndpoint) -> Mapping[str, Any]:
        return build_declared_capabilities(endpoint)

    def needs_handshake(self, endpoint: ServerEndpoint) -> bool:
        return True

    async def elicitation(
        self, endpoint: ServerEndpoint, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {"action": "accept", "content": {"name": "Ada"}}

    async def sampling(self, endpoint: ServerEndpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": {"type": "text", "text": "blue"}, "model": "m"}


_discovered: dict[tuple[Any, ...], dict[str, Any]] = {}


async def discover(connections: ConnectionPool, endpoint: ServerEndpoint) -> dict[str, Any]:
    """Return what is stored of a server: it is asked once, because a child needs a second."""
    key = (endpoint.command, endpoint.args, endpoint.url)
    if key not in _discovered:
        declarations = await connections.fetch_declarations(endpoint)
        _discovered[key] = {"era": declarations.era, "discovery": declarations.discovery}
    return {"server_id": endpoint.server_id, **_discovered[key]}


async def test_a_server_of_both_eras_reaches_a_host_that_needs_a_live_connection(
    connections: ConnectionPool, make_endpoint: Callable[..., ServerEndpoint]
) -> None:
    fields = await discover(connections, make_endpoint())
    assert fields["era"] == "modern"
    endpoint, host = make_endpoint(**fields), LiveHost()
    assert text_of(await call(connections, endpoint, "ask", host=host)) == "Hello Ada"
    assert text_of(await call(connections, endpoint, "sample", host=host)) == "painted blue"
    assert text_of(await call(connections, endpoint, "era", host=host)) == HANDSHAKE


async def test_other_callers_stay_in_the_modern_era_when_one_needs_the_handshake(
    connections: ConnectionPool, make_endpoint: Callable[..., ServerEndpoint]
) -> None:
    endpoint = make_endpoint(**await discover(connections, make_endpoint()))
    assert text_of(await call(connections, endpoint, "era", host=LiveHost())) == HANDSHAKE
    assert text_of(await call(connections, endpoint, "era", holder="session:other")) == MODERN
    # Definitions come from the modern era, whichever connection reported a change.
    declarations = await connections.fetch_declarations(endpoint, preferred_holder=HOLDER)
    assert declarations.era == "modern"


async def test_a_stateless_server_is_called_in_the_modern_era(connections: ConnectionPool) -> None:
    with processes.serve(SCRIPT, "stateless") as url:
        fields = await discover(connections, http(url, allowed_requests=ALL))
        endpoint = http(url, allowed_requests=ALL, **fields)
        for _ in range(2):
            assert text_of(await call(connections, endpoint, "era", host=LiveHost())) == MODERN


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("code", [-32601, -32602, -32022])
async def test_a_modern_server_that_refuses_the_handshake_is_asked_for_it_once(
    connections: ConnectionPool, code: int, status: int
) -> None:
    def respond(request: RecordedRequest) -> bytes:
        if request.method == "initialize":
            return raw_http_server.error(request, code, status, {"supported": [MODERN]})
        return raw_http_server.text(request)

    async with raw_http_server.modern(respond).listening() as server:
        endpoint = http(server.url, allowed_requests=ALL, era="modern", discovery={})
        for _ in range(2):
            assert text_of(await call(connections, endpoint, "x", host=LiveHost())) == "ok"
        assert server.methods() == ["initialize", "tools/call", "tools/call"]


async def test_a_modern_server_that_hangs_up_on_the_handshake_is_called_anyway(
    connections: ConnectionPool,
) -> None:
    def respond(request: RecordedRequest) -> bytes:
        if request.method == "initialize":
            return raw_http_server.STREAM  # without events
        return raw_http_server.text(request)

    async with raw_http_server.modern(respond).listening() as server:
        endpoint = http(server.url, allowed_requests=ALL, era="modern", discovery={})
        assert text_of(await call(connections, endpoint, "x", host=LiveHost())) == "ok"


async def test_an_outage_during_the_handshake_is_no_refusal(connections: ConnectionPool) -> None:
    refusals = [raw_http_server.response(503)]

    def respond(request: RecordedRequest) -> bytes:
        if request.method == "initialize" and refusals:
            return refusals.pop()
        if request.method == "initialize":
            return raw_http_server.initialization(request, "s1")
        if request.id is None:
            return raw_http_server.response(202 if request.verb == "POST" else 405, kind="")
        return raw_http_server.text(request)

    async with raw_http_server.modern(respond).listening() as server:
        endpoint = http(server.url, allowed_requests=ALL, era="modern", discovery={})
        error = await failure(call(connections, endpoint, "x", host=LiveHost()))
        assert error.code == "server_unreachable"
        assert text_of(await call(connections, endpoint, "x", host=LiveHost())) == "ok"
        assert server.asked[-1].headers["mcp-session-id"] == "s1"


async def test_a_later_part_of_a_modern_call_stays_in_the_modern_era(
    connections: ConnectionPool,
) -> None:
    async with raw_http_server.modern(raw_http_server.text).listening() as server:
        endpoint = http(server.url, allowed_requests=ALL, era="modern", discovery={})
        params = {"name": "x", "arguments": {}, "requestState": "s"}
        await connections.send_request(
            endpoint, "tools/call", params, holder=HOLDER, host=LiveHost()
        )
        assert server.methods() == ["tools/call"]


@pytest.mark.parametrize(("era", "start_s"), [("modern", 10), ("deaf", 2)])
async def test_a_modern_child_without_handshake_is_called_anyway(
    connections: ConnectionPool, era: str, start_s: float
) -> None:
    endpoint = faulty_stdio(era, allowed_requests=ALL, era="modern", start_s=start_s)
    handshake = await connections.perform_handshake(endpoint, holder=HOLDER, host=LiveHost())
    assert handshake.era == "modern"


async def test_every_connection_declares_the_same_to_a_server(
    connections: ConnectionPool, tmp_path: Path
) -> None:
    log = tmp_path / "asker"
    script = str(SERVERS / "client_request_server.py")
    endpoint = stdio(
        sys.executable, script, "handshake", allowed_requests=ALL, env={"ASKER_FILE": str(log)}
    )
    await connections.fetch_declarations(endpoint)
    await connections.send_request(endpoint, "ping", {}, holder="server:health")
    await connections.perform_handshake(endpoint, holder=HOLDER)
    await connections.perform_handshake(endpoint, holder="session:live", host=LiveHost())
    messages = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    declarations = [
        message["params"]["capabilities"]
        for message in messages
        if message.get("method") == "initialize"
    ]
    assert len(declarations) == 4
    assert (
        declarations
        == [
            {
                "sampling": {"context": {}, "tools": {}},
                "elicitation": {"form": {}, "url": {}},
                "roots": {},
                "extensions": build_client_extensions(),
            }
        ]
        * 4
    )
