"""Timeline of a session: turns, calls and waits as bars. Pure.

A section is a message and everything it caused; each has its own scale, because days may pass
between two messages. Running events last until now.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Literal

Kind = Literal["message", "model", "call", "question", "notice", "end"]

# Minimum width of a visible bar, in percent of its section.
MIN_WIDTH = 0.4


@dataclass(frozen=True)
class TimelineWait:
    """A wait for a person; `ended` is None while it lasts."""

    started_at: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True)
class TimelineEvent:
    """A step, or a server's question."""

    key: str
    kind: Kind
    state: str
    title: str
    started_at: datetime
    ended_at: datetime | None = None
    waits: tuple[TimelineWait, ...] = ()


@dataclass(frozen=True)
class TimelineBarPart:
    """A part of a bar, in percent of its section."""

    left: float
    width: float
    is_wait: bool = False


@dataclass(frozen=True)
class TimelineBar:
    """An event with its offset in the section, duration, wait time and parts."""

    event: TimelineEvent
    offset_ms: int
    took_ms: int
    waited_ms: int
    parts: tuple[TimelineBarPart, ...]


@dataclass
class TimelineSection:
    """A message and the events that it caused."""

    started_at: datetime
    ended_at: datetime
    bars: list[TimelineBar] = field(default_factory=list)

    @property
    def length_ms(self) -> int:
        """The section's duration in milliseconds."""
        return _measure_milliseconds(self.started_at, self.ended_at)

    @property
    def waited_ms(self) -> int:
        """The time spent waiting for people, in milliseconds."""
        return sum(bar.waited_ms for bar in self.bars)


def build_timeline(events: Sequence[TimelineEvent], now: datetime) -> list[TimelineSection]:
    """Return the sections of a session's events."""
    ordered_events = sorted(events, key=lambda event: event.started_at)
    starts = [
        0,
        *(
            index
            for index, ordered_event in enumerate(ordered_events)
            if index and ordered_event.kind == "message"
        ),
    ]
    return [
        _build_section(ordered_events[first:last], now)
        for first, last in pairwise((*starts, len(ordered_events)))
        if first < last
    ]


def _build_section(events: Sequence[TimelineEvent], now: datetime) -> TimelineSection:
    started_at = events[0].started_at
    ended_at = max(_get_end(event, now) for event in events)
    section = TimelineSection(started_at, max(started_at, ended_at))
    section.bars = [_build_bar(event, section, now) for event in events]
    return section


def _build_bar(event: TimelineEvent, section: TimelineSection, now: datetime) -> TimelineBar:
    ended_at = _get_end(event, now)
    wait_times = [
        (max(wait.started_at, event.started_at), min(wait.ended_at or now, ended_at))
        for wait in event.waits
    ]
    positive_waits = [
        (wait_start, wait_end) for wait_start, wait_end in wait_times if wait_end > wait_start
    ]
    return TimelineBar(
        event,
        offset_ms=_measure_milliseconds(section.started_at, event.started_at),
        took_ms=_measure_milliseconds(event.started_at, ended_at),
        waited_ms=sum(
            _measure_milliseconds(wait_start, wait_end) for wait_start, wait_end in positive_waits
        ),
        parts=tuple(
            _build_bar_parts(
                [
                    (event.started_at, ended_at, False),
                    *((wait_start, wait_end, True) for wait_start, wait_end in positive_waits),
                ],
                section,
            )
        ),
    )


def _build_bar_parts(
    spans: Iterable[tuple[datetime, datetime, bool]], section: TimelineSection
) -> Iterator[TimelineBarPart]:
    total_s = (section.ended_at - section.started_at).total_seconds() or 1.0
    for started_at, ended_at, is_wait in spans:
        offset_percent = 100 * (started_at - section.started_at).total_seconds() / total_s
        width = max(MIN_WIDTH, 100 * (ended_at - started_at).total_seconds() / total_s)
        yield TimelineBarPart(
            round(min(offset_percent, 100 - MIN_WIDTH), 2),
            round(min(width, 100 - offset_percent), 2),
            is_wait,
        )


def _get_end(event: TimelineEvent, now: datetime) -> datetime:
    if event.kind in ("message", "end", "notice"):
        return event.started_at
    return max(event.started_at, event.ended_at or now)


def _measure_milliseconds(started_at: datetime, ended_at: datetime) -> int:
    return round((ended_at - started_at).total_seconds() * 1000)
