"""Sessions of the handshake era: one a holder, renewed when lost, streams taken up again."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from mcp_servers.client import streamable_http
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.host import Host
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import HOLDER, call, failure, http, text_of, until
from tests.servers import raw_http_server
from tests.servers.raw_http_server import Asked, HandshakeHttp, RawHttp

LIMIT_S = 0.3
ASKED = frozenset({"elicitation"})
Events = AsyncIterator[bytes]


async def test_the_sdks_server_is_called_in_a_session(connections: ConnectionPool, modern_url: str):
    told: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    endpoint = http(modern_url, era="handshake")
    assert (
        await connections.perform_handshake(endpoint, holder=HOLDER)
    ).protocol_version == "2025-11-25"
    assert text_of(await call(connections, endpoint, "slow", on_progress=on_progress)) == "done"
    assert [message for _, _, message in told] == ["step 1", "step 2", "step 3"]
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
        asked = server.asked[-2]
    assert asked.headers["mcp-session-id"] == "s1"
    assert asked.headers["mcp-protocol-version"] == "2025-11-25"
    assert "_meta" not in asked.message["params"]


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
        server.respond = lambda asked: (
            raw_http_server.initialization(asked, "s") if asked.method == "initialize" else lost
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
    def respond(asked: Asked) -> bytes:
        if asked.method == "initialize":
            return raw_http_server.initialization(asked)
        return raw_http_server.response(202 if asked.id is None else 404, kind="")

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake")
        assert (await failure(call(connections, endpoint, "x"))).http_status == 404
        assert server.methods().count("initialize") == 1
        await connections.release(HOLDER)
        assert "DELETE" not in server.methods()


# --- streams


async def test_a_broken_stream_is_resumed_after_its_last_event(connections: ConnectionPool):
    async def broken(asked: Asked) -> Events:
        yield raw_http_server.STREAM + raw_http_server.event("", id="41", retry="5")
        yield raw_http_server.event({"jsonrpc": "2.0", "method": "notifications/message"}, id="42")

    async def rest(asked: Asked) -> Events:
        answer = {"jsonrpc": "2.0", "id": 2, "result": {"resumed": asked.headers["last-event-id"]}}
        yield raw_http_server.STREAM + raw_http_server.event(answer, id="43")

    def respond(asked: Asked) -> Any:
        return broken(asked)

    era = HandshakeHttp(respond)
    async with RawHttp(
        lambda asked: rest(asked) if asked.verb == "GET" else era(asked)
    ).listening() as server:
        endpoint = http(server.url, era="handshake")
        assert await call(connections, endpoint, "x") == {"resumed": "42"}
        assert server.methods().count("tools/call") == 1


async def test_a_stream_that_breaks_repeatedly_is_given_up(connections: ConnectionPool):
    async def broken(asked: Asked) -> Events:
        yield raw_http_server.CHUNKED + raw_http_server.chunk(
            raw_http_server.event("", id="41", retry="1")
        )

    era = HandshakeHttp(broken)

    def respond(asked: Asked) -> Any:
        return broken(asked) if asked.verb == "GET" else era(asked)

    async with RawHttp(respond).listening() as server:
        error = await failure(call(connections, http(server.url, era="handshake"), "x"))
        assert (error.code, error.sent) == ("server_unreachable", True)
        assert server.methods().count("tools/call") == 1
        assert server.methods().count("GET") == 8


async def test_a_call_that_is_given_up_in_a_session_is_canceled_by_its_id(
    connections: ConnectionPool,
):
    told = asyncio.Event()

    async def silent(asked: Asked) -> Events:
        yield raw_http_server.STREAM
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


async def test_progress_and_server_requests_arrive_on_the_stream_of_a_call(
    connections: ConnectionPool,
):
    answered = asyncio.Event()
    told = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async def events(asked: Asked) -> Events:
        token = asked.message["params"]["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": 1}
        notice = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        yield raw_http_server.STREAM + raw_http_server.event(notice)
        yield raw_http_server.event({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
        await answered.wait()
        yield raw_http_server.event({"jsonrpc": "2.0", "id": asked.id, "result": {}})

    era = HandshakeHttp(events)

    def respond(asked: Asked) -> Any:
        if asked.id == "q":
            answered.set()
            return raw_http_server.response(202, kind="")
        return era(asked)

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake")
        await call(connections, endpoint, "x", on_progress=on_progress)
        answer = next(asked.message for asked in server.asked if asked.id == "q")
    assert told == [(1, None, None)]
    assert answer["error"]["code"] == -32601
    assert "aren't supported" in answer["error"]["message"]


async def test_a_session_that_cant_be_ended_is_abandoned(connections: ConnectionPool):
    era = HandshakeHttp(raw_http_server.text)

    def respond(asked: Asked) -> Any:
        return raw_http_server.response(500) if asked.verb == "DELETE" else era(asked)

    async with RawHttp(respond).listening() as server:
        await call(connections, http(server.url, era="handshake"), "x")
        await connections.release(HOLDER)
        assert server.methods()[-1] == "DELETE"


class Asker(Host):
    """A host that elicits, and notes what it was asked."""

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
    host, answers = Asker(), []

    async def events(asked: Asked) -> Events:
        number = asked.headers.get("last-event-id", "0")
        question = {
            "jsonrpc": "2.0",
            "id": f"q{number}",
            "method": "elicitation/create",
            "params": {"after": number},
        }
        yield raw_http_server.STREAM + raw_http_server.event(
            question, id=str(int(number) + 1), retry="1"
        )

    era = HandshakeHttp(raw_http_server.text)

    def respond(asked: Asked) -> Any:
        if asked.verb == "GET" and len(host.questions) < 3:
            return events(asked)
        if asked.verb == "GET":
            return raw_http_server.response(405)
        if str(asked.id).startswith("q"):
            answers.append(asked.message["result"])
            return raw_http_server.response(202, kind="")
        return era(asked)

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake", allowed_requests=ASKED)
        await call(connections, endpoint, "x", host=host)
        await until(lambda: len(answers) >= 3 and server.methods().count("GET") >= 4)
    assert [question["after"] for question in host.questions[:3]] == ["0", "1", "2"]
    assert answers[:3] == [{"action": "decline"}] * 3


async def test_without_a_host_no_stream_is_opened(connections: ConnectionPool):
    async with RawHttp(HandshakeHttp(raw_http_server.text)).listening() as server:
        await call(connections, http(server.url, era="handshake"), "x")
        await connections.release(HOLDER)
        assert "GET" not in server.methods()


async def test_the_stream_ends_with_its_session(connections: ConnectionPool):
    async def silent(asked: Asked) -> Events:
        yield raw_http_server.STREAM
        await asyncio.Event().wait()

    era = HandshakeHttp(raw_http_server.text)

    def respond(asked: Asked) -> Any:
        return silent(asked) if asked.verb == "GET" else era(asked)

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake", allowed_requests=ASKED)
        await call(connections, endpoint, "x", host=Asker())
        assert server.methods()[-2:] == ["GET", "tools/call"]
        await connections.release(HOLDER)
        await until(lambda: server.gone)


async def test_a_stream_that_doesnt_open_is_waited_for_briefly(
    connections: ConnectionPool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streamable_http, "LISTEN_TIMEOUT_S", 0.1)

    async def mute(asked: Asked) -> Events:
        await asyncio.Event().wait()
        yield b""

    era = HandshakeHttp(raw_http_server.text)

    def respond(asked: Asked) -> Any:
        return mute(asked) if asked.verb == "GET" else era(asked)

    async with RawHttp(respond).listening() as server:
        endpoint = http(server.url, era="handshake", allowed_requests=ASKED)
        assert text_of(await call(connections, endpoint, "x", host=Asker())) == "ok"
        monkeypatch.setattr(streamable_http, "LISTEN_TIMEOUT_S", 60)
        error = await failure(
            call(connections, endpoint, "x", host=Asker(), holder="session:b", timeout_s=0.3)
        )
        assert error.sent is False
        await until(lambda: server.gone == 1)
