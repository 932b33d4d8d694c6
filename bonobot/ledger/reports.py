"""Reports: the rollups of an organization, summed by whatever is asked, and what isn't in them yet.

Each report is one query over rows that were counted already; what ended since the last count is
read once (`counting.tail`, bounded) and added to all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import Max, Q
from django.db.models import Sum as SumOf

from bonobot.ledger import counting
from bonobot.ledger.models import TOOK, AuditRow, Rollup
from bonobot.ledger.rollups import BUCKETS, Ended, Grain, fold, quantile

# What a report may be by; of agents and servers the id, their names come along.
BY = frozenset(
    {"begins", "organization_id", "event_type", "agent_id", "server_id", "tool_name", "model"}
    | {"code", "rule"}
)
ERRORS = ("error", "unknown")
MOST_LINES = 1_000

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Span:
    """From when (inclusive) to when (exclusive; None: now), by hours or days of UTC."""

    since: datetime
    until: datetime | None
    grain: Grain

    def holds(self, moment: datetime) -> bool:
        """Tell whether a moment belongs to it."""
        return self.since <= moment and (self.until is None or moment < self.until)


@dataclass(slots=True)
class Line:
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

    def add(self, other: "Line") -> None:
        """Add another line."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.took = [here + more for here, more in zip(self.took, other.took, strict=True)]
        self.agent_name = other.agent_name or self.agent_name
        self.server_name = other.server_name or self.server_name

    @property
    def p50(self) -> float | None:
        """The median duration in milliseconds."""
        return quantile(self.took, 0.5)

    @property
    def p95(self) -> float | None:
        """The 95th percentile in milliseconds."""
        return quantile(self.took, 0.95)

    @property
    def tokens(self) -> int:
        """All tokens, in and out."""
        return self.input_tokens + self.output_tokens


COUNTS = (
    *("calls", "ok", "errors", "refused", "turns"),
    *("input_tokens", "output_tokens", "cost_microusd"),
)
_CALL = Q(event_type="call")
_OK = _CALL & Q(outcome=AuditRow.Outcome.OK)
# `n_` keeps them apart from the model's own columns.
_SUMS: dict[str, Any] = {
    "n_calls": SumOf("calls", filter=_CALL, default=0),
    "n_ok": SumOf("calls", filter=_OK, default=0),
    "n_errors": SumOf("calls", filter=_CALL & Q(outcome__in=ERRORS), default=0),
    "n_refused": SumOf("calls", filter=_CALL & Q(outcome="refused"), default=0),
    "n_turns": SumOf("calls", filter=Q(event_type="model") & ~Q(outcome="refused"), default=0),
    "n_input_tokens": SumOf("input_tokens", default=0),
    "n_output_tokens": SumOf("output_tokens", default=0),
    "n_cost_microusd": SumOf("cost_microusd", default=0),
    **{f"n_{name}": SumOf(name, filter=_OK, default=0) for name in TOOK},
}
_NAMES: dict[str, Any] = {"n_agent": Max("agent_name"), "n_server": Max("server_name")}


@dataclass(frozen=True)
class Reader:
    """Reads reports of one organization (None: of all) within a span.

    `tail` is what isn't counted yet.
    """

    organization_id: UUID | None
    span: Span
    tail: Sequence[Ended] = ()
    complete: bool = True  # False: there is more than the tail that isn't counted yet

    def read(self, *by: str, most: int = MOST_LINES, **where: Any) -> dict[Key, Line]:
        """Return the lines by their keys, the most calls first (one query)."""
        if strange := set(by) - BY:
            raise ValueError(f"A report can't be by {sorted(strange)}.")
        rows = self._rows().filter(**where).order_by().values(*by)
        rows = rows.annotate(**_SUMS, **_NAMES).order_by("-n_calls", "-n_turns", *by)[:most]
        found = {tuple(row[name] for name in by): _line(row) for row in rows}
        for key, line in self._uncounted(by, where):
            found.setdefault(key, Line()).add(line)
        ordered = sorted(found.items(), key=lambda one: (-one[1].calls, -one[1].turns))
        return dict(ordered[:most])

    def _rows(self) -> Any:
        span = self.span
        rows = Rollup.objects.filter(grain=span.grain, begins__gte=span.since)
        if self.organization_id is not None:
            rows = rows.filter(organization_id=self.organization_id)
        return rows.filter(begins__lt=span.until) if span.until else rows

    def _uncounted(self, by: Sequence[str], where: Mapping[str, Any]) -> Iterable[tuple[Key, Line]]:
        for place, total in fold(self.tail, (self.span.grain,)).items():
            names = {"agent_name": total.agent_name, "server_name": total.server_name}
            facts = {**place.kind._asdict(), **names, "begins": place.begins}
            if not self.span.holds(place.begins):
                continue
            if any(facts[name] != value for name, value in where.items()):
                continue
            call, outcome = place.kind.event_type == "call", place.kind.outcome
            yield (
                tuple(facts[name] for name in by),
                Line(
                    calls=total.calls * call,
                    ok=total.calls * (call and outcome == "ok"),
                    errors=total.calls * (call and outcome in ERRORS),
                    refused=total.calls * (call and outcome == "refused"),
                    turns=total.calls * (not call and outcome != "refused"),
                    input_tokens=total.input_tokens,
                    output_tokens=total.output_tokens,
                    cost_microusd=total.cost_microusd,
                    took=total.took if call and outcome == "ok" else [0] * BUCKETS,
                    agent_name=total.agent_name,
                    server_name=total.server_name,
                ),
            )


def reader(organization_id: UUID, span: Span) -> Reader:
    """Return what reads the reports of an organization up to now (2 queries)."""
    tail, more = counting.tail(organization_id)
    return Reader(organization_id, span, tail, complete=not more)


def total(lines: Iterable[Line]) -> Line:
    """Return what lines come to together."""
    whole = Line()
    for line in lines:
        whole.add(line)
    return whole


def _line(row: Mapping[str, Any]) -> Line:
    return Line(
        **{name: row[f"n_{name}"] for name in COUNTS},
        took=[row[f"n_{name}"] for name in TOOK],
        agent_name=row["n_agent"],
        server_name=row["n_server"],
    )


def utc(moment: datetime) -> datetime:
    """Return a moment in UTC, in which hours and days are counted."""
    return moment.astimezone(UTC)
