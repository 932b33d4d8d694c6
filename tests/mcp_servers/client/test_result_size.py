"""Results have the same size limit on every transport, and the error names it."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mcp_servers.client.endpoint import WIRE_FIELD, ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import call, failure, faulty_stdio, http, text_of
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest, SseHttp

LIMIT = 300_000


def build_message(request: RecordedRequest, size: int) -> str:
    """Return a JSON-RPC result of `size` bytes."""
    result = {"content": [{"type": "text", "text": ""}]}
    message = json.dumps({"jsonrpc": "2.0", "id": request.id, "result": result})
    return message.replace('"text": ""', f'"text": "{"x" * (size - len(message))}"')


def answer_with_json(size: int) -> Callable[[RecordedRequest], Any]:
    return lambda request: raw_http_server.response(200, build_message(request, size).encode())


def answer_with_event(size: int) -> Callable[[RecordedRequest], Any]:
    async def stream(request: RecordedRequest) -> AsyncIterator[bytes]:
        event = raw_http_server.event(build_message(request, size), id="1")
        yield raw_http_server.STREAM + event

    return stream


def answer_on_separate_stream(size: int) -> Callable[[RecordedRequest], Any]:
    def answer(request: RecordedRequest) -> bytes:
        return (
            raw_http_server.event(build_message(request, size), event="message")
            if request.method == "tools/call"
            else b""
        )

    return SseHttp(answer)


SSE = {"era": "handshake", "discovery": {WIRE_FIELD: "sse"}}
MODERN = {"era": "modern"}
FRAMINGS = pytest.mark.parametrize(
    ("build_answer", "endpoint_fields"),
    [
        pytest.param(answer_with_json, MODERN, id="json"),
        pytest.param(answer_with_event, MODERN, id="event"),
        pytest.param(answer_on_separate_stream, SSE, id="http+sse"),
    ],
)


def check_refusal(error: UpstreamError, endpoint: ServerEndpoint) -> None:
    assert error.code == "response_too_large"
    assert f"{endpoint.max_body:,} bytes" in str(error)
    assert "BONOBOT_MAX_BODY" in str(error)


@FRAMINGS
async def test_a_result_is_accepted_up_to_the_limit(
    connections: ConnectionPool, build_answer: Any, endpoint_fields: Any
):
    async with RawHttp(build_answer(LIMIT)).listening() as server:
        endpoint = http(server.url, max_body=LIMIT, **endpoint_fields)
        assert len(text_of(await call(connections, endpoint, "x"))) > 0.99 * LIMIT


@FRAMINGS
@pytest.mark.parametrize("size", [LIMIT + 1, 3 * LIMIT])
async def test_a_larger_result_is_refused_with_the_limit_and_its_setting(
    connections: ConnectionPool, build_answer: Any, endpoint_fields: Any, size: int
):
    async with RawHttp(build_answer(size)).listening() as server:
        endpoint = http(server.url, max_body=LIMIT, **endpoint_fields)
        check_refusal(await failure(call(connections, endpoint, "x")), endpoint)


async def test_a_line_has_the_same_limit(connections: ConnectionPool):
    endpoint = faulty_stdio(max_body=LIMIT)
    padding = "x" * (LIMIT - 1000)
    assert padding in text_of(await call(connections, endpoint, "echo", a=padding))
    error = await failure(call(connections, endpoint, "echo", a="x" * LIMIT))
    check_refusal(error, endpoint)


async def test_a_stream_without_end_is_refused_with_the_setting(connections: ConnectionPool):
    async def stream(request: RecordedRequest) -> AsyncIterator[bytes]:
        yield raw_http_server.STREAM
        while True:
            yield b":" + b"x" * 1000 + b"\n\n"

    async with RawHttp(stream).listening() as server:
        endpoint = http(server.url, max_body=10_000, **MODERN)
        error = await failure(call(connections, endpoint, "x"))
    assert error.code == "response_too_large"
    assert "BONOBOT_MAX_BODY" in str(error)
