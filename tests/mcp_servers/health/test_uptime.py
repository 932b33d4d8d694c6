"""Uptime percentages for any outages."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.health.uptime import (
    TimeSpan,
    build_uptime_segments,
    compute_downtime,
    compute_percentile,
    compute_uptime_percent,
)

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def add_hours(number: float) -> datetime:
    return NOON + timedelta(hours=number)


@st.composite
def outages(draw: st.DrawFn) -> list[TimeSpan]:
    gaps = draw(st.lists(st.integers(1, 600), max_size=12))
    edges = [add_hours(-2) + timedelta(minutes=at) for at in accumulate(gaps)]
    spans = [TimeSpan(*pair) for pair in list(pairwise(edges))[::2]]
    if spans and draw(st.booleans()):
        spans[-1] = TimeSpan(spans[-1].begins)
    return spans


@given(outages())
def test_uptime_is_a_percentage_and_periods_add_up(spans: list[TimeSpan]) -> None:
    share = compute_uptime_percent(spans, NOON, NOON + DAY, known_since=NOON)
    assert share is not None
    assert 0 <= share <= 100
    pieces = build_uptime_segments(spans, NOON, NOON + DAY, 48, known_since=NOON)
    assert sum(piece.up or 0 for piece in pieces) / 48 == pytest.approx(share)
    assert (pieces[0].begins, pieces[-1].ends) == (NOON, NOON + DAY)


@given(outages(), st.integers(0, 30), st.integers(0, 30))
def test_outages_outside_the_window_dont_count(spans: list[TimeSpan], start: int, end: int) -> None:
    since, until = add_hours(min(start, end)), add_hours(max(start, end))
    assert timedelta(0) <= compute_downtime(spans, since, until) <= until - since


def test_an_outage_counts_by_its_duration_and_not_by_its_checks() -> None:
    spans = [TimeSpan(add_hours(-1), add_hours(3)), TimeSpan(add_hours(20))]
    assert compute_uptime_percent(
        spans, NOON, NOON + DAY, known_since=add_hours(-9)
    ) == pytest.approx(100 * 17 / 24)


def test_unknown_time_counts_neither_as_up_nor_as_down() -> None:
    spans = [TimeSpan(add_hours(1), add_hours(3))]
    unknown = [TimeSpan(add_hours(2), add_hours(6)), TimeSpan(add_hours(20))]
    share = compute_uptime_percent(spans, NOON, NOON + DAY, known_since=NOON, unmonitored=unknown)
    assert share == pytest.approx(100 * (1 - 1 / 16))
    pieces = build_uptime_segments(
        spans, NOON, NOON + DAY, 24, known_since=NOON, unmonitored=unknown
    )
    assert [piece.up for piece in pieces][:7] == [100, 0, None, None, None, None, 100]
    assert [piece.up for piece in pieces][20:] == [None] * 4


@given(outages(), outages())
def test_uptime_is_a_percentage_of_the_known_time(
    downtime: list[TimeSpan], unknown: list[TimeSpan]
) -> None:
    share = compute_uptime_percent(
        downtime, NOON, NOON + DAY, known_since=add_hours(-1), unmonitored=unknown
    )
    known_time = DAY - compute_downtime(unknown, NOON, NOON + DAY)
    assert share is None if known_time <= timedelta(0) else -1e-9 <= (share or 0) <= 100


def test_there_is_no_uptime_before_a_server_existed() -> None:
    assert compute_uptime_percent([], NOON, NOON + DAY, known_since=None) is None
    pieces = build_uptime_segments([], NOON, NOON + DAY, 2, known_since=add_hours(12))
    assert [piece.up for piece in pieces] == [None, 100]
    assert [piece.tone for piece in pieces] == ["plain", "good"]


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_covers_its_share(
    values: list[int], percent: int
) -> None:
    percentile = compute_percentile(Counter(values), percent)
    shares = [
        sum(each <= value for each in values) * 100
        for value in (percentile or 0, (percentile or 0) - 1)
    ]
    assert percentile in values
    assert shares[0] >= len(values) * percent > shares[1]


def test_there_is_no_percentile_without_values() -> None:
    assert compute_percentile({}, 95) is None
