"""A child that sends endlessly gets a limited share of the event loop."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers

from mcp_servers.client import http_requests, read_throttle
from mcp_servers.client.jsonrpc import decode_json
from mcp_servers.client.pool import ConnectionPool
from mcp_servers.client.read_throttle import (
    GRACE_S,
    LOOP_SHARE,
    MAX_PAUSE_S,
    PER_READ_S,
    STREAM_SHARE,
    ReadThrottle,
)
from tests.mcp_servers.client.endpoints import HOLDER, call, failure, faulty_stdio, http, text_of
from tests.servers import raw_http_server


def test_ordinary_responses_are_never_delayed():
    throttle = ReadThrottle()
    assert all(throttle.add_work(0.001, now=second) == 0 for second in range(1000))


@given(floats(0.0001, 0.05), integers(50, 300))
def test_an_endless_sender_gets_only_its_share(seconds: float, reads: int):
    throttle, now, worked = ReadThrottle(), 1_000.0, 0.0
    for _ in range(reads):
        now += seconds
        worked += seconds
        pause_s = throttle.add_work(seconds, now)
        assert 0 <= pause_s <= MAX_PAUSE_S
        now += pause_s
    assert worked <= LOOP_SHARE * (now - 1_000) + GRACE_S + seconds + 0.01


async def test_a_child_over_its_share_is_read_later(
    connections: ConnectionPool, monkeypatch: pytest.MonkeyPatch
):
    endpoint = faulty_stdio("modern", era="modern")
    await call(connections, endpoint, "echo")
    child = connections._stdio_pool._entries[endpoint.server_id, HOLDER].connection._child
    assert child._process is not None
    pipe = child._process.get_pipe_transport(1)
    assert isinstance(pipe, asyncio.ReadTransport)
    monkeypatch.setattr(read_throttle, "GRACE_S", 0.0)
    monkeypatch.setattr(read_throttle, "LOOP_SHARE", 0.001)
    assert text_of(await call(connections, endpoint, "echo", a=1)) == '{"a": 1}'
    assert pipe._paused  # type: ignore[attr-defined]  # 3.11.2 has no `is_reading`
    assert text_of(await call(connections, endpoint, "echo", a=2)) == '{"a": 2}'


async def test_an_endless_event_stream_doesnt_block_the_loop(
    connections: ConnectionPool, monkeypatch: pytest.MonkeyPatch
):
    """All events are available immediately, so reading them never waits by itself."""
    events = (
        raw_http_server.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
        * 500
    )
    events_read: list[bytes] = []

    def count_event(raw: bytes) -> object:
        events_read.append(raw)
        return decode_json(raw)

    async def flood() -> AsyncIterator[bytes]:
        yield raw_http_server.STREAM
        while True:
            yield events

    monkeypatch.setattr(http_requests, "decode_json", count_event)
    async with raw_http_server.RawHttp(lambda request: flood()).listening() as server:
        started_at = time.perf_counter()
        error = await failure(call(connections, http(server.url, era="modern"), "x", timeout_s=1.5))
        took_s = time.perf_counter() - started_at
    assert error.code == "call_timeout"
    assert len(events_read) > 100
    # Each read counts toward the stream's share.
    assert len(events_read) * PER_READ_S <= STREAM_SHARE * took_s + GRACE_S + PER_READ_S


async def test_messages_before_the_response_of_a_chatty_server_arent_delayed(
    connections: ConnectionPool,
):
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}

    def chatty(request: raw_http_server.RecordedRequest) -> bytes:
        answer = {"jsonrpc": "2.0", "id": request.id, "result": {"content": []}}
        return (
            raw_http_server.STREAM
            + raw_http_server.event(note) * 100
            + raw_http_server.event(answer)
        )

    async with raw_http_server.RawHttp(chatty).listening() as server:
        began = time.perf_counter()
        await call(connections, http(server.url, era="modern"), "x")
        assert time.perf_counter() - began < 5
