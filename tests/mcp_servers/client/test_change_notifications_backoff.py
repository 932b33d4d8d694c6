"""The delays before streams are reopened grow, have a limit, and are spread out."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.client import change_notifications
from mcp_servers.client.change_notifications import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    MAX_STREAM_LIFETIME_S,
    STABLE_LIFETIME_S,
    ReopenSchedule,
    compute_lifetime_s,
    compute_pause_s,
)


class Clock:
    """A clock that advances by each sleep and records it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        monkeypatch.setattr(change_notifications, "monotonic", lambda: self.now)
        monkeypatch.setattr(change_notifications, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


async def _list_pauses(monkeypatch: pytest.MonkeyPatch, lifetimes: list[float]) -> list[float]:
    """Return the delays after streams with these lifetimes."""
    clock = Clock(monkeypatch)
    streams = iter(lifetimes)
    async for _ in ReopenSchedule():
        if (seconds := next(streams, None)) is None:
            break
        clock.now += seconds
    return clock.pauses


async def test_the_first_stream_is_opened_immediately(monkeypatch):
    assert await _list_pauses(monkeypatch, []) == []


async def test_streams_that_break_soon_are_reopened_later_each_time(monkeypatch):
    pauses = await _list_pauses(monkeypatch, [0.0] * 12)
    limits = [min(FIRST_PAUSE_S * 2**losses, MAX_PAUSE_S) for losses in range(12)]
    assert all(limit / 2 <= pause <= limit for pause, limit in zip(pauses, limits, strict=True))


async def test_a_stable_stream_is_reopened_soon(monkeypatch):
    pauses = await _list_pauses(monkeypatch, [0.0, 0.0, 0.0, 0.0, STABLE_LIFETIME_S + 1, 0.0])
    assert pauses[3] >= 4 * FIRST_PAUSE_S
    assert pauses[4] <= FIRST_PAUSE_S
    assert pauses[5] <= FIRST_PAUSE_S


@given(st.integers(min_value=0, max_value=10_000), st.floats(min_value=0, max_value=1))
def test_the_delay_grows_up_to_its_limit(losses, jitter):
    assert FIRST_PAUSE_S / 2 <= compute_pause_s(losses, jitter) <= MAX_PAUSE_S
    assert compute_pause_s(losses, jitter) <= compute_pause_s(losses + 1, jitter)


def test_streams_that_were_opened_together_arent_reopened_together():
    before = random.getstate()
    lifetimes = {compute_lifetime_s() for _ in range(20)}
    assert len(lifetimes) > 1
    assert all(
        MAX_STREAM_LIFETIME_S <= lifetime <= 1.1 * MAX_STREAM_LIFETIME_S for lifetime in lifetimes
    )
    assert random.getstate() == before  # the global generator isn't used
