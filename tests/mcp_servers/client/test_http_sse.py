"""HTTP+SSE is detected when nothing newer responds, stored, and detected again if wrong."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from mcp_servers.client.endpoint import MIB, WIRE_FIELD
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import HOLDER, Clock, call, failure, http, text_of, until
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest, SseHttp, build_event

SSE = {"era": "handshake", "discovery": {WIRE_FIELD: "sse"}}
PROGRESS = [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


def ok(request: RecordedRequest) -> bytes:
    """Answer every message with a text."""
    return build_event(request, {"content": [{"type": "text", "text": "ok"}]})


def tool(
    answers: dict[str, Callable[[RecordedRequest], bytes]],
) -> Callable[[RecordedRequest], bytes]:
    """Answer the named tools with their handlers, and everything else with a text."""

    def respond(request: RecordedRequest) -> bytes:
        handler = request.method == "tools/call" and answers.get(request.tool)
        return handler(request) if handler else ok(request)

    return respond


# --- real servers


async def test_the_sdks_server_is_found_over_http_sse(connections: ConnectionPool, sse_url: str):
    progress_reports: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        progress_reports.append((progress, total, message))

    endpoint = http(sse_url)
    declarations = await connections.fetch_declarations(endpoint)
    assert (declarations.era, declarations.discovery[WIRE_FIELD], declarations.notices) == (
        "handshake",
        "sse",
        (),
    )
    assert {item.name for item in declarations.items} >= {"add", "slow", "review"}
    assert text_of(await call(connections, endpoint, "slow", on_progress=on_progress)) == "done"
    assert progress_reports == PROGRESS


async def test_a_call_that_is_given_up_is_canceled_at_the_server(
    connections: ConnectionPool, sse_url: str
):
    endpoint = http(sse_url, **SSE)
    error = await failure(call(connections, endpoint, "wait", key="sse", timeout_s=0.5))
    assert (error.code, error.sent) == ("call_timeout", True)
    async with asyncio.timeout(5):
        while text_of(await call(connections, endpoint, "outcomes", key="sse")) != "cancelled":
            pass


@pytest.fixture
def everything_sse(node_server: Callable[[str], str], free_port: int) -> Iterator[str]:
    with subprocess.Popen(
        [node_server("mcp-server-everything"), "sse"],
        env={"PATH": os.environ["PATH"], "PORT": str(free_port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr is not None
        for line in server.stderr:
            if str(free_port) in line:
                break
        yield f"http://127.0.0.1:{free_port}/sse"
        server.terminate()


@pytest.mark.npm
async def test_the_everything_server_is_found_and_called(
    connections: ConnectionPool, everything_sse: str
):
    endpoint = http(everything_sse)
    declarations = await connections.fetch_declarations(endpoint)
    assert (declarations.era, declarations.discovery[WIRE_FIELD], declarations.notices) == (
        "handshake",
        "sse",
        (),
    )
    assert [item for item in declarations.items if item.fault] == []
    known_endpoint = http(everything_sse, era=declarations.era, discovery=declarations.discovery)
    answers = await asyncio.gather(
        *(
            call(connections, known_endpoint, "echo", message=str(n), holder=f"session:{n}")
            for n in range(9)
        )
    )
    assert [text_of(answer) for answer in answers] == [f"Echo: {n}" for n in range(9)]


# --- detection


async def test_the_detected_transport_is_used_next_time(connections: ConnectionPool):
    async with RawHttp(SseHttp(ok)).listening() as server:
        handshake = await connections.perform_handshake(http(server.url), holder=HOLDER)
        assert (handshake.era, handshake.protocol_version) == ("handshake", "2024-11-05")
        assert server.methods()[:3] == ["server/discover", "initialize", "GET"]
        server.asked.clear()
        endpoint = http(server.url, era=handshake.era, discovery=handshake.discovery)
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert server.methods() == ["GET", "initialize", "notifications/initialized", "tools/call"]
        assert {request.path for request in server.asked[1:]} == {"/messages?n=2"}


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_a_server_without_a_stream_keeps_its_first_error(
    connections: ConnectionPool, status: int
):
    refusal = raw_http_server.response(status, b"not here", "text/plain")
    async with RawHttp(lambda request: refusal).listening() as server:
        error = await failure(connections.perform_handshake(http(server.url), holder=HOLDER))
        assert (error.code, error.http_status) == ("protocol_error", status)
        assert server.methods() == ["server/discover", "initialize", "GET"]


@pytest.mark.parametrize(
    "refusal",
    [
        lambda request: raw_http_server.error(request, -32022, 400),
        lambda request: raw_http_server.response(500),
        lambda request: raw_http_server.response(401),
    ],
)
async def test_sse_isnt_tried_after_a_modern_error_or_an_outage(
    connections: ConnectionPool, refusal: Callable[[RecordedRequest], bytes]
):
    def respond(request: RecordedRequest) -> bytes:
        return (
            raw_http_server.response(404)
            if request.method == "server/discover"
            else refusal(request)
        )

    async with RawHttp(respond).listening() as server:
        await failure(connections.perform_handshake(http(server.url), holder=HOLDER))
        assert server.methods() == ["server/discover", "initialize"]


async def test_a_stream_that_needs_credentials_is_reported(connections: ConnectionPool):
    def respond(request: RecordedRequest) -> bytes:
        return raw_http_server.response(401 if request.verb == "GET" else 405)

    async with RawHttp(respond).listening() as server:
        error = await failure(connections.perform_handshake(http(server.url), holder=HOLDER))
        assert error.code == "needs_reauth"


async def test_a_server_that_was_upgraded_is_detected_again(connections: ConnectionPool):
    def respond_with_other_url(request: RecordedRequest) -> bytes:
        if request.verb == "GET":
            return raw_http_server.response(405)
        if request.method == "server/discover":
            return raw_http_server.discovery(request)
        return raw_http_server.text(request, "modern")

    async with RawHttp(respond_with_other_url).listening() as server:
        assert text_of(await call(connections, http(server.url, **SSE), "x")) == "modern"
        assert server.methods() == ["GET", "server/discover", "tools/call"]


async def test_a_server_that_was_downgraded_is_detected_again(connections: ConnectionPool):
    async with RawHttp(SseHttp(ok)).listening() as server:
        for era in ("modern", "handshake"):
            endpoint = http(server.url, era=era, discovery={})
            assert text_of(await call(connections, endpoint, "x")) == "ok"


async def test_a_server_cant_choose_the_transport_itself(connections: ConnectionPool):
    def respond(request: RecordedRequest) -> bytes:
        return raw_http_server.discovery(request, **{WIRE_FIELD: "sse"})

    async with RawHttp(respond).listening() as server:
        greeting = await connections.perform_handshake(http(server.url), holder=HOLDER)
        assert WIRE_FIELD not in greeting.discovery


# --- the endpoint of messages


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:1/messages",
        "https://127.0.0.1/messages",
        "//169.254.169.254/latest",
        "http://user@127.0.0.1/",
        "http://[",
        "file:///etc/passwd",
    ],
)
async def test_messages_are_sent_only_to_the_origin_of_the_stream(
    connections: ConnectionPool, address: str
):
    async with RawHttp(SseHttp(ok, address)).listening() as server:
        error = await failure(call(connections, http(server.url, **SSE), "x"))
        assert (error.code, error.field, error.sent) == ("egress_denied", "url", False)
        assert server.methods() == ["GET"]
        await until(lambda: server.gone == 1)


async def test_credentials_are_sent_with_the_stream_and_the_messages(connections: ConnectionPool):
    async with RawHttp(SseHttp(ok)).listening() as server:
        endpoint = http(server.url, headers={"Authorization": "Bearer s3cret"}, **SSE)
        await call(connections, endpoint, "x")
        assert {request.headers["authorization"] for request in server.asked} == {"Bearer s3cret"}


async def test_a_stream_without_an_endpoint_event_times_out(connections: ConnectionPool):
    async def silent() -> AsyncIterator[bytes]:
        yield raw_http_server.STREAM + b": hello\n\n"
        await asyncio.Event().wait()

    def respond(request: RecordedRequest) -> Any:
        return silent() if request.verb == "GET" else raw_http_server.response(405)

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, start_s=0.2, **SSE)
        error = await failure(call(connections, endpoint, "x"))
        assert (error.http_status, error.sent) == (405, False)
        await until(lambda: server.gone == 2)


# --- sessions


async def test_each_holder_has_its_own_stream_and_closes_it(connections: ConnectionPool):
    wire = SseHttp(ok)
    async with RawHttp(wire).listening() as server:
        endpoint = http(server.url, **SSE)
        for holder in ("session:a", "session:b", "session:a"):
            await call(connections, endpoint, "x", holder=holder)
        assert (wire.opened, server.gone) == (2, 0)
        await connections.release("session:a")
        await until(lambda: server.gone == 1)
        await connections.forget_server(endpoint.server_id)
        await until(lambda: server.gone == 2)


async def test_an_idle_stream_is_closed_and_opened_again(connections: ConnectionPool, clock: Clock):
    wire = SseHttp(ok)
    async with RawHttp(wire).listening() as server:
        endpoint = http(server.url, **SSE)
        await call(connections, endpoint, "x")
        clock.now += 301
        await connections.close_idle()
        await until(lambda: server.gone == 1)
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert wire.opened == 2


async def test_a_cancelled_opening_leaves_no_stream(connections: ConnectionPool):
    wire = SseHttp(ok)
    wire._greeting = lambda request: b""  # type: ignore[method-assign]
    async with RawHttp(wire).listening() as server:
        error = await failure(call(connections, http(server.url, **SSE), "x", timeout_s=0.3))
        assert error.code == "server_unreachable"
        await until(lambda: server.gone == 1)


async def test_a_stream_that_ended_is_reopened(connections: ConnectionPool):
    wire = SseHttp(ok)
    async with RawHttp(wire).listening() as server:
        endpoint = http(server.url, **SSE)
        await call(connections, endpoint, "x")
        wire.hang_up()
        async with asyncio.timeout(5):
            while wire.opened == 1:
                await connections.perform_handshake(endpoint, holder=HOLDER)
                await asyncio.sleep(0)
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert wire.opened == 2


async def test_a_session_that_the_server_lost_is_reopened_once(connections: ConnectionPool):
    wire = SseHttp(ok)
    async with RawHttp(wire).listening() as server:
        endpoint = http(server.url, **SSE)
        await call(connections, endpoint, "x")
        wire.streams.clear()
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert server.methods().count("tools/call") == 3


async def test_a_call_that_loses_its_stream_isnt_repeated(connections: ConnectionPool):
    def hang_up(request: RecordedRequest) -> bytes:
        wire.hang_up()
        return b""

    wire = SseHttp(tool({"bad": hang_up}))
    async with RawHttp(wire).listening() as server:
        endpoint = http(server.url, **SSE)
        error = await failure(call(connections, endpoint, "bad"))
        assert (error.code, error.sent) == ("server_unreachable", True)
        assert server.methods().count("tools/call") == 1
        assert text_of(await call(connections, endpoint, "good")) == "ok"


async def test_a_refused_message_fails_only_its_own_request(connections: ConnectionPool):
    refusal = raw_http_server.response(503, b"busy", "text/plain")
    wire = SseHttp(tool({"bad": lambda request: refusal, "slow": lambda request: b""}))
    async with RawHttp(wire).listening() as server:
        endpoint = http(server.url, **SSE)
        slow = asyncio.ensure_future(call(connections, endpoint, "slow"))
        await until(lambda: "tools/call" in server.methods())
        error = await failure(call(connections, endpoint, "bad"))
        assert (error.code, error.http_status) == ("server_unreachable", 503)
        assert not slow.done()
        slow.cancel()


# --- limits


async def test_an_invalid_message_doesnt_affect_others(connections: ConnectionPool):
    def answer(request: RecordedRequest) -> bytes:
        unknown = {"jsonrpc": "2.0", "id": request.id + 99, "result": {}}
        return (
            raw_http_server.event("{broken", event="nonsense")
            + raw_http_server.event(unknown)
            + ok(request)
        )

    async with RawHttp(SseHttp(tool({"x": answer}))).listening() as server:
        assert text_of(await call(connections, http(server.url, **SSE), "x")) == "ok"


async def test_an_event_over_the_limit_ends_the_stream(connections: ConnectionPool):
    wire = SseHttp(tool({"big": lambda request: build_event(request, {"a": "x" * 4 * MIB})}))
    async with RawHttp(wire).listening() as server:
        endpoint = http(server.url, **SSE)
        assert (await failure(call(connections, endpoint, "big"))).code == "response_too_large"
        assert text_of(await call(connections, endpoint, "x")) == "ok"


async def test_a_stream_can_carry_sixteen_bodies_between_two_requests(connections: ConnectionPool):
    half = build_event(RecordedRequest("POST", {}, {"id": 99}), {"a": "x" * 800}) * 10
    wire = SseHttp(tool({"x": lambda request: half + ok(request)}))
    async with RawHttp(wire).listening() as server:
        endpoint = http(server.url, max_body=1000, **SSE)
        for _ in range(4):
            assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert wire.opened == 1
        for stream in wire.streams.values():
            for _ in range(20):
                stream.put_nowait(b": comment" * 100 + b"\n\n")
        await until(lambda: server.gone == 1)
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert wire.opened == 2
