"""The pauses before streams are opened again: they grow, have an end, and are spread."""

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
    """A clock that moves by what is waited, and writes that down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.waited: list[float] = []
        monkeypatch.setattr(change_notifications, "monotonic", lambda: self.now)
        monkeypatch.setattr(change_notifications, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


async def _waited(monkeypatch: pytest.MonkeyPatch, lived: list[float]) -> list[float]:
    """Return the pauses behind streams that lived so long."""
    clock = Clock(monkeypatch)
    streams = iter(lived)
    async for _ in ReopenSchedule():
        if (seconds := next(streams, None)) is None:
            break
        clock.now += seconds
    return clock.waited


async def test_the_first_stream_is_opened_immediately(monkeypatch):
    assert await _waited(monkeypatch, []) == []


async def test_streams_that_break_soon_are_reopened_later_each_time(monkeypatch):
    waited = await _waited(monkeypatch, [0.0] * 12)
    longest = [min(FIRST_PAUSE_S * 2**losses, MAX_PAUSE_S) for losses in range(12)]
    assert all(most / 2 <= one <= most for one, most in zip(waited, longest, strict=True))


async def test_a_stable_stream_is_reopened_soon(monkeypatch):
    waited = await _waited(monkeypatch, [0.0, 0.0, 0.0, 0.0, STABLE_LIFETIME_S + 1, 0.0])
    assert waited[3] >= 4 * FIRST_PAUSE_S
    assert waited[4] <= FIRST_PAUSE_S
    assert waited[5] <= FIRST_PAUSE_S


@given(st.integers(min_value=0, max_value=10_000), st.floats(min_value=0, max_value=1))
def test_the_delay_grows_up_to_its_limit(losses, luck):
    assert FIRST_PAUSE_S / 2 <= compute_pause_s(losses, luck) <= MAX_PAUSE_S
    assert compute_pause_s(losses, luck) <= compute_pause_s(losses + 1, luck)


def test_streams_that_were_opened_together_arent_reopened_together():
    before = random.getstate()
    found = {compute_lifetime_s() for _ in range(20)}
    assert len(found) > 1
    assert all(MAX_STREAM_LIFETIME_S <= one <= 1.1 * MAX_STREAM_LIFETIME_S for one in found)
    assert random.getstate() == before  # theirs who seed it, and look at what it gives
