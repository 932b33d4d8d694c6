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
NARROWEST = 0.4


@dataclass(frozen=True)
class TimelineWait:
    """A wait for a person; `ended` is None while it lasts."""

    began: datetime
    ended: datetime | None = None


@dataclass(frozen=True)
class TimelineEvent:
    """A step, or a server's question."""

    key: str
    kind: Kind
    state: str
    title: str
    began: datetime
    ended: datetime | None = None
    waits: tuple[TimelineWait, ...] = ()


@dataclass(frozen=True)
class TimelineBarPart:
    """A part of a bar, in percent of its section."""

    left: float
    width: float
    waits: bool = False


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

    began: datetime
    ended: datetime
    bars: list[TimelineBar] = field(default_factory=list)

    @property
    def length_ms(self) -> int:
        """The section's duration in milliseconds."""
        return _measure_milliseconds(self.began, self.ended)

    @property
    def waited_ms(self) -> int:
        """The time spent waiting for people, in milliseconds."""
        return sum(bar.waited_ms for bar in self.bars)


def build_timeline(events: Sequence[TimelineEvent], now: datetime) -> list[TimelineSection]:
    """Return the sections of a session's events."""
    ordered = sorted(events, key=lambda event: event.began)
    starts = [0, *(n for n, one in enumerate(ordered) if n and one.kind == "message")]
    return [
        _build_section(ordered[first:last], now)
        for first, last in pairwise((*starts, len(ordered)))
        if first < last
    ]


def _build_section(events: Sequence[TimelineEvent], now: datetime) -> TimelineSection:
    began = events[0].began
    ended = max(_end(event, now) for event in events)
    found = TimelineSection(began, max(began, ended))
    found.bars = [_build_bar(event, found, now) for event in events]
    return found


def _build_bar(event: TimelineEvent, stretch: TimelineSection, now: datetime) -> TimelineBar:
    ended = _end(event, now)
    waits = [(max(one.began, event.began), min(one.ended or now, ended)) for one in event.waits]
    waited = [(a, b) for a, b in waits if b > a]
    return TimelineBar(
        event,
        _measure_milliseconds(stretch.began, event.began),
        _measure_milliseconds(event.began, ended),
        sum(_measure_milliseconds(a, b) for a, b in waited),
        tuple(
            _build_bar_parts(
                [(event.began, ended, False), *((a, b, True) for a, b in waited)], stretch
            )
        ),
    )


def _build_bar_parts(
    times: Iterable[tuple[datetime, datetime, bool]], stretch: TimelineSection
) -> Iterator[TimelineBarPart]:
    whole = (stretch.ended - stretch.began).total_seconds() or 1.0
    for began, ended, waits in times:
        left = 100 * (began - stretch.began).total_seconds() / whole
        width = max(NARROWEST, 100 * (ended - began).total_seconds() / whole)
        yield TimelineBarPart(
            round(min(left, 100 - NARROWEST), 2), round(min(width, 100 - left), 2), waits
        )


def _end(event: TimelineEvent, now: datetime) -> datetime:
    if event.kind in ("message", "end", "notice"):
        return event.began
    return max(event.began, event.ended or now)


def _measure_milliseconds(began: datetime, ended: datetime) -> int:
    return round((ended - began).total_seconds() * 1000)
