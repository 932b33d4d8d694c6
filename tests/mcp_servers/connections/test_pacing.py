"""Pacing: a child that talks without end takes a bounded share of the loop."""

import asyncio

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers

from mcp_servers.connections import pacing
from mcp_servers.connections.pacing import GRACE_S, LONGEST_S, SHARE, Pace
from mcp_servers.connections.pool import Connections
from tests.mcp_servers.connections.asking import HOLDER, call, scripted, text_of


def test_ordinary_answers_are_never_waited_for():
    pace = Pace()
    assert all(pace.spent(0.001, now=second) == 0 for second in range(1000))


@given(floats(0.0001, 0.05), integers(50, 300))
def test_who_talks_without_end_gets_its_share(seconds: float, reads: int):
    pace, now, worked = Pace(), 1_000.0, 0.0
    for _ in range(reads):
        now += seconds
        worked += seconds
        pause_s = pace.spent(seconds, now)
        assert 0 <= pause_s <= LONGEST_S
        now += pause_s
    assert worked <= SHARE * (now - 1_000) + GRACE_S + seconds + 0.01


async def test_a_child_over_its_share_is_left_waiting_and_read_on_later(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
):
    endpoint = scripted("modern", era="modern")
    await call(connections, endpoint, "echo")
    child = connections._seats._seats[endpoint.server_id, HOLDER].connection._child
    assert child._process is not None
    pipe = child._process.get_pipe_transport(1)
    assert isinstance(pipe, asyncio.ReadTransport)
    monkeypatch.setattr(pacing, "GRACE_S", 0.0)
    monkeypatch.setattr(pacing, "SHARE", 0.001)
    assert text_of(await call(connections, endpoint, "echo", a=1)) == '{"a": 1}'
    assert not pipe.is_reading()
    assert text_of(await call(connections, endpoint, "echo", a=2)) == '{"a": 2}'
