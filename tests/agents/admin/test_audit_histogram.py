"""The time axis of the histogram above the audit log."""

from datetime import UTC, datetime, timedelta

import pytest

from agents.admin import audit
from bonobot.ledger.audit.call_histogram import ActivityBar


def test_the_time_axis_has_round_times_and_the_days_where_they_begin() -> None:
    start = datetime(2026, 3, 4, tzinfo=UTC)

    def list_labels(start: datetime, count: int, step: timedelta) -> list[list[str]]:
        begins = [start + number * step for number in range(count)]
        ticks = audit._build_ticks([ActivityBar(moment, moment + step) for moment in begins])
        return [label for _place, *label in ticks]

    hours = list_labels(start.replace(hour=13), 24, timedelta(hours=1))
    assert hours[:4] == [["16:00", "Mar 4"], ["20:00", ""], ["00:00", "Mar 5"], ["04:00", ""]]
    minutes = list_labels(start.replace(hour=12, minute=50), 37, timedelta(minutes=5))
    assert minutes[:2] == [["13:00", "Mar 4"], ["13:30", ""]]
    three_hours = list_labels(start.replace(hour=12), 24, timedelta(hours=3))
    assert three_hours == [["Mar 5", ""], ["Mar 6", ""], ["Mar 7", ""]]
    assert list_labels(start, 30, timedelta(days=1))[:2] == [["Mar 4", ""], ["Mar 9", ""]]


@pytest.mark.parametrize(
    ("hour", "count", "step", "end"),
    [
        (12, 61, timedelta(minutes=1), ("13:01", "")),
        (13, 25, timedelta(hours=1), ("14:00", "Mar 5")),
        (0, 24, timedelta(hours=1), ("00:00", "Mar 5")),
        (0, 54, timedelta(hours=3), ("Mar 10", "")),
        (0, 56, timedelta(hours=3), ("Mar 10", "")),
        (0, 30, timedelta(days=1), ("Apr 2", "")),
    ],
    ids=["1 hour", "24 hours", "1 day", "7 days until now", "7 days", "30 days"],
)
def test_the_last_label_of_the_time_axis_is_the_end_of_the_range(
    hour: int, count: int, step: timedelta, end: tuple[str, str]
) -> None:
    start = datetime(2026, 3, 4, hour, tzinfo=UTC)
    begins = [start + number * step for number in range(count)]
    ticks = audit._build_ticks([ActivityBar(moment, moment + step) for moment in begins])
    assert ticks[-1] == (100.0, *end)
    assert ticks[-2][0] <= 100 * audit.MAX_PLACE  # with room for the last one
    assert ticks[-2][1:] != end


@pytest.mark.parametrize(
    ("length", "span"),
    [
        (timedelta(hours=2), "Mar 4 13:30 – 15:30"),
        (timedelta(hours=24), "Mar 3 15:30 – Mar 4 15:30"),
        (timedelta(days=7), "Feb 25 – Mar 4"),
    ],
)
def test_the_span_has_times_of_day_if_it_is_a_day_or_less(length: timedelta, span: str) -> None:
    until = datetime(2026, 3, 4, 15, 30, tzinfo=UTC)
    assert audit._format_span(until - length, until) == span


def test_the_legend_has_only_outcomes_that_the_bars_have() -> None:
    start = datetime(2026, 3, 4, tzinfo=UTC)
    bar = ActivityBar(start, start + timedelta(hours=1))
    bar.counts["refused"] = 1
    histogram = audit.Histogram([{"bar": bar}], 1, 1, timedelta(hours=1), "", False, [])
    assert [outcome for outcome, _title in histogram.legend] == ["refused"]
