"""Calls, errors, durations and cost of an agent.

Read from the audit rollups and the entries that are not rolled up yet, in at most 8 queries.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Max, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from agents.models import Agent
from bonobot.ledger.models import TOOK, Rollup
from bonobot.ledger.usage.aggregation import (
    BUCKET_COUNT,
    REFUSED,
    Grain,
    RollupKey,
    RollupKind,
    estimate_quantile,
    fold_entries,
    truncate_time,
)
from bonobot.ledger.usage.aggregation import RollupSum as Total
from bonobot.ledger.usage.build_rollups import load_uncounted_entries

DAY = timedelta(days=1)
TOOLS_SHOWN = 50
REASONS_SHOWN = 20
SUMS = ("calls", "duration_ms", "input_tokens", "output_tokens", "cost_microusd")


@dataclass(frozen=True)
class MetricsWindow:
    """A period that ends now, and the length of its buckets."""

    slug: str
    length: timedelta
    grain: Grain

    @property
    def step(self) -> timedelta:
        """Return the length of one bucket."""
        return timedelta(hours=1) if self.grain == "hour" else timedelta(days=1)


WINDOWS = (
    MetricsWindow("24h", timedelta(hours=24), "hour"),
    MetricsWindow("7d", timedelta(days=7), "hour"),
    MetricsWindow("30d", timedelta(days=30), "day"),
    MetricsWindow("90d", timedelta(days=90), "day"),
)


@dataclass
class CallCounts:
    """Sums over audit rows. Durations are of admitted calls, in milliseconds."""

    calls: int = 0
    failed: int = 0
    refused: int = 0
    turns: int = 0
    duration_ms: int = 0
    tokens: int = 0
    cost_microusd: int = 0

    @property
    def admitted(self) -> int:
        """Return the number of calls that were not refused."""
        return self.calls - self.refused

    @property
    def mean_ms(self) -> float | None:
        """Return the mean duration of a call in milliseconds."""
        return self.duration_ms / self.admitted if self.admitted else None

    def add_total(self, kind: RollupKind, total: Total) -> None:
        self.tokens += total.input_tokens + total.output_tokens
        self.cost_microusd += total.cost_microusd
        if kind.event_type == "model":
            self.turns += total.calls
            return
        self.calls += total.calls
        self.duration_ms += total.duration_ms
        self.failed += total.calls if kind.outcome in ("error", "unknown") else 0
        self.refused += total.calls if kind.outcome == REFUSED else 0


@dataclass
class MetricsBucket(CallCounts):
    """One hour or day; `height` is in percent of the busiest one."""

    begins: datetime = datetime.min
    height: int = 0


@dataclass
class ServerUsage(CallCounts):
    """Calls of one agent to one server."""

    last: datetime | None = None


@dataclass
class AgentMetrics:
    """The numbers of one window, as the page shows them."""

    window: MetricsWindow
    since: datetime
    total: CallCounts = field(default_factory=CallCounts)
    steps: list[MetricsBucket] = field(default_factory=list)
    tools: list[tuple[str, str, UUID | None, CallCounts]] = field(default_factory=list)
    reasons: list[tuple[str, str, str, int]] = field(default_factory=list)
    p50_ms: float | None = None
    p95_ms: float | None = None


def load_metrics(agent: Agent, window: MetricsWindow) -> AgentMetrics:
    """Return the agent's metrics of the window (at most 8 queries)."""
    since = truncate_time(timezone.now() - window.length, window.grain) + window.step
    rollups, uncounted_totals = _load_counts(agent, since, window.grain)
    metrics = AgentMetrics(window, since)
    metrics.steps = _build_buckets(rollups, uncounted_totals, metrics)
    metrics.tools = _list_busiest_tools(rollups, uncounted_totals)
    metrics.reasons = _list_error_reasons(rollups, uncounted_totals)
    duration_buckets = _sum_durations(rollups, uncounted_totals)
    metrics.p50_ms, metrics.p95_ms = (
        estimate_quantile(duration_buckets, 0.5),
        estimate_quantile(duration_buckets, 0.95),
    )
    return metrics


def load_usage_by_server(agent: Agent, length: timedelta) -> dict[UUID | None, ServerUsage]:
    """Return the agent's usage of each server, by whole days up to now (3 queries)."""
    rollups, uncounted_totals = _load_counts(
        agent, truncate_time(timezone.now() - length, "day") + DAY, "day"
    )
    usage_by_server: dict[UUID | None, ServerUsage] = {}
    calls = rollups.filter(event_type="call")
    for kind, _begins, total in _group_totals(
        calls, uncounted_totals, "server_id", "event_type", "outcome"
    ):
        if kind.event_type == "call":
            usage = usage_by_server.setdefault(kind.server_id, ServerUsage())
            usage.add_total(kind, total)
            usage.last = max(filter(None, (usage.last, total.last_at)), default=None)
    return usage_by_server


def _load_counts(
    agent: Agent, since: datetime, grain: Grain
) -> tuple[QuerySet[Rollup], dict[RollupKey, Total]]:
    """Return the agent's rollups, and totals of entries not rolled up yet (2 queries)."""
    rollups = Rollup.objects.filter(
        organization_id=agent.organization_id,
        agent_id=agent.pk,
        grain=grain,
        begins__gte=since,
    )
    uncounted_entries, _more = load_uncounted_entries(agent.organization_id)
    uncounted_totals = {
        rollup_key: total
        for rollup_key, total in fold_entries(uncounted_entries, (grain,)).items()
        if rollup_key.kind.agent_id == agent.pk and rollup_key.begins >= since
    }
    return rollups, uncounted_totals


def _build_buckets(
    rollups: Any, uncounted_totals: Mapping[RollupKey, Total], metrics: AgentMetrics
) -> list[MetricsBucket]:
    window = metrics.window
    bucket_count = int(window.length / window.step)
    starts = [metrics.since + window.step * index for index in range(bucket_count)]
    buckets = {start: MetricsBucket(begins=start) for start in starts}
    for kind, begins, total in _group_totals(
        rollups, uncounted_totals, "begins", "event_type", "outcome"
    ):
        metrics.total.add_total(kind, total)
        if begins in buckets:
            buckets[begins].add_total(kind, total)
    busiest = max((bucket.calls for bucket in buckets.values()), default=0) or 1
    for bucket in buckets.values():
        bucket.height = round(100 * bucket.calls / busiest)
    return list(buckets.values())


def _list_busiest_tools(rollups: Any, uncounted_totals: Mapping[RollupKey, Total]) -> list[Any]:
    columns = ("tool_name", "server_id", "event_type", "outcome")
    calls = rollups.filter(event_type="call")
    counts_by_tool: dict[tuple[str, UUID | None], CallCounts] = {}
    server_names: dict[UUID | None, str] = {}
    for kind, _begins, total in _group_totals(calls, uncounted_totals, *columns, "server_name"):
        if kind.event_type == "call":
            counts_by_tool.setdefault((kind.tool_name, kind.server_id), CallCounts()).add_total(
                kind, total
            )
            server_names[kind.server_id] = total.server_name
    busiest = sorted(counts_by_tool.items(), key=lambda item: (-item[1].calls, item[0][0]))[
        :TOOLS_SHOWN
    ]
    return [(tool, server_names[server], server, counts) for (tool, server), counts in busiest]


def _list_error_reasons(
    rollups: Any, uncounted_totals: Mapping[RollupKey, Total]
) -> list[tuple[str, str, str, int]]:
    failed_rollups = rollups.exclude(code="")
    counts_by_reason: dict[tuple[str, str, str], int] = {}
    for kind, _begins, total in _group_totals(
        failed_rollups, uncounted_totals, "outcome", "code", "rule"
    ):
        if kind.code:
            key = (kind.outcome, kind.code, kind.rule)
            counts_by_reason[key] = counts_by_reason.get(key, 0) + total.calls
    most_frequent = sorted(counts_by_reason.items(), key=lambda item: (-item[1], item[0]))[
        :REASONS_SHOWN
    ]
    return [(*key, count) for key, count in most_frequent]


def _sum_durations(
    rollups: QuerySet[Rollup], uncounted_totals: Mapping[RollupKey, Total]
) -> Sequence[int]:
    calls = rollups.filter(event_type="call").exclude(outcome=REFUSED)
    sums = calls.aggregate(**{name: Sum(name) for name in TOOK})
    durations = [sums[name] or 0 for name in TOOK]
    for rollup_key, total in uncounted_totals.items():
        if rollup_key.kind.event_type == "call" and rollup_key.kind.outcome != REFUSED:
            durations = [
                durations[index] + total.duration_counts[index] for index in range(BUCKET_COUNT)
            ]
    return durations


def _group_totals(
    rollups: Any, uncounted_totals: Mapping[RollupKey, Total], *columns: str
) -> Iterable[tuple[RollupKind, datetime, Total]]:
    """Yield the rollups grouped by these columns, then the uncounted totals."""
    last_call_at = Max(Coalesce("last_at", "begins"))
    sums = {f"all_{name}": Sum(name) for name in SUMS}
    rows = rollups.values(*columns).annotate(**sums, all_last=last_call_at)
    blank = RollupKind(UUID(int=0), "call", "", "", "", None, None, "", "")
    for row in rows.order_by():
        total = Total(server_name=row.get("server_name", ""), last_at=row["all_last"])
        for name in SUMS:
            setattr(total, name, row[f"all_{name}"] or 0)
        kind = blank._replace(**{name: row[name] for name in columns if name in RollupKind._fields})
        yield kind, row.get("begins", datetime.min), total
    for rollup_key, total in uncounted_totals.items():
        yield rollup_key.kind, rollup_key.begins, total
