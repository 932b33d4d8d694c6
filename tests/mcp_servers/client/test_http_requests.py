"""A POST request and its response: statuses, broken and hostile responses, deadlines."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import httpx2
import pytest

from mcp_servers.client import jsonrpc
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import HOLDER, call, failure, http, text_of
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest, modern

LIMIT_S = 0.3
Events = AsyncIterator[bytes]


# --- statuses


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_need_a_sign_in(connections: ConnectionPool, status: int):
    challenge = 'Bearer resource_metadata="https://a.example/x"'
    response = raw_http_server.response(status, WWW_Authenticate=challenge)
    async with RawHttp(lambda request: response).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert (error.code, error.http_status) == ("needs_reauth", status)
    assert error.extra["challenge"] == challenge
    assert "credentials" in error.remedy


async def test_a_missing_server_is_unreachable(connections: ConnectionPool, free_port: int):
    endpoint = http(f"http://127.0.0.1:{free_port}/mcp", era="modern")
    error = await failure(call(connections, endpoint, "x"))
    assert (error.code, error.sent, error.retryable) == ("server_unreachable", False, True)


async def test_a_server_that_comes_back_is_used_again(connections: ConnectionPool):
    server = modern(raw_http_server.text)
    async with server.listening():
        endpoint = http(server.url, era="modern")
        await call(connections, endpoint, "x")
    async with server.listening():
        assert text_of(await call(connections, endpoint, "x")) == "ok"


async def test_a_busy_server_is_reported_with_retry_after(connections: ConnectionPool):
    response = raw_http_server.response(429, Retry_After="7")
    async with RawHttp(lambda request: response).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
        assert (error.code, error.http_status, error.retry_after) == ("server_unreachable", 429, 7)
        assert not error.sent
        server.respond = lambda request: raw_http_server.response(503)
        assert (await failure(call(connections, http(server.url, era="modern"), "x"))).sent
        endpoint = http(server.url, era="modern")
        await failure(connections.send_request(endpoint, "tools/list", holder=HOLDER))
        assert len(server.asked) == 3


async def test_the_error_of_a_failing_server_is_quoted(connections: ConnectionPool):
    response = raw_http_server.response(500, b"no disk\x1b[31m", "text/plain")
    async with RawHttp(lambda request: response).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert (error.code, error.http_status) == ("upstream_error", 500)
    assert "no disk⟨U+001B⟩" in str(error)


async def test_a_redirect_is_refused_with_its_target(connections: ConnectionPool):
    response = raw_http_server.response(307, Location="http://169.254.169.254/")
    async with RawHttp(lambda request: response).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert error.code == "redirect_denied"
    assert error.extra["location"] == "http://169.254.169.254/"


async def test_a_private_address_without_permission_is_refused(connections: ConnectionPool):
    async with modern(raw_http_server.text).listening() as server:
        endpoint = http(server.url, allow_private=False)
        error = await failure(connections.fetch_declarations(endpoint))
        assert (error.code, error.sent) == ("private_address", False)
        assert "administrator" in error.remedy
        assert server.asked == []


@pytest.mark.parametrize(
    "headers", [{"X-Key": "sec\nret"}, {"X-Key": "secr\u0435t"}, {"bad name": "secret"}]
)
async def test_invalid_headers_are_reported_without_their_values(
    connections: ConnectionPool, headers: dict[str, str]
):
    async with modern(raw_http_server.text).listening() as server:
        error = await failure(call(connections, http(server.url, headers=headers), "x"))
    assert (error.code, error.sent) == ("server_unreachable", False)
    assert "header" in str(error)
    assert "sec" not in str(error)


async def test_credentials_are_sent_in_every_era(connections: ConnectionPool):
    async with modern(raw_http_server.text).listening() as server:
        endpoint = http(server.url, headers={"Authorization": "Bearer abc"})
        await call(connections, endpoint, "x")
    assert {request.headers["authorization"] for request in server.asked} == {"Bearer abc"}


# --- responses


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda request: raw_http_server.response(200, b"<html>", "text/html"), "text/html"),
        (lambda request: raw_http_server.response(202, kind=""), "nothing"),
        (lambda request: raw_http_server.response(200, b"{"), "not JSON"),
        (lambda request: raw_http_server.response(200, b"[" * 100 + b"]" * 100), "nested deeper"),
        (lambda request: raw_http_server.response(200, b"[]"), "wasn't requested"),
        (lambda request: raw_http_server.response(200, b'{"ok":true}'), "isn't JSON-RPC"),
        (
            lambda request: raw_http_server.response(
                200, b'{"jsonrpc":"2.0","id":"1","result":{}}'
            ),
            "wasn't requested",
        ),
        (lambda request: raw_http_server.result(request, 7), "isn't an object"),
    ],
)
async def test_an_invalid_response_is_a_protocol_error(
    connections: ConnectionPool, answer: Callable[[RecordedRequest], bytes], reason: str
):
    async with RawHttp(answer).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert (error.code, error.sent) == ("protocol_error", True)
    assert reason in str(error)


@pytest.mark.parametrize(
    ("response", "remedy"),
    [
        (raw_http_server.response(200, b"<html>", "text/html"), "This is a web page."),
        (raw_http_server.response(200, b"ok", "text/plain"), "Enter the URL of the server's MCP"),
        (raw_http_server.response(200, b'{"ok":true}'), "Enter the URL of the server's MCP"),
        (raw_http_server.response(404, b"", "text/plain"), "Correct the path of its URL."),
        (raw_http_server.response(400, b"", "text/plain"), "Check the server's URL."),
        (raw_http_server.response(500, b"", "text/plain"), "Check the server's own log"),
    ],
)
async def test_the_remedy_of_a_response_that_is_not_mcp_is_about_its_cause(
    connections: ConnectionPool, response: bytes, remedy: str
) -> None:
    async with RawHttp(lambda request: response).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert error.remedy.startswith(remedy)


async def test_a_compressed_body_is_refused_without_reading_it(connections: ConnectionPool):
    response = raw_http_server.response(200, bytes(1000), Content_Encoding="gzip")
    async with RawHttp(lambda request: response).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert error.code == "protocol_error"
    assert "gzip" in str(error)


async def test_a_body_over_the_limit_is_refused(connections: ConnectionPool):
    def respond(request: RecordedRequest) -> bytes:
        return raw_http_server.text(request, "x" * 5000)

    async with RawHttp(respond).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern", max_body=4000), "x"))
        assert error.code == "response_too_large"
        endpoint = http(server.url, era="modern", max_body=300)
        assert (await failure(call(connections, endpoint, "x"))).code == "response_too_large"


def stream_events(events: Callable[[RecordedRequest], Events]) -> RawHttp:
    """Return a modern endpoint whose responses are event streams."""
    return RawHttp(lambda request: events(request))


async def test_other_events_arent_taken_as_the_response(connections: ConnectionPool):
    async def events(request: RecordedRequest) -> Events:
        yield raw_http_server.STREAM + b": a comment\n\n"
        yield raw_http_server.event({"jsonrpc": "2.0", "id": 99, "result": {}})
        yield raw_http_server.event({"jsonrpc": "2.0", "id": request.id, "method": "roots/list"})
        yield raw_http_server.event("", id="1")
        yield raw_http_server.event("7")
        yield raw_http_server.event("ignored", event="other")
        yield raw_http_server.event({"jsonrpc": "2.0", "id": request.id, "result": {"a": 1}})
        yield raw_http_server.event({"jsonrpc": "2.0", "id": request.id, "result": {"a": 2}})

    async with stream_events(events).listening() as server:
        result = await call(connections, http(server.url, era="modern"), "x")
        assert result == {"a": 1}
        assert len(server.asked) == 1


async def test_an_event_over_the_limit_ends_the_call(connections: ConnectionPool):
    async def events(request: RecordedRequest) -> Events:
        yield raw_http_server.STREAM
        while True:
            yield b"data: " + b"x" * 10_000

    async with stream_events(events).listening() as server:
        endpoint = http(server.url, era="modern", max_body=50_000)
        assert (await failure(call(connections, endpoint, "x"))).code == "response_too_large"


async def test_a_stream_over_its_limit_ends_the_call(connections: ConnectionPool):
    async def events(request: RecordedRequest) -> Events:
        yield raw_http_server.STREAM
        while True:
            yield b":" + b"x" * 1000 + b"\n\n"

    async with stream_events(events).listening() as server:
        endpoint = http(server.url, era="modern", max_body=10_000)
        assert (await failure(call(connections, endpoint, "x"))).code == "response_too_large"


async def test_a_stream_of_comments_only_ends_at_the_deadline(connections: ConnectionPool):
    async with stream_events(
        lambda _: raw_http_server.drip(b": still here\n\n")
    ).listening() as server:
        endpoint = http(server.url, era="modern")
        started_at = time.monotonic()
        error = await failure(call(connections, endpoint, "x", timeout_s=LIMIT_S))
        assert error.code == "call_timeout"
        assert time.monotonic() - started_at < LIMIT_S + 1
        async with asyncio.timeout(5):
            await server.cut.wait()
        assert server.gone == 1


async def test_a_call_on_a_broken_stream_isnt_repeated(connections: ConnectionPool):
    async def events(request: RecordedRequest) -> Events:
        yield raw_http_server.STREAM + raw_http_server.event("", id="7", retry="1")

    async with stream_events(events).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
        assert (error.code, error.sent) == ("server_unreachable", True)
        assert len(server.asked) == 1


async def test_a_listing_on_a_broken_stream_is_repeated_once(connections: ConnectionPool):
    async def events(request: RecordedRequest) -> Events:
        yield raw_http_server.STREAM

    async with stream_events(events).listening() as server:
        endpoint = http(server.url, era="modern")
        error = await failure(connections.send_request(endpoint, "tools/list", holder=HOLDER))
        assert error.code == "server_unreachable"
        assert len(server.asked) == 2


# --- deadlines


async def test_a_timeout_before_the_connection_reports_that_nothing_was_sent(
    connections: ConnectionPool, monkeypatch: pytest.MonkeyPatch
):
    async def hang(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("bonobot.core.http.egress.resolve_host", hang)
    endpoint = http("http://slow.example/mcp", era="modern")
    error = await failure(call(connections, endpoint, "x", timeout_s=LIMIT_S))
    assert (error.code, error.sent) == ("server_unreachable", False)
    endpoint = replace(endpoint, connect_s=LIMIT_S)
    error = await failure(call(connections, endpoint, "x"))
    assert (error.code, error.sent) == ("server_unreachable", False)


async def test_a_hanging_server_doesnt_delay_others(connections: ConnectionPool, modern_url: str):
    async def silent(request: RecordedRequest) -> Events:
        yield raw_http_server.STREAM
        await asyncio.Event().wait()

    async with stream_events(silent).listening() as server:
        hanging_calls = [
            asyncio.ensure_future(
                failure(call(connections, http(server.url, era="modern"), "x", timeout_s=1))
            )
            for _ in range(20)
        ]
        began = time.monotonic()
        await call(connections, http(modern_url, era="modern"), "add", a=1, b=1)
        assert time.monotonic() - began < 0.9
        assert {error.code for error in await asyncio.gather(*hanging_calls)} == {"call_timeout"}


def test_all_http_errors_of_the_client_are_handled():
    assert issubclass(httpx2.SSEError, httpx2.TransportError)
    assert issubclass(httpx2.TransportError, httpx2.HTTPError)
    assert json.loads(jsonrpc.encode_message({"a": "\ud800ü"})) == {"a": "\ud800ü"}
