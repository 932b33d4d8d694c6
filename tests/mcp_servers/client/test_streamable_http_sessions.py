"""Sessions of the handshake era: one per holder, renewed when lost, with resumed streams."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from mcp_servers.client import streamable_http
from mcp_servers.client.answer_server_requests import Host
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import HOLDER, call, failure, http, text_of, until
from tests.servers import raw_http_server
from tests.servers.raw_http_server import HandshakeHttp, RawHttp, RecordedRequest

LIMIT_S = 0.3
ASKED = frozenset({"elicitation"})
Events = AsyncIterator[bytes]


async def test_the_sdks_server_is_called_in_a_session(connections: ConnectionPool, modern_url: str):
    reports: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    endpoint = http(modern_url, era="handshake")
    assert (
        await connections.perform_handshake(endpoint, holder=HOLDER)
    ).protocol_version == "2025-11-25"
    assert text_of(await call(connections, endpoint, "slow", on_progress=on_progress)) == "done"
    assert [message for _, _, message in reports] == ["step 1", "step 2", "step 3"]
    error = await failure(call(connections, endpoint, "wait", key="k2", timeout_s=LIMIT_S))
    assert error.code == "call_timeout"
    async with asyncio.timeout(5):
        while text_of(await call(connections, endpoint, "outcomes", key="k2")) != "cancelled":
            pass


async def test_each_holder_has_its_own_session_and_ends_it(connections: ConnectionPool):
    era = HandshakeHttp(raw_http_server.text)
    async with RawHttp(era).listening() as server:
        endpoint = http(server.url)
        for holder in ("session:a", "session:b", "session:a"):
            await call(connections, endpoint, "x", holder=holder)
        assert era.opened == 2
        await connections.release("session:a")
        assert era.known == {"s2"}
        request = server.asked[-2]
    assert request.headers["mcp-session-id"] == "s1"
    assert request.headers["mcp-protocol-version"] == "2025-11-25"
    assert "_meta" not in request.message["params"]


@pytest.mark.parametrize(
    "lost",
    [
        raw_http_server.response(404),
        raw_http_server.response(
            400,
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No valid session ID"}}',
        ),
    ],
)
async def test_a_lost_session_is_reopened_once(connections: ConnectionPool, lost: bytes):
    era = HandshakeHttp(raw_http_server.text, lost=lost)
    async with RawHttp(era).listening() as server:
        endpoint = http(server.url, era="handshake")
        await call(connections, endpoint, "x")
        era.known.clear()
        assert text_of(await call(connections, endpoint, "x")) == "ok"
        assert era.opened == 2
        server.respond = lambda request: (
            raw_http_server.initialization(request, "s") if request.method == "initialize" else lost
        )
        assert (await failure(call(connections, endpoint, "x"))).http_status in (404, 400)


async def test_calls_that_lose_a_session_together_reopen_one(connections: ConnectionPool):
    era = HandshakeHttp(raw_http_server.text)
    async with RawHttp(era).listening() as server:
        endpoint = http(server.url, era="handshake")
        await call(connections, endpoint, "x")
        era.known.clear()
        await asyncio.gather(*(call(connections, endpoint, "x") for _ in range(5)))
        assert era.opened == 2


async def test_without_a_session_id_a_404_is_an_error(connections: ConnectionPool):
    def respond(request: RecordedRequest) -> bytes:
        if request.method == "initialize":
            return raw_http_server.initialization(request)
        return raw_http_server.response(202 if request.id is None else 404, kind="")

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake")
        assert (await failure(call(connections, endpoint, "x"))).http_status == 404
        assert server.methods().count("initialize") == 1
        await connections.release(HOLDER)
        assert "DELETE" not in server.methods()


# --- streams


async def test_a_broken_stream_is_resumed_after_its_last_event(connections: ConnectionPool):
    async def broken(request: RecordedRequest) -> Events:
        yield raw_http_server.STREAM + raw_http_server.event("", id="41", retry="5")
        yield raw_http_server.event({"jsonrpc": "2.0", "method": "notifications/message"}, id="42")

    async def resume(request: RecordedRequest) -> Events:
        response = {
            "jsonrpc": "2.0",
            "id": 2,
            "result": {"resumed": request.headers["last-event-id"]},
        }
        yield raw_http_server.STREAM + raw_http_server.event(response, id="43")

    def respond(request: RecordedRequest) -> Any:
        return broken(request)

    era = HandshakeHttp(respond)
    async with RawHttp(
        lambda request: resume(request) if request.verb == "GET" else era(request)
    ).listening() as server:
        endpoint = http(server.url, era="handshake")
        assert await call(connections, endpoint, "x") == {"resumed": "42"}
        assert server.methods().count("tools/call") == 1


async def test_a_stream_that_breaks_repeatedly_is_given_up(connections: ConnectionPool):
    async def broken(request: RecordedRequest) -> Events:
        yield raw_http_server.CHUNKED + raw_http_server.chunk(
            raw_http_server.event("", id="41", retry="1")
        )

    era = HandshakeHttp(broken)

    def respond(request: RecordedRequest) -> Any:
        return broken(request) if request.verb == "GET" else era(request)

    async with RawHttp(respond).listening() as server:
        error = await failure(call(connections, http(server.url, era="handshake"), "x"))
        assert (error.code, error.sent) == ("server_unreachable", True)
        assert server.methods().count("tools/call") == 1
        assert server.methods().count("GET") == 8


async def test_a_call_that_is_given_up_in_a_session_is_canceled_by_its_id(
    connections: ConnectionPool,
):
    cancelled = asyncio.Event()

    async def silent(request: RecordedRequest) -> Events:
        yield raw_http_server.STREAM
        await asyncio.Event().wait()

    era = HandshakeHttp(silent)

    def respond(request: RecordedRequest) -> Any:
        if request.method == "notifications/cancelled":
            cancelled.set()
        return era(request)

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake")
        error = await failure(call(connections, endpoint, "x", timeout_s=LIMIT_S))
        assert error.code == "call_timeout"
        async with asyncio.timeout(5):
            await cancelled.wait()
        number = next(request.id for request in server.asked if request.method == "tools/call")
        assert server.asked[-1].message["params"] == {"requestId": number}


async def test_progress_and_server_requests_arrive_on_the_stream_of_a_call(
    connections: ConnectionPool,
):
    response_received = asyncio.Event()
    reports = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    async def events(request: RecordedRequest) -> Events:
        token = request.message["params"]["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": 1}
        notification = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        yield raw_http_server.STREAM + raw_http_server.event(notification)
        yield raw_http_server.event({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
        await response_received.wait()
        yield raw_http_server.event({"jsonrpc": "2.0", "id": request.id, "result": {}})

    era = HandshakeHttp(events)

    def respond(request: RecordedRequest) -> Any:
        if request.id == "q":
            response_received.set()
            return raw_http_server.response(202, kind="")
        return era(request)

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake")
        await call(connections, endpoint, "x", on_progress=on_progress)
        answer = next(request.message for request in server.asked if request.id == "q")
    assert reports == [(1, None, None)]
    assert answer["error"]["code"] == -32601
    assert "aren't supported" in answer["error"]["message"]


async def test_a_session_that_cant_be_ended_is_abandoned(connections: ConnectionPool):
    era = HandshakeHttp(raw_http_server.text)

    def respond(request: RecordedRequest) -> Any:
        return raw_http_server.response(500) if request.verb == "DELETE" else era(request)

    async with RawHttp(respond).listening() as server:
        await call(connections, http(server.url, era="handshake"), "x")
        await connections.release(HOLDER)
        assert server.methods()[-1] == "DELETE"


class ElicitingHost(Host):
    """A host that answers elicitation requests and records them."""

    def __init__(self) -> None:
        self.questions: list[Mapping[str, Any]] = []

    def capabilities(self, endpoint) -> Mapping[str, Any]:
        return {"elicitation": {}}

    async def elicitation(
        self, endpoint: ServerEndpoint, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        self.questions.append(params)
        return {"action": "decline"}


async def test_server_requests_on_a_separate_stream_reach_the_host(connections: ConnectionPool):
    host, answers = ElicitingHost(), []

    async def events(request: RecordedRequest) -> Events:
        number = request.headers.get("last-event-id", "0")
        elicitation = {
            "jsonrpc": "2.0",
            "id": f"q{number}",
            "method": "elicitation/create",
            "params": {"after": number},
        }
        yield raw_http_server.STREAM + raw_http_server.event(
            elicitation, id=str(int(number) + 1), retry="1"
        )

    era = HandshakeHttp(raw_http_server.text)

    def respond(request: RecordedRequest) -> Any:
        if request.verb == "GET" and len(host.questions) < 3:
            return events(request)
        if request.verb == "GET":
            return raw_http_server.response(405)
        if str(request.id).startswith("q"):
            answers.append(request.message["result"])
            return raw_http_server.response(202, kind="")
        return era(request)

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake", allowed_requests=ASKED)
        await call(connections, endpoint, "x", host=host)
        await until(lambda: len(answers) >= 3 and server.methods().count("GET") >= 4)
    assert [elicitation["after"] for elicitation in host.questions[:3]] == ["0", "1", "2"]
    assert answers[:3] == [{"action": "decline"}] * 3


async def test_without_a_host_no_stream_is_opened(connections: ConnectionPool):
    async with RawHttp(HandshakeHttp(raw_http_server.text)).listening() as server:
        await call(connections, http(server.url, era="handshake"), "x")
        await connections.release(HOLDER)
        assert "GET" not in server.methods()


async def test_the_stream_ends_with_its_session(connections: ConnectionPool):
    async def silent(request: RecordedRequest) -> Events:
        yield raw_http_server.STREAM
        await asyncio.Event().wait()

    era = HandshakeHttp(raw_http_server.text)

    def respond(request: RecordedRequest) -> Any:
        return silent(request) if request.verb == "GET" else era(request)

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake", allowed_requests=ASKED)
        await call(connections, endpoint, "x", host=ElicitingHost())
        assert server.methods()[-2:] == ["GET", "tools/call"]
        await connections.release(HOLDER)
        await until(lambda: server.gone)


async def test_a_stream_that_doesnt_open_is_waited_for_briefly(
    connections: ConnectionPool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streamable_http, "LISTEN_TIMEOUT_S", 0.1)

    async def hang(request: RecordedRequest) -> Events:
        await asyncio.Event().wait()
        yield b""

    era = HandshakeHttp(raw_http_server.text)

    def respond(request: RecordedRequest) -> Any:
        return hang(request) if request.verb == "GET" else era(request)

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake", allowed_requests=ASKED)
        assert text_of(await call(connections, endpoint, "x", host=ElicitingHost())) == "ok"
        monkeypatch.setattr(streamable_http, "LISTEN_TIMEOUT_S", 60)
        error = await failure(
            call(
                connections, endpoint, "x", host=ElicitingHost(), holder="session:b", timeout_s=0.3
            )
        )
        assert error.sent is False
        await until(lambda: server.gone == 1)
