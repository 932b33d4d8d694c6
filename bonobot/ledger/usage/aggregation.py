"""Aggregate audit entries into rollups, and rollups into summaries. No I/O.

A rollup is specific to agent, server, tool, outcome and more, so there may be nearly as many as
calls. A summary has one dimension: per hour or day, a row for each active agent (or tool, …).

A call counts in the hour in which it was requested, once it has ended; a refusal counts with its
repeats. Durations are counted in fixed buckets, so percentiles can be estimated for any sum of
rows; a line can also have the durations of a few calls, of which percentiles are exact.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b, sha256
from math import ceil
from typing import Any, Literal, NamedTuple
from uuid import UUID

Grain = Literal["hour", "day"]
GRAINS: tuple[Grain, ...] = ("hour", "day")

# Upper bounds of the duration buckets in milliseconds; one more bucket has longer ones.
BOUNDS_MS = (
    *(1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500, 800),
    *(1_200, 2_000, 3_000, 5_000, 8_000, 12_000, 30_000, 60_000),
)
BUCKET_COUNT = len(BOUNDS_MS) + 1
COUNTED_EVENT_TYPES = frozenset({"call", "model"})
REFUSED = "refused"
OPEN = "open"


class UsageEntry(NamedTuple):
    """The columns of an audit row that are counted, and how many `times` it counts."""

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
    """The columns that distinguish rollups: ids of agents and servers, not their names."""

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
    """The kind and time of a rollup."""

    kind: RollupKind
    grain: Grain
    begins: datetime


@dataclass(slots=True)
class RollupSum:
    """The totals of one rollup; `duration_counts` has a number for each bucket."""

    calls: int = 0
    duration_ms: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    duration_counts: list[int] = field(default_factory=lambda: [0] * BUCKET_COUNT)
    agent_name: str = ""
    server_name: str = ""
    last_at: datetime | None = None

    def add_entry(self, row: UsageEntry) -> None:
        self.calls += row.times
        self.last_at = max(self.last_at or row.opened_at, row.opened_at)
        self.input_tokens += row.input_tokens
        self.output_tokens += row.output_tokens
        self.cost_microusd += row.cost_microusd
        if row.duration_ms is not None:
            self.duration_ms += row.duration_ms
            self.duration_counts[find_duration_bucket(row.duration_ms)] += 1
        self.agent_name, self.server_name = row.agent_name, row.server_name


def fold_entries(
    rows: Iterable[UsageEntry], grains: Sequence[Grain] = GRAINS
) -> dict[RollupKey, RollupSum]:
    sums: dict[RollupKey, RollupSum] = {}
    for row in rows:
        kind = build_kind(row)
        for grain in grains:
            key = RollupKey(kind, grain, truncate_time(row.opened_at, grain))
            total = sums.get(key)
            if total is None:
                total = sums[key] = RollupSum()
            total.add_entry(row)
    return sums


def build_kind(row: UsageEntry) -> RollupKind:
    """Return the kind of an entry; only refusals have their rule."""
    return RollupKind(
        row.organization_id,
        event_type=row.event_type,
        outcome=row.outcome,
        code=row.code,
        rule=row.rule if row.outcome == REFUSED else "",
        agent_id=row.agent_id,
        server_id=row.server_id,
        tool_name=row.tool_name,
        model=row.resource_id if row.event_type == "model" else "",
    )


def truncate_time(moment: datetime, grain: Grain) -> datetime:
    """Return the start of the hour or day in the time zone of `moment`, which is UTC."""
    hour = moment.replace(minute=0, second=0, microsecond=0)
    return hour if grain == "hour" else hour.replace(hour=0)


def hash_rollup_key(key: RollupKey) -> str:
    """Return the key of a rollup's row: 32 hexadecimal digits."""
    parts = (*key.kind, key.grain, key.begins.isoformat())
    text = "\x00".join("" if part is None else str(part) for part in parts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def find_duration_bucket(duration_ms: int) -> int:
    return bisect_left(BOUNDS_MS, duration_ms)


def estimate_quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the duration (ms) that `share` of the calls didn't exceed, interpolated in its bucket.

    Longer durations than the last bound are reported as that bound. None without durations.
    """
    total = sum(counts)
    if not total:
        return None
    rank, cumulative_count = share * total, 0
    for index, count in enumerate(counts):
        if count and cumulative_count + count >= rank:
            if index == len(BOUNDS_MS):
                break
            lower_bound = BOUNDS_MS[index - 1] if index else 0
            return (
                lower_bound + (BOUNDS_MS[index] - lower_bound) * (rank - cumulative_count) / count
            )
        cumulative_count += count
    return float(BOUNDS_MS[-1])


COUNT_FIELDS = (
    *("calls", "ok", "errors", "unknown", "refused", "turns"),
    *("input_tokens", "output_tokens", "cost_microusd"),
)
# The columns with the latest name for each id.
NAME_COLUMNS = {"agent_id": "agent_name", "server_id": "server_name"}


class UsageDimension(NamedTuple):
    """The columns that summaries are grouped by, and the filters on the counted rows."""

    name: str
    columns: tuple[str, ...]
    filters: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The name columns that belong to its ids."""
        return tuple(NAME_COLUMNS[column] for column in self.columns if column in NAME_COLUMNS)

    def includes_kind(self, kind: RollupKind) -> bool:
        return all(getattr(kind, name) == value for name, value in self.filters.items())

    def can_answer(self, by: Iterable[str], filters: Mapping[str, Any]) -> bool:
        """Return whether a report with these columns and filters can be read from its summaries."""
        known_columns = {*self.columns, "begins", "organization_id"}
        other_filters = {name: value for name, value in filters.items() if name not in self.filters}
        return (
            known_columns.issuperset(by)
            and known_columns.union(self.names).issuperset(other_filters)
            and all(filters.get(name) == value for name, value in self.filters.items())
        )


CALL_FILTER = {"event_type": "call"}
# From the fewest rows to the most: a report is read from the first possible one.
DIMENSIONS = (
    UsageDimension("total", ("event_type",), {}),
    UsageDimension("reason", ("code", "rule"), {**CALL_FILTER, "outcome": "refused"}),
    UsageDimension("model", ("model",), {"event_type": "model"}),
    UsageDimension("server", ("server_id",), CALL_FILTER),
    UsageDimension("agent", ("agent_id",), {}),
    UsageDimension("tool", ("server_id", "tool_name"), CALL_FILTER),
)


@dataclass(slots=True)
class UsageLine:
    """A line of a report; `duration_counts` are those of successful calls.

    `durations` (ms) are used instead of the buckets if it has those of all successful calls.
    """

    calls: int = 0
    ok: int = 0
    errors: int = 0
    unknown: int = 0
    refused: int = 0
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    duration_counts: list[int] = field(default_factory=lambda: [0] * BUCKET_COUNT)
    durations: list[int] = field(default_factory=list)
    agent_name: str = ""
    server_name: str = ""
    pending: int = 0  # those of `calls` that wait for approval: rollups don't have them

    @property
    def canceled(self) -> int:
        """The calls that were canceled."""
        others = self.ok + self.errors + self.unknown + self.refused + self.pending
        return self.calls - others

    def add_pending(self, count: int) -> None:
        self.calls += count
        self.pending += count

    def add_line(self, other: "UsageLine") -> None:
        self.pending += other.pending
        for name in COUNT_FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.duration_counts = [
            own_count + other_count
            for own_count, other_count in zip(
                self.duration_counts, other.duration_counts, strict=True
            )
        ]
        self.durations = [*self.durations, *other.durations]
        self.agent_name = other.agent_name or self.agent_name
        self.server_name = other.server_name or self.server_name

    @property
    def p50(self) -> float | None:
        """The median duration in milliseconds."""
        return self._get_quantile(0.5)

    @property
    def p95(self) -> float | None:
        """The 95th percentile in milliseconds."""
        return self._get_quantile(0.95)

    def _get_quantile(self, share: float) -> float | None:
        """Return the duration (ms) that `share` of the calls didn't exceed, exactly if known."""
        if self.durations and len(self.durations) == sum(self.duration_counts):
            return float(sorted(self.durations)[ceil(share * len(self.durations)) - 1])
        return estimate_quantile(self.duration_counts, share)

    @property
    def tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens


class SummaryKey(NamedTuple):
    """The dimension, subject and time of a summary."""

    dimension: UsageDimension
    kind: RollupKind
    grain: str
    begins: datetime
    subject: UUID


def build_line(kind: RollupKind, total: RollupSum) -> UsageLine:
    is_call, outcome = kind.event_type == "call", kind.outcome
    return UsageLine(
        calls=total.calls * is_call,
        ok=total.calls * (is_call and outcome == "ok"),
        errors=total.calls * (is_call and outcome == "error"),
        unknown=total.calls * (is_call and outcome == "unknown"),
        refused=total.calls * (is_call and outcome == "refused"),
        turns=total.calls * (not is_call and outcome != "refused"),
        input_tokens=total.input_tokens,
        output_tokens=total.output_tokens,
        cost_microusd=total.cost_microusd,
        duration_counts=list(total.duration_counts)
        if is_call and outcome == "ok"
        else [0] * BUCKET_COUNT,
        agent_name=total.agent_name,
        server_name=total.server_name,
    )


def summarize_rollups(
    sums: Mapping[RollupKey, RollupSum], is_wanted: Callable[[RollupKey], bool]
) -> Iterator[tuple[SummaryKey, UsageLine]]:
    """Yield the lines of the selected rollups by each dimension, each summary key once."""
    lines: dict[tuple[Any, ...], tuple[SummaryKey, UsageLine]] = {}
    for rollup_key, total in sums.items():
        if not is_wanted(rollup_key):
            continue
        line = build_line(rollup_key.kind, total)
        for dimension in DIMENSIONS:
            if not dimension.includes_kind(rollup_key.kind):
                continue
            values = tuple(getattr(rollup_key.kind, name) for name in dimension.columns)
            key = (dimension.name, rollup_key.grain, rollup_key.begins, values)
            if key not in lines:
                subject = hash_subject(values)
                summary_key = SummaryKey(
                    dimension,
                    kind=rollup_key.kind,
                    grain=rollup_key.grain,
                    begins=rollup_key.begins,
                    subject=subject,
                )
                lines[key] = (summary_key, UsageLine())
            lines[key][1].add_line(line)
    yield from lines.values()


def hash_subject(values: Sequence[object]) -> UUID:
    """Return the id of a dimension's values; `build_rollups` computes the same in SQL."""
    parts = [value.hex if isinstance(value, UUID) else str(value or "") for value in values]
    text = ":".join(parts).encode("utf-8", "surrogatepass")
    return UUID(sha256(text).hexdigest()[:32])
