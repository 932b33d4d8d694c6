"""Rollups: what rows of the audit come to, by the hour and by the day.

Pure. A call counts in the hour in which it was asked for, once it has ended; a refusal counts with
its repeats. Durations go into fixed buckets, so that percentiles of any sum of rows can be told.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Literal, NamedTuple
from uuid import UUID

Grain = Literal["hour", "day"]
GRAINS: tuple[Grain, ...] = ("hour", "day")

# Upper bounds of the buckets in milliseconds; one more bucket takes what is longer.
BOUNDS_MS = (
    *(1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500, 800),
    *(1_200, 2_000, 3_000, 5_000, 8_000, 12_000, 30_000, 60_000),
)
BUCKETS = len(BOUNDS_MS) + 1
COUNTED = frozenset({"call", "model"})
REFUSED = "refused"
OPEN = "open"


class Ended(NamedTuple):
    """A row of the audit as it is counted; `times` is 0 for what was counted before."""

    organization_id: UUID
    opened_at: datetime
    event_type: str
    outcome: str
    code: str
    rule: str
    agent_id: UUID | None
    agent_name: str
    server_id: UUID | None
    server_name: str
    tool_name: str
    resource_id: str
    duration_ms: int | None
    input_tokens: int
    output_tokens: int
    cost_microusd: int
    times: int


class Kind(NamedTuple):
    """What makes rows equal for a rollup; of agent and server the id counts, not the name."""

    organization_id: UUID
    event_type: str
    outcome: str
    code: str
    rule: str
    agent_id: UUID | None
    server_id: UUID | None
    tool_name: str
    model: str


class Place(NamedTuple):
    """One rollup: what of, and when."""

    kind: Kind
    grain: Grain
    begins: datetime


@dataclass(slots=True)
class Sum:
    """What the rows of one place come to; `took` has one number for each bucket."""

    calls: int = 0
    duration_ms: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    took: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    agent_name: str = ""
    server_name: str = ""
    last_at: datetime | None = None

    def add(self, row: Ended) -> None:
        """Add one row."""
        self.calls += row.times
        self.last_at = max(self.last_at or row.opened_at, row.opened_at)
        self.input_tokens += row.input_tokens
        self.output_tokens += row.output_tokens
        self.cost_microusd += row.cost_microusd
        if row.duration_ms is not None:
            self.duration_ms += row.duration_ms
            self.took[bucket(row.duration_ms)] += 1
        self.agent_name, self.server_name = row.agent_name, row.server_name


def fold(rows: Iterable[Ended], grains: Sequence[Grain] = GRAINS) -> dict[Place, Sum]:
    """Return what the rows come to."""
    found: dict[Place, Sum] = {}
    for row in rows:
        kind = kind_of(row)
        for grain in grains:
            place = Place(kind, grain, beginning(row.opened_at, grain))
            total = found.get(place)
            if total is None:
                total = found[place] = Sum()
            total.add(row)
    return found


def kind_of(row: Ended) -> Kind:
    """Return what a row counts for. Only of refusals is it told which rule made them."""
    return Kind(
        row.organization_id,
        row.event_type,
        row.outcome,
        row.code,
        row.rule if row.outcome == REFUSED else "",
        row.agent_id,
        row.server_id,
        row.tool_name,
        row.resource_id if row.event_type == "model" else "",
    )


def beginning(moment: datetime, grain: Grain) -> datetime:
    """Return when the hour or day (of the moment's own time zone: UTC) began."""
    hour = moment.replace(minute=0, second=0, microsecond=0)
    return hour if grain == "hour" else hour.replace(hour=0)


def key_of(place: Place) -> str:
    """Return the key of a rollup's row: 32 hexadecimal digits."""
    parts = (*place.kind, place.grain, place.begins.isoformat())
    text = "\x00".join("" if part is None else str(part) for part in parts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def bucket(duration_ms: int) -> int:
    """Return the number of the bucket that a duration falls into."""
    return bisect_left(BOUNDS_MS, duration_ms)


def quantile(took: Sequence[int], share: float) -> float | None:
    """Return the duration (ms) that `share` of the calls didn't exceed, within its bucket even.

    What took longer than the last bound is told as that bound. None where nothing was timed.
    """
    total = sum(took)
    if not total:
        return None
    rank, before = share * total, 0
    for number, here in enumerate(took):
        if here and before + here >= rank:
            if number == len(BOUNDS_MS):
                break
            low = BOUNDS_MS[number - 1] if number else 0
            return low + (BOUNDS_MS[number] - low) * (rank - before) / here
        before += here
    return float(BOUNDS_MS[-1])
