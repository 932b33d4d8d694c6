"""A failed call that may have reached its server isn't repeated."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mcp_servers.client.endpoint import WIRE_FIELD
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import HOLDER, call, failure, faulty_stdio, http, until
from tests.servers import raw_http_server
from tests.servers.raw_http_server import HandshakeHttp, RawHttp, RecordedRequest, SseHttp

LIMIT_S = 0.2
SSE = {"era": "handshake", "discovery": {WIRE_FIELD: "sse"}}
Events = AsyncIterator[bytes]


async def reset_connection(request: RecordedRequest) -> Events:
    """Close the connection without a response."""
    return
    yield b""


async def hang(request: RecordedRequest) -> Events:
    """Never respond."""
    await asyncio.Event().wait()
    yield b""


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: reset_connection(request),
        lambda request: hang(request),
        lambda request: raw_http_server.response(502),
        lambda request: raw_http_server.response(503),
        lambda request: b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 50\r\n\r\n{",
    ],
)
async def test_a_call_that_was_sent_over_http_is_not_retryable(
    connections: ConnectionPool, answer: Callable[[RecordedRequest], Any]
):
    async with RawHttp(answer).listening() as server:
        endpoint = http(server.url, era="modern", read_s=2)
        error = await failure(call(connections, endpoint, "x"))
        assert (error.sent, error.retryable) == (True, False)
        assert server.methods() == ["tools/call"]


async def test_a_call_that_a_busy_server_rejected_unread_is_retryable(connections: ConnectionPool):
    async with RawHttp(lambda request: raw_http_server.response(429)).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert (error.sent, error.retryable) == (False, True)


async def test_a_call_whose_process_does_not_answer_is_not_retryable(connections: ConnectionPool):
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    error = await failure(call(connections, endpoint, "hang", timeout_s=LIMIT_S))
    assert (error.code, error.sent, error.retryable) == ("call_timeout", True, False)


async def test_a_call_may_have_run_when_we_close_its_process(connections: ConnectionPool):
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    pending = asyncio.ensure_future(call(connections, endpoint, "hang"))
    await until(lambda: connections._stdio_pool.get_connection(endpoint, HOLDER, None).busy)
    await connections.forget_server(endpoint.server_id)
    error = await failure(pending)
    assert (error.sent, error.retryable) == (True, False)


async def test_a_call_may_have_run_when_its_event_stream_is_lost(connections: ConnectionPool):
    def lose_stream(request: RecordedRequest) -> bytes:
        if request.method == "tools/call":
            # A chunk that is too short: the connection is lost in the middle of an event.
            wire.streams[request.path].put_nowait(b"data: {")
            wire.hang_up()
        return b""

    wire = SseHttp(lose_stream)
    async with RawHttp(wire).listening() as server:
        error = await failure(call(connections, http(server.url, **SSE), "x"))
        assert (error.sent, error.retryable) == (True, False)
        assert server.methods().count("tools/call") == 1


async def test_a_call_may_have_run_when_its_event_stream_breaks_the_protocol(
    connections: ConnectionPool,
):
    def break_stream(request: RecordedRequest) -> bytes:
        if request.method == "tools/call":
            return b"data: " + b"x" * 40_000  # more than the limit of a whole stream
        return b""

    wire = SseHttp(break_stream)
    async with RawHttp(wire).listening() as server:
        endpoint = http(server.url, **SSE, max_body=2000)
        error = await failure(call(connections, endpoint, "x"))
        assert (error.code, error.sent, error.retryable) == ("response_too_large", True, False)


@pytest.mark.parametrize("status", [400, 401, 404, 405, 500])
async def test_a_call_is_not_sent_again_when_its_server_lost_the_session_meanwhile(
    connections: ConnectionPool, status: int
):
    async def break_off(request: RecordedRequest) -> Events:
        era.known.clear()  # like after a restart
        yield raw_http_server.STREAM + raw_http_server.event("", id="7", retry="1")

    era = HandshakeHttp(lambda request: break_off(request))
    lost = raw_http_server.response(status, b"No valid session ID", "text/plain")

    def respond(request: RecordedRequest) -> Any:
        return lost if request.verb == "GET" else era(request)

    async with RawHttp(respond).listening() as server:
        error = await failure(call(connections, http(server.url, era="handshake"), "x"))
        assert (error.code, error.sent, error.retryable) == ("server_unreachable", True, False)
        assert server.methods().count("tools/call") == 1


async def test_a_call_did_not_run_when_the_session_could_not_be_opened(
    connections: ConnectionPool,
):
    async with RawHttp(lambda request: reset_connection(request)).listening() as server:
        error = await failure(call(connections, http(server.url, era="handshake"), "x"))
        assert (error.code, error.sent) == ("server_unreachable", False)
        assert "tools/call" not in server.methods()
