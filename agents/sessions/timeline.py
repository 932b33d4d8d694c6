"""A session over time: what each message set off, how long it took and how long it waited. Pure.

A stretch is a message and all that it set off; each has a scale of its own, because days may lie
between two messages. What still runs lasts until now.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Literal

Kind = Literal["message", "model", "call", "question", "notice", "end"]

# A bar narrower than this (in percent of its stretch) can't be seen.
NARROWEST = 0.4


@dataclass(frozen=True)
class Wait:
    """A time in which a person was asked; `ended` is None while they still are."""

    began: datetime
    ended: datetime | None = None


@dataclass(frozen=True)
class Event:
    """One thing that happened: a step, or a server's question."""

    key: str
    kind: Kind
    state: str
    title: str
    began: datetime
    ended: datetime | None = None
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True)
class Part:
    """A piece of a bar, in percent of its stretch."""

    left: float
    width: float
    waits: bool = False


@dataclass(frozen=True)
class Bar:
    """An event as it is drawn: when it began in its stretch, how long it took and waited."""

    event: Event
    offset_ms: int
    took_ms: int
    waited_ms: int
    parts: tuple[Part, ...]


@dataclass
class Stretch:
    """What one message set off."""

    began: datetime
    ended: datetime
    bars: list[Bar] = field(default_factory=list)

    @property
    def length_ms(self) -> int:
        """Return how long it lasted."""
        return _milliseconds(self.began, self.ended)

    @property
    def waited_ms(self) -> int:
        """Return how long it waited for people."""
        return sum(bar.waited_ms for bar in self.bars)


def timeline(events: Sequence[Event], now: datetime) -> list[Stretch]:
    """Return the stretches of a session's events."""
    ordered = sorted(events, key=lambda event: event.began)
    starts = [0, *(n for n, one in enumerate(ordered) if n and one.kind == "message")]
    return [
        _stretch(ordered[first:last], now)
        for first, last in pairwise((*starts, len(ordered)))
        if first < last
    ]


def _stretch(events: Sequence[Event], now: datetime) -> Stretch:
    began = events[0].began
    ended = max(_end(event, now) for event in events)
    found = Stretch(began, max(began, ended))
    found.bars = [_bar(event, found, now) for event in events]
    return found


def _bar(event: Event, stretch: Stretch, now: datetime) -> Bar:
    ended = _end(event, now)
    waits = [(max(one.began, event.began), min(one.ended or now, ended)) for one in event.waits]
    waited = [(a, b) for a, b in waits if b > a]
    return Bar(
        event,
        _milliseconds(stretch.began, event.began),
        _milliseconds(event.began, ended),
        sum(_milliseconds(a, b) for a, b in waited),
        tuple(_parts([(event.began, ended, False), *((a, b, True) for a, b in waited)], stretch)),
    )


def _parts(times: Iterable[tuple[datetime, datetime, bool]], stretch: Stretch) -> Iterator[Part]:
    whole = (stretch.ended - stretch.began).total_seconds() or 1.0
    for began, ended, waits in times:
        left = 100 * (began - stretch.began).total_seconds() / whole
        width = max(NARROWEST, 100 * (ended - began).total_seconds() / whole)
        yield Part(round(min(left, 100 - NARROWEST), 2), round(min(width, 100 - left), 2), waits)


def _end(event: Event, now: datetime) -> datetime:
    if event.kind in ("message", "end", "notice"):
        return event.began
    return max(event.began, event.ended or now)


def _milliseconds(began: datetime, ended: datetime) -> int:
    return round((ended - began).total_seconds() * 1000)
