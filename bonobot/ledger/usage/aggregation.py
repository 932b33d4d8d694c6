"""Fold entries to rollups and dimensions; pure.

Pure. Rollups tell all of these apart at once, so an organization with thousands of agents has
nearly as many of them as calls. A summary is of one dimension: as many rows an hour or a day as
there are agents (or tools) that did something in it, and for the total two.

Pure. A call counts in the hour in which it was asked for, once it has ended; a refusal counts with
its repeats. Durations go into fixed buckets, so that percentiles of any sum of rows can be told.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b, sha256
from typing import Any, Literal, NamedTuple
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


class UsageEntry(NamedTuple):
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


class RollupKind(NamedTuple):
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


class RollupKey(NamedTuple):
    """One rollup: what of, and when."""

    kind: RollupKind
    grain: Grain
    begins: datetime


@dataclass(slots=True)
class RollupSum:
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

    def add(self, row: UsageEntry) -> None:
        """Add one row."""
        self.calls += row.times
        self.last_at = max(self.last_at or row.opened_at, row.opened_at)
        self.input_tokens += row.input_tokens
        self.output_tokens += row.output_tokens
        self.cost_microusd += row.cost_microusd
        if row.duration_ms is not None:
            self.duration_ms += row.duration_ms
            self.took[find_duration_bucket(row.duration_ms)] += 1
        self.agent_name, self.server_name = row.agent_name, row.server_name


def fold(
    rows: Iterable[UsageEntry], grains: Sequence[Grain] = GRAINS
) -> dict[RollupKey, RollupSum]:
    """Return what the rows come to."""
    found: dict[RollupKey, RollupSum] = {}
    for row in rows:
        kind = build_kind(row)
        for grain in grains:
            place = RollupKey(kind, grain, truncate_time(row.opened_at, grain))
            total = found.get(place)
            if total is None:
                total = found[place] = RollupSum()
            total.add(row)
    return found


def build_kind(row: UsageEntry) -> RollupKind:
    """Return what a row counts for. Only of refusals is it told which rule made them."""
    return RollupKind(
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


def truncate_time(moment: datetime, grain: Grain) -> datetime:
    """Return when the hour or day (of the moment's own time zone: UTC) began."""
    hour = moment.replace(minute=0, second=0, microsecond=0)
    return hour if grain == "hour" else hour.replace(hour=0)


def hash_rollup_key(place: RollupKey) -> str:
    """Return the key of a rollup's row: 32 hexadecimal digits."""
    parts = (*place.kind, place.grain, place.begins.isoformat())
    text = "\x00".join("" if part is None else str(part) for part in parts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def find_duration_bucket(duration_ms: int) -> int:
    """Return the number of the bucket that a duration falls into."""
    return bisect_left(BOUNDS_MS, duration_ms)


def estimate_quantile(took: Sequence[int], share: float) -> float | None:
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


ERRORS = ("error", "unknown")
COUNTS = (
    *("calls", "ok", "errors", "refused", "turns"),
    *("input_tokens", "output_tokens", "cost_microusd"),
)
# Names come along with ids: what was called so last.
NAMES = {"agent_id": "agent_name", "server_id": "server_name"}


class UsageDimension(NamedTuple):
    """What summaries are by (its columns), and which rows of the audit they are of alone."""

    name: str
    columns: tuple[str, ...]
    of: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of names that come along."""
        return tuple(NAMES[column] for column in self.columns if column in NAMES)

    def holds(self, kind: RollupKind) -> bool:
        """Tell whether it counts what is of this kind."""
        return all(getattr(kind, name) == value for name, value in self.of.items())

    def tells(self, by: Iterable[str], where: Mapping[str, Any]) -> bool:
        """Tell whether a report by these columns, of these rows, can be read from it."""
        known = {*self.columns, "begins", "organization_id"}
        apart = {name: value for name, value in where.items() if name not in self.of}
        return (
            known.issuperset(by)
            and known.union(self.names).issuperset(apart)
            and all(where.get(name) == value for name, value in self.of.items())
        )


CALLS = {"event_type": "call"}
# From the fewest rows to the most: a report is read from the first that tells it.
DIMENSIONS = (
    UsageDimension("total", ("event_type",), {}),
    UsageDimension("reason", ("code", "rule"), {**CALLS, "outcome": "refused"}),
    UsageDimension("model", ("model",), {"event_type": "model"}),
    UsageDimension("server", ("server_id",), CALLS),
    UsageDimension("agent", ("agent_id",), {}),
    UsageDimension("tool", ("server_id", "tool_name"), CALLS),
)


@dataclass(slots=True)
class UsageLine:
    """What one line of a report says; `took` are the durations of calls that went well."""

    calls: int = 0
    ok: int = 0
    errors: int = 0
    refused: int = 0
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    took: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    agent_name: str = ""
    server_name: str = ""

    def add(self, other: "UsageLine") -> None:
        """Add another line."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.took = [here + more for here, more in zip(self.took, other.took, strict=True)]
        self.agent_name = other.agent_name or self.agent_name
        self.server_name = other.server_name or self.server_name

    @property
    def p50(self) -> float | None:
        """The median duration in milliseconds."""
        return estimate_quantile(self.took, 0.5)

    @property
    def p95(self) -> float | None:
        """The 95th percentile in milliseconds."""
        return estimate_quantile(self.took, 0.95)

    @property
    def tokens(self) -> int:
        """All tokens, in and out."""
        return self.input_tokens + self.output_tokens


class SummaryKey(NamedTuple):
    """One summary: of which dimension and subject, and when."""

    dimension: UsageDimension
    kind: RollupKind
    grain: str
    begins: datetime
    subject: UUID


def build_line(kind: RollupKind, total: RollupSum) -> UsageLine:
    """Return what a sum says in a report."""
    call, outcome = kind.event_type == "call", kind.outcome
    return UsageLine(
        calls=total.calls * call,
        ok=total.calls * (call and outcome == "ok"),
        errors=total.calls * (call and outcome in ERRORS),
        refused=total.calls * (call and outcome == "refused"),
        turns=total.calls * (not call and outcome != "refused"),
        input_tokens=total.input_tokens,
        output_tokens=total.output_tokens,
        cost_microusd=total.cost_microusd,
        took=list(total.took) if call and outcome == "ok" else [0] * BUCKETS,
        agent_name=total.agent_name,
        server_name=total.server_name,
    )


def summarize(
    sums: Mapping[RollupKey, RollupSum], wanted: Callable[[RollupKey], bool]
) -> Iterator[tuple[SummaryKey, UsageLine]]:
    """Yield what the wanted sums come to by each dimension, each spot once."""
    found: dict[tuple[Any, ...], tuple[SummaryKey, UsageLine]] = {}
    for place, total in sums.items():
        if not wanted(place):
            continue
        line = build_line(place.kind, total)
        for dimension in DIMENSIONS:
            if not dimension.holds(place.kind):
                continue
            values = tuple(getattr(place.kind, name) for name in dimension.columns)
            key = (dimension.name, place.grain, place.begins, values)
            if key not in found:
                subject = hash_subject(values)
                spot = SummaryKey(dimension, place.kind, place.grain, place.begins, subject)
                found[key] = (spot, UsageLine())
            found[key][1].add(line)
    yield from found.values()


def hash_subject(values: Sequence[object]) -> UUID:
    """Return what stands for a dimension's values; `build_rollups` does it in SQL, too."""
    parts = [one.hex if isinstance(one, UUID) else str(one or "") for one in values]
    text = ":".join(parts).encode("utf-8", "surrogatepass")
    return UUID(sha256(text).hexdigest()[:32])
