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
    BUCKETS,
    REFUSED,
    Grain,
    RollupKey,
    RollupKind,
    estimate_quantile,
    fold,
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
    def made(self) -> int:
        """Return the number of calls that were not refused."""
        return self.calls - self.refused

    @property
    def mean_ms(self) -> float | None:
        """Return the mean duration of a call in milliseconds."""
        return self.duration_ms / self.made if self.made else None

    def add(self, kind: RollupKind, total: Total) -> None:
        """Add the total of one kind of rows."""
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
    counted, fresh = _load_counts(agent, since, window.grain)
    found = AgentMetrics(window, since)
    found.steps = _build_buckets(counted, fresh, found)
    found.tools = _list_busiest_tools(counted, fresh)
    found.reasons = _list_error_reasons(counted, fresh)
    took = _sum_durations(counted, fresh)
    found.p50_ms, found.p95_ms = estimate_quantile(took, 0.5), estimate_quantile(took, 0.95)
    return found


def load_usage_by_server(agent: Agent, length: timedelta) -> dict[UUID | None, ServerUsage]:
    """Return the agent's usage of each server, by whole days up to now (3 queries)."""
    counted, fresh = _load_counts(agent, truncate_time(timezone.now() - length, "day") + DAY, "day")
    found: dict[UUID | None, ServerUsage] = {}
    calls = counted.filter(event_type="call")
    for kind, _begins, total in _group_totals(calls, fresh, "server_id", "event_type", "outcome"):
        if kind.event_type == "call":
            use = found.setdefault(kind.server_id, ServerUsage())
            use.add(kind, total)
            use.last = max(filter(None, (use.last, total.last_at)), default=None)
    return found


def _load_counts(
    agent: Agent, since: datetime, grain: Grain
) -> tuple[QuerySet[Rollup], dict[RollupKey, Total]]:
    """Return the agent's rollups, and totals of entries not rolled up yet (2 queries)."""
    counted = Rollup.objects.filter(
        organization_id=agent.organization_id,
        agent_id=agent.pk,
        grain=grain,
        begins__gte=since,
    )
    rest, _more = load_uncounted_entries(agent.organization_id)
    fresh = {
        place: total
        for place, total in fold(rest, (grain,)).items()
        if place.kind.agent_id == agent.pk and place.begins >= since
    }
    return counted, fresh


def _build_buckets(
    counted: Any, fresh: Mapping[RollupKey, Total], found: AgentMetrics
) -> list[MetricsBucket]:
    window = found.window
    number = int(window.length / window.step)
    moments = [found.since + window.step * index for index in range(number)]
    steps = {moment: MetricsBucket(begins=moment) for moment in moments}
    for kind, begins, total in _group_totals(counted, fresh, "begins", "event_type", "outcome"):
        found.total.add(kind, total)
        if begins in steps:
            steps[begins].add(kind, total)
    busiest = max((step.calls for step in steps.values()), default=0) or 1
    for step in steps.values():
        step.height = round(100 * step.calls / busiest)
    return list(steps.values())


def _list_busiest_tools(counted: Any, fresh: Mapping[RollupKey, Total]) -> list[Any]:
    columns = ("tool_name", "server_id", "event_type", "outcome")
    calls = counted.filter(event_type="call")
    found: dict[tuple[str, UUID | None], CallCounts] = {}
    names: dict[UUID | None, str] = {}
    for kind, _begins, total in _group_totals(calls, fresh, *columns, "server_name"):
        if kind.event_type == "call":
            found.setdefault((kind.tool_name, kind.server_id), CallCounts()).add(kind, total)
            names[kind.server_id] = total.server_name
    busiest = sorted(found.items(), key=lambda one: (-one[1].calls, one[0][0]))[:TOOLS_SHOWN]
    return [(tool, names[server], server, counts) for (tool, server), counts in busiest]


def _list_error_reasons(
    counted: Any, fresh: Mapping[RollupKey, Total]
) -> list[tuple[str, str, str, int]]:
    unwell = counted.exclude(code="")
    found: dict[tuple[str, str, str], int] = {}
    for kind, _begins, total in _group_totals(unwell, fresh, "outcome", "code", "rule"):
        if kind.code:
            key = (kind.outcome, kind.code, kind.rule)
            found[key] = found.get(key, 0) + total.calls
    most = sorted(found.items(), key=lambda one: (-one[1], one[0]))[:REASONS_SHOWN]
    return [(*key, times) for key, times in most]


def _sum_durations(counted: QuerySet[Rollup], fresh: Mapping[RollupKey, Total]) -> Sequence[int]:
    calls = counted.filter(event_type="call").exclude(outcome=REFUSED)
    sums = calls.aggregate(**{name: Sum(name) for name in TOOK})
    took = [sums[name] or 0 for name in TOOK]
    for place, total in fresh.items():
        if place.kind.event_type == "call" and place.kind.outcome != REFUSED:
            took = [took[number] + total.took[number] for number in range(BUCKETS)]
    return took


def _group_totals(
    counted: Any, fresh: Mapping[RollupKey, Total], *columns: str
) -> Iterable[tuple[RollupKind, datetime, Total]]:
    """Yield the rollups grouped by these columns, then the uncounted totals."""
    last = Max(Coalesce("last_at", "begins"))
    sums = {f"all_{name}": Sum(name) for name in SUMS}
    rows = counted.values(*columns).annotate(**sums, all_last=last)
    blank = RollupKind(UUID(int=0), "call", "", "", "", None, None, "", "")
    for row in rows.order_by():
        total = Total(server_name=row.get("server_name", ""), last_at=row["all_last"])
        for name in SUMS:
            setattr(total, name, row[f"all_{name}"] or 0)
        kind = blank._replace(**{name: row[name] for name in columns if name in RollupKind._fields})
        yield kind, row.get("begins", datetime.min), total
    for place, total in fresh.items():
        yield place.kind, place.begins, total
