"""Sessions of the handshake era that are kept for the next holder of the same owner."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from mcp_servers.client.answer_server_requests import Host
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool, IdleSession, IdleSessions
from tests.mcp_servers.client.endpoints import Clock, call, http, text_of, until
from tests.servers import raw_http_server
from tests.servers.raw_http_server import HandshakeHttp, RawHttp, RecordedRequest, SseHttp

KEY, OTHER_KEY = (uuid4(), "a"), (uuid4(), "b")


def respond(asked: RecordedRequest) -> bytes:
    """Answer pings and calls."""
    if asked.method == "ping":
        return raw_http_server.result(asked, {})
    return raw_http_server.text(asked, asked.headers["mcp-session-id"])


async def use(
    connections: ConnectionPool, endpoint: ServerEndpoint, holder: str, owner: str = "ada"
) -> str:
    """Call a tool as a holder of an owner and release it; return the id of its session."""
    connections.set_owner(holder, owner)
    session_id = text_of(await call(connections, endpoint, "x", holder=holder))
    await connections.release(holder, keep_sessions=True)
    return session_id


# --- the store


def entry(holder: str, owner: str = "ada", key: Any = KEY) -> IdleSession:
    return IdleSession(key, owner, holder, cast("Any", SimpleNamespace()), 0.0)


def test_a_holder_gets_its_own_session_otherwise_the_latest_of_its_owner():
    idle = IdleSessions(limit=9)
    entries = [entry("a"), entry("b"), entry("c", owner="bob"), entry("d", key=OTHER_KEY)]
    assert [removed for entry in entries for removed in idle.add(entry)] == []
    assert idle.take(KEY, "ada", "a") is entries[0]
    assert idle.take(KEY, "ada", "e") is entries[1]
    assert idle.take(KEY, "ada", "e") is None
    assert idle.take(KEY, "bob", "e") is entries[2]
    assert len(idle) == 1


def test_the_oldest_sessions_beyond_the_limit_are_returned():
    idle, first, second = IdleSessions(limit=1), entry("a"), entry("b")
    assert idle.add(first) == []
    assert idle.add(second) == [first]
    assert idle.remove(lambda entry: entry.holder == "b") == [second]
    assert IdleSessions(limit=0).add(first) == [first]


# --- at a server


async def test_the_next_holder_of_an_owner_needs_no_handshake(connections: ConnectionPool):
    async with RawHttp(era := HandshakeHttp(respond)).listening() as server:
        endpoint = http(server.url, era="handshake")
        assert await use(connections, endpoint, "session:a") == "s1"
        assert await use(connections, endpoint, "session:b") == "s1"
        assert era.opened == 1
        assert server.methods()[-2:] == ["ping", "tools/call"]


async def test_a_session_is_never_shared(connections: ConnectionPool):
    async with RawHttp(era := HandshakeHttp(respond)).listening() as server:
        endpoint = http(server.url, era="handshake")
        other_key = http(
            server.url, era="handshake", server_id=endpoint.server_id, headers={"X-Key": "other"}
        )
        await use(connections, endpoint, "session:a")
        assert await use(connections, endpoint, "session:b", owner="bob") == "s2"
        assert await use(connections, other_key, "session:c") == "s3"
        for holder in ("session:d", "session:e"):  # at the same time
            connections.set_owner(holder, "ada")
        ids = [
            text_of(await call(connections, endpoint, "x", holder=holder))
            for holder in ("session:d", "session:e")
        ]
        assert ids == ["s1", "s4"]
        assert text_of(await call(connections, endpoint, "x", holder="gateway:f")) == "s5"
        await connections.release("gateway:f", keep_sessions=True)  # it has no owner
        assert "s5" not in era.known


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "failing"])
async def test_a_broken_session_is_replaced(connections: ConnectionPool, is_lost: bool):
    era = HandshakeHttp(respond)
    async with RawHttp(era).listening() as server:
        endpoint = http(server.url, era="handshake")
        await use(connections, endpoint, "session:a")
        if is_lost:
            era.known.clear()
        else:
            server.respond = lambda asked: (
                raw_http_server.response(503) if asked.method == "ping" else era(asked)
            )
        assert await use(connections, endpoint, "session:b") == "s2"
        await until(lambda: "s1" not in era.known)


async def test_a_server_need_not_know_pings(connections: ConnectionPool):
    def without_ping(asked: RecordedRequest) -> bytes:
        if asked.method == "ping":
            return raw_http_server.error(asked, -32601, status=200)
        return respond(asked)

    async with RawHttp(HandshakeHttp(without_ping)).listening() as server:
        endpoint = http(server.url, era="handshake")
        await use(connections, endpoint, "session:a")
        assert await use(connections, endpoint, "session:b") == "s1"


async def test_idle_sessions_are_ended_after_a_while(connections: ConnectionPool, clock: Clock):
    async with RawHttp(era := HandshakeHttp(respond)).listening() as server:
        endpoint = http(server.url, era="handshake")
        await use(connections, endpoint, "session:a")
        clock.now += 200
        await call(connections, endpoint, "x", holder="session:b")
        clock.now += 200
        await connections.close_idle()
        assert era.known == {"s2"}


async def test_too_many_idle_sessions_are_ended(clock: Clock):
    connections = ConnectionPool(clock=clock, max_idle_sessions=1)
    async with RawHttp(era := HandshakeHttp(respond)).listening() as server:
        endpoint = http(server.url, era="handshake")
        for owner in ("ada", "bob"):
            await use(connections, endpoint, f"session:{owner}", owner=owner)
        assert era.known == {"s2"}
        await connections.close()
        assert era.known == set()


async def test_nothing_is_kept_if_that_is_disabled(clock: Clock):
    connections = ConnectionPool(clock=clock, idle_session_s=0)
    async with RawHttp(era := HandshakeHttp(respond)).listening() as server:
        await use(connections, http(server.url, era="handshake"), "session:a")
        assert era.known == set()
    await connections.close()


async def test_a_change_of_the_server_ends_its_idle_sessions(clock: Clock):
    versions = {}

    async def load_versions(server_ids: Any) -> dict[Any, str]:
        return dict.fromkeys(server_ids, "1") | versions

    connections = ConnectionPool(clock=clock, load_versions=load_versions)
    async with RawHttp(era := HandshakeHttp(respond)).listening() as server:
        endpoints = [http(server.url, era="handshake") for _ in range(2)]
        for endpoint in endpoints:
            await use(connections, endpoint, "session:a")
        await connections.close_outdated_connections()
        assert era.known == {"s1", "s2"}
        versions[endpoints[0].server_id] = "2"
        await connections.close_outdated_connections()
        assert era.known == {"s2"}
        await connections.close()


async def test_a_session_over_sse_is_kept_too(connections: ConnectionPool):
    def answer(asked: RecordedRequest) -> bytes:
        return raw_http_server.build_event(asked, {"content": [{"type": "text", "text": "ok"}]})

    async with RawHttp(era := SseHttp(answer)).listening() as server:
        discovery = {"bonobot/wire": "sse"}
        endpoint = http(server.url, era="handshake", discovery=discovery)
        for holder in ("session:a", "session:b"):
            assert await use(connections, endpoint, holder) == "ok"
        assert era.opened == 1
        era.hang_up()
        assert await use(connections, endpoint, "session:c") == "ok"
        assert era.opened == 2
        await connections.close()


class Home(Host):
    """A host with a root of its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        return {"roots": [{"uri": f"file:///{self.name}"}]}


async def test_the_current_holders_host_answers_the_server(connections: ConnectionPool):
    questions: asyncio.Queue[int] = asyncio.Queue()

    async def ask(asked: RecordedRequest) -> Any:
        yield raw_http_server.STREAM
        while True:
            question = {"jsonrpc": "2.0", "id": await questions.get(), "method": "roots/list"}
            yield raw_http_server.event(question)

    era = HandshakeHttp(respond)

    def answer(asked: RecordedRequest) -> Any:
        return ask(asked) if asked.verb == "GET" else era(asked)

    async def ask_now(question_id: int) -> Any:
        questions.put_nowait(question_id)
        await until(lambda: any(is_answer(asked.message) for asked in server.asked))
        messages = [asked.message for asked in server.asked if is_answer(asked.message)]
        server.asked.clear()
        return messages[0].get("result")

    def is_answer(message: Any) -> bool:
        return message is not None and "method" not in message

    async with RawHttp(answer).listening() as server:
        endpoint = http(server.url, era="handshake", allowed_requests=frozenset({"roots"}))
        for number, holder in enumerate(("a", "b")):
            connections.set_owner(holder, "ada")
            await call(connections, endpoint, "x", holder=holder, host=Home(holder))
            answered = await ask_now(2 * number + 1)
            assert answered == {"roots": [{"uri": f"file:///{holder}"}]}
            await connections.release(holder, keep_sessions=True)
            assert await ask_now(2 * number + 2) is None  # an error: nobody uses the session
        await connections.close()
