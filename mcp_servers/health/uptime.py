"""Uptime and percentiles from outages (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

NONE = timedelta(0)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A time span, such as an outage; without an end it is ongoing."""

    begins: datetime
    ends: datetime | None = None


@dataclass(frozen=True, slots=True)
class UptimeSegment:
    """A segment of an uptime chart: `up` in percent, None if unknown."""

    begins: datetime
    ends: datetime
    up: float | None

    @property
    def tone(self) -> str:
        """Return the color tone."""
        if self.up is None:
            return "plain"
        return "good" if self.up >= 100 else "warn" if self.up >= 50 else "bad"


def compute_downtime(spans: Iterable[TimeSpan], since: datetime, until: datetime) -> timedelta:
    """Return how much of the period the (non-overlapping) spans cover."""
    parts = (min(span.ends or until, until) - max(span.begins, since) for span in spans)
    return sum((part for part in parts if part > NONE), NONE)


def compute_uptime_percent(
    spans: Iterable[TimeSpan],
    since: datetime,
    until: datetime,
    *,
    known: datetime | None,
    unknown: Sequence[TimeSpan] = (),
) -> float | None:
    """Return the uptime in percent of the monitored time, or None.

    The time before `known_since` and the `unmonitored` spans are excluded, also from outages.
    """
    begins = until if known is None else max(since, known)
    whole = until - begins - compute_downtime(unknown, begins, until)
    if whole <= NONE:
        return None
    away = NONE
    for span in spans:
        first, last = max(span.begins, begins), min(span.ends or until, until)
        if last > first:
            away += last - first - compute_downtime(unknown, first, last)
    return 100 * (1 - away / whole)


def build_uptime_segments(
    spans: Sequence[TimeSpan],
    since: datetime,
    until: datetime,
    count: int,
    *,
    known: datetime | None,
    unknown: Sequence[TimeSpan] = (),
) -> list[UptimeSegment]:
    """Divide the period into `count` equal segments, oldest first."""
    step = (until - since) / count
    edges = [since + step * number for number in range(count)] + [until]
    return [
        UptimeSegment(
            begins, ends, compute_uptime_percent(spans, begins, ends, known=known, unknown=unknown)
        )
        for begins, ends in pairwise(edges)
    ]


def compute_percentile(counts: Mapping[int, int], percent: int) -> int | None:
    """Return the percentile of counted values (nearest rank), or None."""
    wanted = sum(counts.values()) * percent / 100
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= wanted:
            return value
    return None
