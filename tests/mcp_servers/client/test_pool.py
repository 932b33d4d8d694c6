"""The connection pool: sharing, closing, and the limit of child processes."""

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from bonobot.core.runtime import close_runtime, get_runtime
from mcp_servers.client import pool as client_pool
from mcp_servers.client.answer_server_requests import Host, HostRequestUnsupported
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.pool import ConnectionPool
from mcp_servers.client.pool import get_connection_pool as of_process
from tests.mcp_servers.client.endpoints import (
    HOLDER,
    Clock,
    call,
    faulty_stdio,
    http,
    text_of,
    until,
)
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest


def children(connections: ConnectionPool) -> int:
    return len(connections._stdio_pool._entries)


def handshake(request: RecordedRequest) -> bytes:
    """Respond like a server of the handshake era with sessions."""
    if request.method == "initialize":
        return raw_http_server.initialization(request, f"s{id(request)}")
    if request.id is None:
        return raw_http_server.response(202, kind="")
    return raw_http_server.text(request)


# --- sharing


async def test_each_holder_has_its_own_child(connections: ConnectionPool):
    endpoint = faulty_stdio()
    await asyncio.gather(
        *(call(connections, endpoint, "echo", holder=f"session:{n % 3}") for n in range(9))
    )
    assert children(connections) == 3


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_discovery_moves_to_a_new_connection_when_its_session_ends(
    connections: ConnectionPool, crashes: bool
):
    endpoint = faulty_stdio("handshake")
    await call(connections, endpoint, "echo")
    child = connections.find_connection(endpoint, HOLDER)._child
    os.killpg(child._process.get_pid(), signal.SIGSTOP)  # so that it can't answer before the end
    reading = asyncio.ensure_future(
        connections.fetch_declarations(endpoint, preferred_holder=HOLDER)
    )
    await until(lambda: connections.find_connection(endpoint, HOLDER)._peer.busy)
    if crashes:
        os.killpg(child._process.get_pid(), signal.SIGKILL)
    else:
        await connections.release(HOLDER)
    declarations = await reading
    assert declarations.items
    assert (declarations.notices, children(connections)) == ((), int(crashes))


async def test_releasing_a_holder_closes_only_its_children(connections: ConnectionPool):
    first, second = faulty_stdio(), faulty_stdio()
    for endpoint in (first, second):
        for holder in ("session:a", "session:b"):
            await call(connections, endpoint, "echo", holder=holder)
    await connections.release("session:a")
    assert {holder for _, holder in connections._stdio_pool._entries} == {"session:b"}
    await connections.release("session:unknown")


async def test_removing_a_server_closes_all_its_connections(connections: ConnectionPool):
    async with RawHttp(handshake).listening() as server:
        remote = http(server.url, era="handshake")
        local = replace(faulty_stdio(), server_id=remote.server_id)
        other = faulty_stdio()
        for endpoint in (remote, local, other):
            await call(connections, endpoint, "echo")
        assert connections.get_stderr_tail(local.server_id)
        await connections.forget_server(remote.server_id)
        assert server.methods()[-1] == "DELETE"
    assert connections.get_stderr_tail(local.server_id) == ""
    assert connections._upstreams == {}
    assert children(connections) == 1
    assert connections.get_stderr_tail(other.server_id)


async def test_another_configuration_starts_another_child(connections: ConnectionPool):
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    changed = replace(endpoint, env={"A": "b"})
    assert json.loads(text_of(await call(connections, changed, "environment")))["A"] == "b"
    assert children(connections) == 1


async def test_closing_the_pool_ends_all_children_and_waiting_calls(connections: ConnectionPool):
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    hanging_call = asyncio.ensure_future(call(connections, endpoint, "hang"))
    starting_call = asyncio.ensure_future(call(connections, faulty_stdio("late"), "echo"))
    await until(lambda: children(connections) == 2)
    await connections.close()
    for task in (hanging_call, starting_call):
        with pytest.raises(UpstreamError, match="closed"):
            await task
    assert children(connections) == 0
    assert text_of(await call(connections, endpoint, "echo")) == "{}"


async def test_closing_during_a_start_leaves_no_process(connections: ConnectionPool):
    for turns in range(0, 60, 3):
        starting = asyncio.ensure_future(call(connections, faulty_stdio(), "echo"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await connections.close()
        with suppress(UpstreamError):
            await starting
        assert children(connections) == 0


# --- idle connections


async def test_an_idle_child_is_closed_after_five_minutes(
    connections: ConnectionPool, clock: Clock
):
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    clock.now += 299
    await connections.close_idle()
    assert children(connections) == 1
    clock.now += 2
    await connections.close_idle()
    assert children(connections) == 0
    assert text_of(await call(connections, endpoint, "echo")) == "{}"


async def test_a_busy_child_isnt_idle(connections: ConnectionPool, clock: Clock):
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    working = asyncio.ensure_future(call(connections, endpoint, "hang", timeout_s=1))
    await asyncio.sleep(0)
    clock.now += 301
    await connections.close_idle()
    assert children(connections) == 1
    with pytest.raises(UpstreamError):
        await working
    clock.now += 200
    await connections.close_idle()
    assert children(connections) == 1


async def test_idle_sessions_and_pools_are_closed(connections: ConnectionPool, clock: Clock):
    async with RawHttp(handshake).listening() as server:
        endpoint = http(server.url, era="handshake")
        await call(connections, endpoint, "x", holder="session:a")
        clock.now += 200
        await call(connections, endpoint, "x", holder="session:b")
        clock.now += 200
        await connections.close_idle()
        assert server.methods().count("DELETE") == 1
        assert len(connections._upstreams) == 1
        clock.now += 200
        await connections.close_idle()
        assert server.methods().count("DELETE") == 2
    assert connections._upstreams == {}


async def test_idle_children_are_closed_automatically(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(client_pool, "SWEEP_S", 0.01)
    connections = ConnectionPool(clock=clock)
    await call(connections, faulty_stdio(), "echo")
    clock.now += 301
    await until(lambda: not children(connections))
    await connections.close()


# --- old child processes

DAY_S = 86_400


async def test_an_old_child_is_replaced_between_two_calls(
    connections: ConnectionPool, clock: Clock
):
    endpoint, holder = faulty_stdio(), "server:1:somebody"
    await call(connections, endpoint, "echo", holder=holder)
    first = connections._stdio_pool._entries[endpoint.server_id, holder].connection
    clock.now += DAY_S - 1
    await call(connections, endpoint, "echo", holder=holder)
    assert connections._stdio_pool._entries[endpoint.server_id, holder].connection is first
    clock.now += 1
    assert text_of(await call(connections, endpoint, "echo", holder=holder)) == "{}"
    assert connections._stdio_pool._entries[endpoint.server_id, holder].connection is not first
    await connections.close_idle()
    await until(lambda: not first.alive)


async def test_an_old_busy_child_isnt_interrupted(connections: ConnectionPool, clock: Clock):
    endpoint, holder = faulty_stdio(), "server:1:somebody"
    await call(connections, endpoint, "echo", holder=holder)
    first = connections._stdio_pool._entries[endpoint.server_id, holder].connection
    working = asyncio.ensure_future(
        call(connections, endpoint, "hang", holder=holder, timeout_s=0.5)
    )
    await until(lambda: first.busy)
    clock.now += DAY_S
    await connections.close_idle()
    await call(connections, endpoint, "echo", holder=holder)
    assert first.alive
    with pytest.raises(UpstreamError) as error:
        await working
    assert error.value.code == "call_timeout"
    await connections.close_idle()
    await until(lambda: not first.alive)


async def test_a_child_that_is_being_replaced_still_counts(clock: Clock):
    connections = ConnectionPool(clock=clock, max_children=1)
    endpoint, holder = faulty_stdio(), "server:1:somebody"
    await call(connections, endpoint, "echo", holder=holder)
    working = asyncio.ensure_future(call(connections, endpoint, "hang", holder=holder))
    first = connections._stdio_pool._entries[endpoint.server_id, holder].connection
    await until(lambda: first.busy)
    clock.now += DAY_S
    await connections.close_idle()
    with pytest.raises(UpstreamError) as error:
        await call(connections, endpoint, "echo", holder=holder)
    assert "running server processes is reached" in str(error.value)
    await connections.forget_server(endpoint.server_id)
    with pytest.raises(UpstreamError):
        await working
    await connections.close()


async def test_the_child_of_a_session_is_never_replaced(connections: ConnectionPool, clock: Clock):
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    first = connections._stdio_pool._entries[endpoint.server_id, HOLDER].connection
    for _ in range(DAY_S // 200):
        clock.now += 200
        entry = connections._stdio_pool._entries[endpoint.server_id, HOLDER]
        entry.used_at = clock.now
        await connections.close_idle()
    clock.now += 200
    await call(connections, endpoint, "echo")
    assert connections._stdio_pool._entries[endpoint.server_id, HOLDER].connection is first


# --- the limit


async def test_at_the_limit_the_longest_idle_child_is_closed(clock: Clock):
    connections = ConnectionPool(max_children=2, clock=clock)
    endpoint = faulty_stdio()
    for holder in ("session:a", "session:b", "session:c"):
        clock.now += 1
        await call(connections, endpoint, "echo", holder=holder)
    assert {holder for _, holder in connections._stdio_pool._entries} == {"session:b", "session:c"}
    await connections.close()


async def test_no_child_is_started_if_all_are_busy_at_the_limit():
    connections = ConnectionPool(max_children=1)
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    working = asyncio.ensure_future(call(connections, endpoint, "hang"))
    await asyncio.sleep(0)
    with pytest.raises(UpstreamError) as error:
        await call(connections, endpoint, "echo", holder="session:other")
    assert (error.value.code, error.value.retryable) == ("server_unreachable", True)
    working.cancel()
    await connections.close()


async def test_requests_wait_for_a_child_at_the_limit_in_turn():
    connections = ConnectionPool(max_children=1, wait_s=20)
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    working = asyncio.ensure_future(call(connections, endpoint, "hang"))
    await until(lambda: connections._stdio_pool._list_idle_keys() == [])
    holders = [f"session:{number}" for number in range(5)]
    waiting = [
        asyncio.ensure_future(call(connections, endpoint, "echo", holder=holder))
        for holder in holders
    ]
    await until(lambda: len(connections._stdio_pool._waiting) == len(holders))
    assert children(connections) == 1
    working.cancel()
    assert len(await asyncio.gather(*waiting)) == len(holders)
    assert not connections._stdio_pool._waiting
    await connections.close()


async def test_waiting_for_a_child_is_bounded(monkeypatch: pytest.MonkeyPatch):
    connections = ConnectionPool(max_children=1, wait_s=0.05)
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    working = asyncio.ensure_future(call(connections, endpoint, "hang"))
    await until(lambda: connections._stdio_pool._list_idle_keys() == [])
    with pytest.raises(UpstreamError, match="running server processes is reached"):
        await call(connections, endpoint, "echo", holder="session:late")
    monkeypatch.setattr("mcp_servers.client.stdio_pool.MAX_WAITING", 0)
    connections._wait_s = 1_000
    with pytest.raises(UpstreamError, match="running server processes is reached"):
        await call(connections, endpoint, "echo", holder="session:too many")
    working.cancel()
    await connections.close()


async def test_the_last_stderr_is_kept_for_a_limited_number_of_servers(
    connections: ConnectionPool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mcp_servers.client.stdio_pool.MAX_STDERR_TAILS", 2)
    endpoints = [faulty_stdio() for _ in range(3)]
    for endpoint in endpoints:
        await call(connections, endpoint, "echo")
    assert [bool(connections.get_stderr_tail(each.server_id)) for each in endpoints] == [
        False,
        True,
        True,
    ]


# --- requests from servers


class AnsweringHost(Host):
    """A host that samples and lists roots."""

    def capabilities(self, endpoint) -> Mapping[str, Any]:
        return {"sampling": {}, "roots": {}}

    async def sampling(self, endpoint: ServerEndpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "params": dict(params)}

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        raise UpstreamError("no model", code="call_timeout", server="x")


async def send_server_request(
    connections: ConnectionPool, method: str, host: Host | None = None
) -> dict[str, Any]:
    result = await call(
        connections, faulty_stdio("handshake"), "ask_back", method=method, host=host
    )
    answer: dict[str, Any] = json.loads(text_of(result))
    return answer


async def test_a_ping_is_answered(connections: ConnectionPool):
    assert (await send_server_request(connections, "ping"))["result"] == {}


@pytest.mark.parametrize(
    "method", ["sampling/createMessage", "elicitation/create", "roots/list", "no/such"]
)
async def test_without_a_host_every_server_request_gets_an_error(
    connections: ConnectionPool, method: str
):
    assert (await send_server_request(connections, method))["error"]["code"] == -32601


async def test_a_host_answers_for_its_session(connections: ConnectionPool):
    answer = await send_server_request(connections, "sampling/createMessage", AnsweringHost())
    assert answer["result"] == {"role": "assistant", "params": {"p": 1}}


async def test_a_problem_of_the_host_is_sent_as_an_error(connections: ConnectionPool):
    answer = await send_server_request(connections, "roots/list", AnsweringHost())
    assert (answer["error"]["code"], answer["error"]["message"]) == (-32603, "no model")
    assert answer["error"]["data"] == {"code": "call_timeout"}


async def test_a_server_with_too_many_concurrent_requests_gets_errors(
    connections: ConnectionPool,
):
    requests, released = 0, asyncio.Event()

    class Slow(Host):
        async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
            nonlocal requests
            requests += 1
            await released.wait()
            raise HostRequestUnsupported("no")

    endpoint, options = faulty_stdio("handshake"), {"method": "roots/list", "times": 100}
    pending = asyncio.ensure_future(call(connections, endpoint, "ask_back", host=Slow(), **options))
    await until(lambda: requests)
    await call(connections, endpoint, "echo")
    released.set()
    await pending
    assert requests == 16


# --- the pool of the process


async def test_the_capabilities_of_the_host_are_declared(connections: ConnectionPool):
    async with RawHttp(lambda request: raw_http_server.text(request)).listening() as server:
        await call(connections, http(server.url, era="modern"), "x", host=AnsweringHost())
    meta = server.asked[0].message["params"]["_meta"]
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {"sampling": {}, "roots": {}}
    assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "bonobot"


async def test_reserved_keys_of_meta_arent_forwarded(connections: ConnectionPool):
    callers_meta = {
        "io.modelcontextprotocol/clientInfo": {"name": "somebody"},
        "progressToken": "theirs",
        "traceparent": "00-1",
    }
    async with RawHttp(lambda request: raw_http_server.text(request)).listening() as server:
        endpoint = http(server.url, era="modern")
        params = {"name": "x", "_meta": callers_meta}
        await connections.send_request(endpoint, "tools/call", params, holder=HOLDER)
    meta = server.asked[0].message["params"]["_meta"]
    assert meta["traceparent"] == "00-1"
    assert "progressToken" not in meta
    assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "bonobot"


def test_a_process_has_one_pool_on_its_runtime(modern_url: str):
    try:
        first = of_process()
        assert first is of_process()
        endpoint = http(modern_url, era="modern")
        params = {"name": "add", "arguments": {"a": 1, "b": 2}}
        result = get_runtime().call(
            first.send_request, endpoint, "tools/call", params, holder=HOLDER
        )
        assert result["structuredContent"] == {"result": 3}
    finally:
        close_runtime()
    assert first._upstreams == {}
    assert of_process() is not first
    close_runtime()
