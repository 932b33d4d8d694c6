"""Uptime and percentiles from outages (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

DAY = timedelta(days=1)
WINDOWS = (("24h", DAY), ("7d", 7 * DAY), ("30d", 30 * DAY))
LONGEST_WINDOW = WINDOWS[-1][1]
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
        if self.up is None:
            return "plain"
        return "good" if self.up >= 100 else "warn" if self.up >= 50 else "bad"


@dataclass(frozen=True, kw_only=True)
class UptimeWindow:
    """Statistics of a period up to now; latencies in ms, uptime in percent."""

    name: str
    since: datetime
    uptime: float | None
    checks: int
    failures: int
    outages: int
    calls: int
    p50: int | None
    p95: int | None

    @property
    def tone(self) -> str:
        if self.uptime is None:
            return "plain"
        return "good" if self.uptime >= 99 else "warn" if self.uptime >= 90 else "bad"


def compute_downtime(spans: Iterable[TimeSpan], since: datetime, until: datetime) -> timedelta:
    """Return how much of the period the (non-overlapping) spans cover."""
    overlaps = (min(span.ends or until, until) - max(span.begins, since) for span in spans)
    return sum((part for part in overlaps if part > NONE), NONE)


def compute_uptime_percent(
    spans: Iterable[TimeSpan],
    since: datetime,
    until: datetime,
    *,
    known_since: datetime | None,
    unmonitored: Sequence[TimeSpan] = (),
) -> float | None:
    """Return the uptime in percent of the monitored time, or None.

    The time before `known_since` and the `unmonitored` spans are excluded, also from outages.
    """
    start = until if known_since is None else max(since, known_since)
    known_time = until - start - compute_downtime(unmonitored, start, until)
    if known_time <= NONE:
        return None
    downtime = NONE
    for span in spans:
        overlap_start, overlap_end = max(span.begins, start), min(span.ends or until, until)
        if overlap_end > overlap_start:
            downtime += (
                overlap_end
                - overlap_start
                - compute_downtime(unmonitored, overlap_start, overlap_end)
            )
    return 100 * (1 - downtime / known_time)


def build_uptime_segments(
    spans: Sequence[TimeSpan],
    since: datetime,
    until: datetime,
    count: int,
    *,
    known_since: datetime | None,
    unmonitored: Sequence[TimeSpan] = (),
) -> list[UptimeSegment]:
    """Divide the period into `count` equal segments, oldest first."""
    step = (until - since) / count
    edges = [since + step * number for number in range(count)] + [until]
    return [
        UptimeSegment(
            begins,
            ends,
            compute_uptime_percent(
                spans, begins, ends, known_since=known_since, unmonitored=unmonitored
            ),
        )
        for begins, ends in pairwise(edges)
    ]


def compute_percentile(counts: Mapping[int, int], percent: int) -> int | None:
    """Return the percentile of counted values (nearest rank), or None."""
    threshold = sum(counts.values()) * percent / 100
    total = 0
    for value in sorted(counts):
        total += counts[value]
        if total >= threshold:
            return value
    return None
