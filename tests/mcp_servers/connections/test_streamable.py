"""Streamable HTTP against real and hostile endpoints: eras, sessions, statuses, bounds."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION

from mcp_servers.connections import wire
from mcp_servers.connections.errors import UpstreamError
from mcp_servers.connections.pool import Connections
from tests.mcp_servers.connections.conftest import HOLDER, call, http, text_of
from tests.servers import raw_http
from tests.servers.raw_http import Asked, RawHttp

LIMIT_S = 0.3
Events = AsyncIterator[bytes]


async def failure(asked: Any) -> UpstreamError:
    """Return what a request fails with."""
    with pytest.raises(UpstreamError) as error:
        await asked
    assert "a server" in str(error.value)
    return error.value


def modern(respond: Callable[[Asked], Any]) -> RawHttp:
    """Return a modern endpoint whose tool calls `respond` answers."""
    return RawHttp(
        lambda asked: (
            raw_http.discovery(asked) if asked.method == "server/discover" else respond(asked)
        )
    )


class HandshakeHttp:
    """What a server of the handshake era answers: sessions that it can lose."""

    def __init__(self, respond: Callable[[Asked], Any], *, lost: bytes | None = None) -> None:
        self.known: set[str] = set()
        self.opened = 0
        self._respond = respond
        self._lost = lost

    def __call__(self, asked: Asked) -> Any:
        session = asked.headers.get("mcp-session-id", "")
        if asked.method == "initialize":
            self.opened += 1
            self.known.add(f"s{self.opened}")
            return raw_http.initialization(asked, f"s{self.opened}")
        if asked.headers.get("mcp-protocol-version") == wire.MODERN:
            return raw_http.response(400, b"Bad Request: no session", "text/plain")
        if session not in self.known:
            return self._lost or raw_http.response(404)
        if asked.verb == "DELETE":
            self.known.discard(session)
            return raw_http.response(204, kind="")
        if asked.id is None:
            return raw_http.response(202, kind="")
        return self._respond(asked)


def test_the_versions_that_we_speak_are_those_of_the_sdk():
    assert wire.MODERN == LATEST_MODERN_VERSION
    assert wire.HANDSHAKE == HANDSHAKE_PROTOCOL_VERSIONS


# --- modern, against the SDK's server


async def test_a_modern_server_is_called_without_a_handshake(
    connections: Connections, modern_url: str
):
    endpoint = http(modern_url, era="modern")
    result = await call(connections, endpoint, "add", a=2, b=3)
    assert result["structuredContent"] == {"result": 5}
    assert result["resultType"] == "complete"


async def test_a_modern_server_is_found_and_remembered(connections: Connections, modern_url: str):
    endpoint = http(modern_url)
    assert text_of(await call(connections, endpoint, "echo", text="ü")) == "ü"
    greeting = await connections.greet(endpoint, holder=HOLDER)
    assert (greeting.era, greeting.server_info["name"]) == ("modern", "modern-test-server")
    assert greeting.instructions.startswith("Add with")


async def test_progress_of_a_modern_call_is_told_in_order(
    connections: Connections, modern_url: str
):
    told: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    endpoint = http(modern_url, era="modern")
    result = await call(connections, endpoint, "slow", on_progress=on_progress)
    assert text_of(result) == "done"
    assert told == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def test_a_name_that_is_not_ascii_travels_in_the_headers(
    connections: Connections, modern_url: str
):
    params = {"name": "Grüße 👋", "arguments": {"name": "Bo"}}
    endpoint = http(modern_url, era="modern")
    result = await connections.request(endpoint, "prompts/get", params, holder=HOLDER)
    assert result["messages"][0]["content"]["text"] == "Grüße, Bo!"


async def test_arguments_are_mirrored_where_the_schema_asks_for_it(
    connections: Connections, modern_url: str
):
    endpoint = http(modern_url, era="modern")
    survey = await connections.survey(endpoint)
    schema = next(item.payload["inputSchema"] for item in survey.items if item.name == "routed")
    result = await call(connections, endpoint, "routed", input_schema=schema, region="eu ü")
    assert text_of(result) == "eu ü x 1"
    error = await failure(call(connections, endpoint, "routed", region="eu"))
    assert error.rpc_code == -32020


async def test_a_call_given_up_is_cancelled_and_the_server_stays_in_use(
    connections: Connections, modern_url: str
):
    endpoint = http(modern_url, era="modern")
    error = await failure(call(connections, endpoint, "wait", key="k1", timeout_s=LIMIT_S))
    assert (error.code, error.sent, error.retryable) == ("call_timeout", True, True)
    async with asyncio.timeout(5):
        while text_of(await call(connections, endpoint, "outcomes", key="k1")) != "cancelled":
            pass


async def test_an_error_of_a_modern_server_keeps_its_code(
    connections: Connections, modern_url: str
):
    endpoint = http(modern_url, era="modern")
    error = await failure(connections.request(endpoint, "no/such", {}, holder=HOLDER))
    assert (error.rpc_code, error.http_status) == (-32601, 404)
    assert error.code == "upstream_error"


async def test_calls_of_all_holders_share_one_pool(connections: Connections, modern_url: str):
    endpoint = http(modern_url, era="modern")
    asked = [call(connections, endpoint, "add", a=n, b=1, holder=f"session:{n}") for n in range(20)]
    results = await asyncio.gather(*asked)
    assert [result["structuredContent"]["result"] for result in results] == list(range(1, 21))
    assert len(connections._upstreams) == 1


# --- the handshake era, against the TypeScript SDK's server


@pytest.fixture
def everything_url(node_server: Callable[[str], str], free_port: int) -> Iterator[str]:
    command = [node_server("mcp-server-everything"), "streamableHttp"]
    with subprocess.Popen(
        command,
        env={"PATH": os.environ["PATH"], "PORT": str(free_port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr is not None
        for line in server.stderr:
            if str(free_port) in line:
                break
        yield f"http://127.0.0.1:{free_port}/mcp"
        server.terminate()


@pytest.mark.npm
async def test_a_server_of_the_handshake_era_is_found_and_called(
    connections: Connections, everything_url: str
):
    endpoint = http(everything_url)
    assert text_of(await call(connections, endpoint, "echo", message="hi")) == "Echo: hi"
    greeting = await connections.greet(endpoint, holder=HOLDER)
    assert (greeting.era, greeting.protocol_version) == ("handshake", "2025-11-25")
    survey = await connections.survey(endpoint)
    assert {item.kind for item in survey.items} >= {"tool", "prompt", "resource", "instructions"}
    assert survey.notices == ()
    assert [item for item in survey.items if item.fault] == []


# --- eras


async def test_each_holder_has_a_session_of_its_own_and_ends_it(connections: Connections):
    era = HandshakeHttp(raw_http.text)
    async with RawHttp(era).listening() as server:
        endpoint = http(server.url)
        for holder in ("session:a", "session:b", "session:a"):
            await call(connections, endpoint, "x", holder=holder)
        assert era.opened == 2
        await connections.release("session:a")
        assert era.known == {"s2"}
        asked = server.asked[-2]
    assert asked.headers["mcp-session-id"] == "s1"
    assert asked.headers["mcp-protocol-version"] == "2025-11-25"
    assert "_meta" not in asked.message["params"]


@pytest.mark.parametrize(
    "lost",
    [
        raw_http.response(404),
        raw_http.response(
            400,
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No valid session ID"}}',
        ),
    ],
)
async def test_a_lost_session_is_opened_anew_once(connections: Connections, lost: bytes):
    era = HandshakeHttp(raw_http.text, lost=lost)
    async with RawHttp(era).listening() as server:
        endpoint = http(server.url, era="handshake")
        await call(connections, endpoint, "x")
        era.known.clear()
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert era.opened == 2
        server.respond = lambda asked: (
            raw_http.initialization(asked, "s") if asked.method == "initialize" else lost
        )
        assert (await failure(call(connections, endpoint, "x"))).http_status in (404, 400)


async def test_calls_that_lose_a_session_together_open_one(connections: Connections):
    era = HandshakeHttp(raw_http.text)
    async with RawHttp(era).listening() as server:
        endpoint = http(server.url, era="handshake")
        await call(connections, endpoint, "x")
        era.known.clear()
        await asyncio.gather(*(call(connections, endpoint, "x") for _ in range(5)))
        assert era.opened == 2


async def test_without_a_session_number_a_404_is_an_answer(connections: Connections):
    def respond(asked: Asked) -> bytes:
        if asked.method == "initialize":
            return raw_http.initialization(asked)
        return raw_http.response(202 if asked.id is None else 404, kind="")

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake")
        assert (await failure(call(connections, endpoint, "x"))).http_status == 404
        assert server.methods().count("initialize") == 1
        await connections.release(HOLDER)
        assert "DELETE" not in server.methods()


@pytest.mark.parametrize(
    "refusal",
    [
        lambda asked: raw_http.response(400, b"Bad Request", "text/plain"),
        lambda asked: raw_http.response(404, b"<html>", "text/html"),
        lambda asked: raw_http.response(405),
        lambda asked: raw_http.response(500),
        lambda asked: raw_http.error(asked, -32600, 400),
        lambda asked: raw_http.error(asked, -32601, 200),
        lambda asked: raw_http.error(asked, -32022, 400, {"supported": ["2025-11-25"]}),
        lambda asked: raw_http.error(asked, -32022, 400),
        lambda asked: raw_http.result(asked, {"supportedVersions": ["2025-06-18"]}),
        lambda asked: raw_http.result(asked, {"something": "else"}),
    ],
)
async def test_whatever_refuses_the_probe_gets_a_handshake(
    connections: Connections, refusal: Callable[[Asked], bytes]
):
    def respond(asked: Asked) -> bytes:
        if asked.method == "server/discover":
            return refusal(asked)
        if asked.method == "initialize":
            return raw_http.initialization(asked)
        return raw_http.response(202, kind="")

    async with RawHttp(respond).listening() as server:
        greeting = await connections.greet(http(server.url), holder=HOLDER)
    assert greeting.era == "handshake"


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (lambda asked: raw_http.response(401), "needs_reauth"),
        (lambda asked: raw_http.response(503), "server_unreachable"),
        (lambda asked: raw_http.error(asked, -32020), "upstream_error"),
        (lambda asked: raw_http.error(asked, -32021), "upstream_error"),
        (
            lambda asked: raw_http.error(asked, -32022, 400, {"supported": ["2030-01-01"]}),
            "protocol_error",
        ),
    ],
)
async def test_an_outage_or_a_modern_refusal_is_not_answered_with_a_handshake(
    connections: Connections, refusal: Callable[[Asked], bytes], code: str
):
    async with RawHttp(refusal).listening() as server:
        error = await failure(connections.greet(http(server.url), holder=HOLDER))
        assert error.code == code
        assert "initialize" not in server.methods()


async def test_a_stored_modern_era_that_is_wrong_is_found_anew(connections: Connections):
    era = HandshakeHttp(raw_http.text)
    async with RawHttp(era).listening() as server:
        endpoint = http(server.url, era="modern")
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert server.methods().count("server/discover") == 1
        assert era.opened == 1


async def test_a_stored_handshake_era_that_is_wrong_is_found_anew(
    connections: Connections, modern_url: str
):
    def respond(asked: Asked) -> bytes:
        if asked.method == "initialize":
            return raw_http.error(asked, -32022, 400, {"supported": [wire.MODERN]})
        return raw_http.text(asked)

    async with modern(respond).listening() as server:
        endpoint = http(server.url, era="handshake")
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert server.methods() == ["initialize", "server/discover", "tools/call"]


async def test_a_refusal_that_a_modern_server_means_is_asked_for_once_more_only(
    connections: Connections,
):
    async with modern(lambda asked: raw_http.error(asked, -32000, 400)).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
        assert error.rpc_code == -32000
        assert server.methods() == ["tools/call", "server/discover"]


async def test_a_server_that_neither_discovers_nor_shakes_hands_says_why(connections: Connections):
    async with RawHttp(lambda asked: raw_http.response(404)).listening() as server:
        error = await failure(connections.greet(http(server.url, era="handshake"), holder=HOLDER))
    assert (error.code, error.http_status) == ("protocol_error", 404)
    assert "URL" in error.remedy


async def test_discovering_anew_looks_at_the_era_anew(connections: Connections):
    era = HandshakeHttp(raw_http.text)
    async with RawHttp(era).listening() as server:
        endpoint = http(server.url)
        assert (await connections.survey(endpoint)).era == "handshake"
        server.respond = lambda asked: raw_http.discovery(asked, tools=[])
        assert (await connections.survey(endpoint)).era == "modern"


# --- statuses


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_need_a_sign_in(connections: Connections, status: int):
    challenge = 'Bearer resource_metadata="https://a.example/x"'
    answer = raw_http.response(status, WWW_Authenticate=challenge)
    async with RawHttp(lambda asked: answer).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert (error.code, error.http_status) == ("needs_reauth", status)
    assert error.extra["challenge"] == challenge
    assert "credentials" in error.remedy


async def test_a_server_that_is_not_there_is_unreachable(connections: Connections, free_port: int):
    endpoint = http(f"http://127.0.0.1:{free_port}/mcp", era="modern")
    error = await failure(call(connections, endpoint, "x"))
    assert (error.code, error.sent, error.retryable) == ("server_unreachable", False, True)


async def test_a_server_is_used_again_once_it_is_back(connections: Connections):
    server = modern(raw_http.text)
    async with server.listening():
        endpoint = http(server.url, era="modern")
        await call(connections, endpoint, "x")
    async with server.listening():
        assert text_of(await call(connections, endpoint, "x")) == "ok"


async def test_a_busy_server_says_when_to_come_back(connections: Connections):
    answer = raw_http.response(429, Retry_After="7")
    async with RawHttp(lambda asked: answer).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert (error.code, error.http_status, error.retry_after) == ("server_unreachable", 429, 7)


async def test_a_broken_server_is_quoted(connections: Connections):
    answer = raw_http.response(500, b"no disk\x1b[31m", "text/plain")
    async with RawHttp(lambda asked: answer).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert (error.code, error.http_status) == ("upstream_error", 500)
    assert "no disk⟨U+001B⟩" in str(error)


async def test_a_redirect_is_refused_and_named(connections: Connections):
    answer = raw_http.response(307, Location="http://169.254.169.254/")
    async with RawHttp(lambda asked: answer).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert error.code == "redirect_refused"
    assert error.extra["location"] == "http://169.254.169.254/"


async def test_a_private_address_without_permission_is_refused(connections: Connections):
    async with modern(raw_http.text).listening() as server:
        endpoint = http(server.url, allow_private=False)
        error = await failure(connections.survey(endpoint))
        assert (error.code, error.sent) == ("private_address", False)
        assert "administrator" in error.remedy
        assert server.asked == []


@pytest.mark.parametrize(
    "headers", [{"X-Key": "sec\nret"}, {"X-Key": "secr\u0435t"}, {"bad name": "secret"}]
)
async def test_headers_that_can_not_be_sent_are_told_without_their_values(
    connections: Connections, headers: dict[str, str]
):
    async with modern(raw_http.text).listening() as server:
        error = await failure(call(connections, http(server.url, headers=headers), "x"))
    assert (error.code, error.sent) == ("server_unreachable", False)
    assert "header" in str(error)
    assert "sec" not in str(error)


async def test_credentials_go_out_in_every_era(connections: Connections):
    async with modern(raw_http.text).listening() as server:
        endpoint = http(server.url, headers={"Authorization": "Bearer abc"})
        await call(connections, endpoint, "x")
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer abc"}


# --- answers


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda asked: raw_http.response(200, b"<html>", "text/html"), "text/html"),
        (lambda asked: raw_http.response(202, kind=""), "nothing"),
        (lambda asked: raw_http.response(200, b"{"), "not JSON"),
        (lambda asked: raw_http.response(200, b"[" * 100 + b"]" * 100), "nested deeper"),
        (lambda asked: raw_http.response(200, b"[]"), "not asked for"),
        (
            lambda asked: raw_http.response(200, b'{"jsonrpc":"2.0","id":"1","result":{}}'),
            "not asked for",
        ),
        (lambda asked: raw_http.result(asked, 7), "not an object"),
    ],
)
async def test_what_is_no_answer_is_a_protocol_error(
    connections: Connections, answer: Callable[[Asked], bytes], why: str
):
    async with RawHttp(answer).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert (error.code, error.sent) == ("protocol_error", True)
    assert why in str(error)


async def test_a_compressed_body_is_refused_unread(connections: Connections):
    answer = raw_http.response(200, bytes(1000), Content_Encoding="gzip")
    async with RawHttp(lambda asked: answer).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
    assert error.code == "protocol_error"
    assert "gzip" in str(error)


async def test_a_body_over_the_bound_is_refused(connections: Connections):
    def respond(asked: Asked) -> bytes:
        return raw_http.text(asked, "x" * 5000)

    async with RawHttp(respond).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern", max_body=4000), "x"))
        assert error.code == "response_too_large"
        endpoint = http(server.url, era="modern", max_body=300)
        assert (await failure(call(connections, endpoint, "x"))).code == "response_too_large"


def streaming(events: Callable[[Asked], Events]) -> RawHttp:
    """Return a modern endpoint whose answers are streams of events."""
    return RawHttp(lambda asked: events(asked))


async def test_events_beside_the_answer_are_no_answer(connections: Connections):
    async def events(asked: Asked) -> Events:
        yield raw_http.STREAM + b": a comment\n\n"
        yield raw_http.event({"jsonrpc": "2.0", "id": 99, "result": {}})
        yield raw_http.event({"jsonrpc": "2.0", "id": asked.id, "method": "roots/list"})
        yield raw_http.event("", id="1")
        yield raw_http.event("7")
        yield raw_http.event("ignored", event="other")
        yield raw_http.event({"jsonrpc": "2.0", "id": asked.id, "result": {"a": 1}})
        yield raw_http.event({"jsonrpc": "2.0", "id": asked.id, "result": {"a": 2}})

    async with streaming(events).listening() as server:
        result = await call(connections, http(server.url, era="modern"), "x")
        assert result == {"a": 1}
        assert len(server.asked) == 1


async def test_an_event_over_the_bound_ends_the_call(connections: Connections):
    async def events(asked: Asked) -> Events:
        yield raw_http.STREAM
        while True:
            yield b"data: " + b"x" * 10_000

    async with streaming(events).listening() as server:
        endpoint = http(server.url, era="modern", max_line=50_000)
        assert (await failure(call(connections, endpoint, "x"))).code == "response_too_large"


async def test_a_stream_over_its_bound_ends_the_call(connections: Connections):
    async def events(asked: Asked) -> Events:
        yield raw_http.STREAM
        while True:
            yield b":" + b"x" * 1000 + b"\n\n"

    async with streaming(events).listening() as server:
        endpoint = http(server.url, era="modern", max_body=10_000)
        assert (await failure(call(connections, endpoint, "x"))).code == "response_too_large"


async def test_a_drip_of_comments_ends_at_the_deadline_and_hangs_up(connections: Connections):
    async def events(asked: Asked) -> Events:
        yield raw_http.STREAM
        while True:
            yield b": still here\n\n"
            await asyncio.sleep(0.01)

    async with streaming(events).listening() as server:
        endpoint = http(server.url, era="modern")
        began = time.monotonic()
        error = await failure(call(connections, endpoint, "x", timeout_s=LIMIT_S))
        assert error.code == "call_timeout"
        assert time.monotonic() - began < LIMIT_S + 1
        async with asyncio.timeout(5):
            await server.cut.wait()
        assert server.gone == 1


async def test_a_stream_that_breaks_off_is_not_asked_again(connections: Connections):
    async def events(asked: Asked) -> Events:
        yield raw_http.STREAM + raw_http.event("", id="7", retry="1")

    async with streaming(events).listening() as server:
        error = await failure(call(connections, http(server.url, era="modern"), "x"))
        assert (error.code, error.sent) == ("server_unreachable", True)
        assert len(server.asked) == 1


async def test_a_listing_that_breaks_off_is_asked_once_more(connections: Connections):
    async def events(asked: Asked) -> Events:
        yield raw_http.STREAM

    async with streaming(events).listening() as server:
        endpoint = http(server.url, era="modern")
        error = await failure(connections.request(endpoint, "tools/list", holder=HOLDER))
        assert error.code == "server_unreachable"
        assert len(server.asked) == 2


# --- streams of the handshake era


async def test_a_cut_stream_is_taken_up_again_after_its_last_event(connections: Connections):
    async def broken(asked: Asked) -> Events:
        yield raw_http.STREAM + raw_http.event("", id="41", retry="5")
        yield raw_http.event({"jsonrpc": "2.0", "method": "notifications/message"}, id="42")

    async def rest(asked: Asked) -> Events:
        answer = {"jsonrpc": "2.0", "id": 2, "result": {"resumed": asked.headers["last-event-id"]}}
        yield raw_http.STREAM + raw_http.event(answer, id="43")

    def respond(asked: Asked) -> Any:
        return broken(asked)

    era = HandshakeHttp(respond)
    async with RawHttp(
        lambda asked: rest(asked) if asked.verb == "GET" else era(asked)
    ).listening() as server:
        endpoint = http(server.url, era="handshake")
        assert await call(connections, endpoint, "x") == {"resumed": "42"}
        assert server.methods().count("tools/call") == 1


async def test_a_stream_that_is_cut_again_and_again_is_given_up(connections: Connections):
    async def broken(asked: Asked) -> Events:
        yield raw_http.CHUNKED + raw_http.chunk(raw_http.event("", id="41", retry="1"))

    era = HandshakeHttp(broken)

    def respond(asked: Asked) -> Any:
        return broken(asked) if asked.verb == "GET" else era(asked)

    async with RawHttp(respond).listening() as server:
        error = await failure(call(connections, http(server.url, era="handshake"), "x"))
        assert (error.code, error.sent) == ("server_unreachable", True)
        assert server.methods().count("tools/call") == 1
        assert server.methods().count("GET") == 8


async def test_a_call_given_up_in_a_session_is_cancelled_by_its_number(connections: Connections):
    told = asyncio.Event()

    async def silent(asked: Asked) -> Events:
        yield raw_http.STREAM
        await asyncio.Event().wait()

    era = HandshakeHttp(silent)

    def respond(asked: Asked) -> Any:
        if asked.method == "notifications/cancelled":
            told.set()
        return era(asked)

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake")
        error = await failure(call(connections, endpoint, "x", timeout_s=LIMIT_S))
        assert error.code == "call_timeout"
        async with asyncio.timeout(5):
            await told.wait()
        number = next(asked.id for asked in server.asked if asked.method == "tools/call")
        assert server.asked[-1].message["params"] == {"requestId": number}


async def test_progress_and_questions_come_on_the_stream_of_a_call(connections: Connections):
    answered = asyncio.Event()
    told = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async def events(asked: Asked) -> Events:
        token = asked.message["params"]["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": 1}
        notice = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        yield raw_http.STREAM + raw_http.event(notice)
        yield raw_http.event({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
        await answered.wait()
        yield raw_http.event({"jsonrpc": "2.0", "id": asked.id, "result": {}})

    era = HandshakeHttp(events)

    def respond(asked: Asked) -> Any:
        if asked.id == "q":
            answered.set()
            return raw_http.response(202, kind="")
        return era(asked)

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake")
        await call(connections, endpoint, "x", on_progress=on_progress)
        answer = next(asked.message for asked in server.asked if asked.id == "q")
    assert told == [(1, None, None)]
    assert answer["error"]["code"] == -32601
    assert "not supported" in answer["error"]["message"]


async def test_a_session_that_can_not_be_ended_is_left(connections: Connections):
    era = HandshakeHttp(raw_http.text)

    def respond(asked: Asked) -> Any:
        return raw_http.response(500) if asked.verb == "DELETE" else era(asked)

    async with RawHttp(respond).listening() as server:
        await call(connections, http(server.url, era="handshake"), "x")
        await connections.release(HOLDER)
        assert server.methods()[-1] == "DELETE"


# --- deadlines


async def test_a_deadline_before_the_connection_says_that_nothing_was_sent(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
):
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("bonobot.lib.egress._system_resolve", never)
    endpoint = http("http://slow.example/mcp", era="modern")
    error = await failure(call(connections, endpoint, "x", timeout_s=LIMIT_S))
    assert (error.code, error.sent) == ("server_unreachable", False)
    endpoint = replace(endpoint, connect_s=LIMIT_S)
    error = await failure(call(connections, endpoint, "x"))
    assert (error.code, error.sent) == ("server_unreachable", False)


async def test_a_server_that_hangs_delays_no_other(connections: Connections, modern_url: str):
    async def silent(asked: Asked) -> Events:
        yield raw_http.STREAM
        await asyncio.Event().wait()

    async with streaming(silent).listening() as server:
        hanging = [
            asyncio.ensure_future(
                failure(call(connections, http(server.url, era="modern"), "x", timeout_s=1))
            )
            for _ in range(20)
        ]
        began = time.monotonic()
        await call(connections, http(modern_url, era="modern"), "add", a=1, b=1)
        assert time.monotonic() - began < 0.9
        assert {error.code for error in await asyncio.gather(*hanging)} == {"call_timeout"}


def test_the_http_errors_of_the_client_are_all_foreseen():
    assert issubclass(httpx2.SSEError, httpx2.TransportError)
    assert issubclass(httpx2.TransportError, httpx2.HTTPError)
    assert json.loads(wire.encode({"a": "\ud800ü"})) == {"a": "\ud800ü"}
