"""Reports: the rollups of an organization, summed by whatever is asked, and what isn't in them yet.

Each report is one query over rows that were counted already; what ended since the last count is
read once (`counting.tail`, bounded) and added to all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any
from uuid import UUID

from django.db.models import Count, F, FloatField, Max, Q, QuerySet
from django.db.models import Sum as SumOf
from django.db.models.functions import Cast
from django.utils import timezone

from bonobot.ledger import counting, leaders, summing
from bonobot.ledger.dimensions import (
    COUNTS,
    DIMENSIONS,
    ERRORS,
    NAMES,
    Dimension,
    Line,
    line_of,
    subject_of,
)
from bonobot.ledger.models import TOOK, AuditRow, Counted, Rollup, Summary
from bonobot.ledger.rollups import Ended, Grain, beginning, fold

# What a report may be by; of agents and servers the id, their names come along.
BY = frozenset(
    {"begins", "organization_id", "event_type", "agent_id", "server_id", "tool_name", "model"}
    | {"code", "rule"}
)
MOST_LINES, MOST_ORGANIZATIONS = 1_000, 1_000_000
# What the most is of; PostgreSQL sums whole numbers of 64 bits several times slower than others.
MUCH = {"call": ("calls",), "model": ("turns",)}
HOURS_READ = summing.HOURS_KEPT - timedelta(days=1)

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

    def by_days(self) -> "Span":
        """Return it by days, where it is of whole ones; the last one may still run."""
        ends = [one for one in (self.since, self.until) if one is not None]
        whole = all(one == beginning(one, "day") for one in ends)
        return replace(self, grain="day") if whole else self

    def in_days(self) -> "Span":
        """Return the days that it lies in."""
        return Span(beginning(self.since, "day"), self.until, "day")


def steps_of(span: Span) -> list[datetime]:
    """Return when its hours or days begin."""
    step = timedelta(hours=1) if span.grain == "hour" else timedelta(days=1)
    until = span.until or timezone.now()
    return [span.since + number * step for number in range(ceil((until - span.since) / step))]


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
# Summaries have what lines say, each in a column.
_SUMMED: dict[str, Any] = {f"n_{name}": SumOf(name, default=0) for name in (*COUNTS, *TOOK)}
_NAMES: dict[str, Any] = {"n_agent": Max("agent_name"), "n_server": Max("server_name")}


@dataclass(frozen=True)
class Reader:
    """Reads reports of one organization (None: of all) within a span.

    `tail` is what isn't counted yet. Days from `summed_since` on are read from summaries, where
    one tells what is asked; None: no day is.
    """

    organization_id: UUID | None
    span: Span
    tail: Sequence[Ended] = ()
    complete: bool = True  # False: there is more than the tail that isn't counted yet
    summed_since: datetime | None = None

    def read(self, *by: str, most: int = MOST_LINES, **where: Any) -> dict[Key, Line]:
        """Return the lines by their keys, the most calls first (one query)."""
        if strange := set(by) - BY:
            raise ValueError(f"A report can't be by {sorted(strange)}.")
        span = self.span if "begins" in by else self.span.by_days()
        found = self._counted(span, by, most, where)
        for key, line in self._uncounted(span, by, where):
            found.setdefault(key, Line()).add(line)
        ordered = sorted(found.items(), key=lambda one: (-one[1].calls, -one[1].turns))
        return dict(ordered[:most])

    def total(self, **where: Any) -> Line:
        """Return what all of it comes to (one query)."""
        return total(self.read("organization_id", most=MOST_ORGANIZATIONS, **where).values())

    def _counted(
        self, span: Span, by: Sequence[str], most: int, where: Mapping[str, Any]
    ) -> dict[Key, Line]:
        dimension = self._dimension(span, by, where)
        if dimension is None:
            rows, sums = self._rollups(span, where), _SUMS
        else:
            rows, sums = self._summaries(dimension, span, by, most, where), _SUMMED
        grouped = rows.order_by().values(*by).annotate(**sums, **_NAMES)
        lines = grouped.order_by("-n_calls", "-n_turns", *by)[:most]
        return {tuple(row[name] for name in by): _line(row) for row in lines}

    def _dimension(
        self, span: Span, by: Sequence[str], where: Mapping[str, Any]
    ) -> Dimension | None:
        """Return the dimension whose summaries tell it, where they are whole."""
        if self.summed_since is None or span.since < self.summed_since:
            return None
        if span.grain == "hour" and span.since < timezone.now() - HOURS_READ:
            return None
        return next((one for one in DIMENSIONS if one.tells(by, where)), None)

    def _summaries(
        self,
        dimension: Dimension,
        span: Span,
        by: Sequence[str],
        most: int,
        where: Mapping[str, Any],
    ) -> QuerySet[Summary]:
        apart = {name: value for name, value in where.items() if name not in dimension.of}
        rows = Summary.objects.filter(dimension=dimension.name, **apart)
        rows = self._within(rows, span)
        if apart.keys() >= set(dimension.columns):  # the indices know them as a subject alone
            values = [apart[name] for name in dimension.columns]
            rows = rows.filter(subject=subject_of(values))
        if not apart and set(by) == set(dimension.columns):
            # Which ones are shown is read from an index, then what they come to from their rows.
            shown = self._busiest(dimension, span, most)
            if shown is not None:
                return rows.filter(subject__in=shown)
            much = MUCH.get(dimension.of.get("event_type", ""), ("calls", "turns"))
            sums = {f"n_{name}": SumOf(Cast(name, FloatField())) for name in much}
            first = [f"-{name}" for name in sums]
            grouped = rows.order_by().values("subject").annotate(**sums)
            first_ones = grouped.order_by(*first, "subject")[:most]
            rows = rows.filter(subject__in=first_ones.values("subject"))
        return rows

    def _busiest(self, dimension: Dimension, span: Span, most: int) -> list[UUID] | None:
        """Return who may be among the most, where looking at each step's busiest tells that."""
        of_calls = MUCH.get(dimension.of.get("event_type", ""), ("calls",)) == ("calls",)
        if self.organization_id is None or most > leaders.MOST or not of_calls:
            return None
        return leaders.leaders(
            self.organization_id, dimension.name, span.grain, steps_of(span), most=most
        )

    def _rollups(self, span: Span, where: Mapping[str, Any]) -> Any:
        rows = self._within(Rollup.objects.filter(**where), span)
        for column, name in NAMES.items():
            if name in where and self.summed_since and self.summed_since <= span.since:
                # Whoever was called so, that an index of rollups can be used.
                of = Summary.objects.filter(dimension=name.removesuffix("_name"))
                so = self._within(of, span.in_days()).filter(**{name: where[name]})
                rows = rows.filter(**{f"{column}__in": so.values(column)})
        return rows

    def _within(self, rows: Any, span: Span) -> Any:
        rows = rows.filter(grain=span.grain, begins__gte=span.since)
        if self.organization_id is not None:
            rows = rows.filter(organization_id=self.organization_id)
        else:  # so that the indices, which begin with the organization, are of use
            rows = rows.filter(organization_id__in=Counted.objects.values("organization_id"))
        return rows.filter(begins__lt=span.until) if span.until else rows

    def _uncounted(
        self, span: Span, by: Sequence[str], where: Mapping[str, Any]
    ) -> Iterable[tuple[Key, Line]]:
        for place, sums in fold(self.tail, (span.grain,)).items():
            names = {"agent_name": sums.agent_name, "server_name": sums.server_name}
            facts = {**place.kind._asdict(), **names, "begins": place.begins}
            if not span.holds(place.begins):
                continue
            if any(facts[name] != value for name, value in where.items()):
                continue
            yield tuple(facts[name] for name in by), line_of(place.kind, sums)


def reader(organization_id: UUID, span: Span, *, everywhere: bool = False) -> Reader:
    """Return what reads the reports of an organization up to now (3 queries).

    `everywhere`: those of all organizations, with what isn't counted yet of this one.
    """
    summed = _everywhere_since() if everywhere else _summed_since(organization_id)
    tail, more = counting.tail(organization_id)
    return Reader(
        None if everywhere else organization_id,
        span,
        tail,
        complete=not more,
        summed_since=summed,
    )


def _summed_since(organization_id: UUID) -> datetime | None:
    cursor = Counted.objects.filter(pk=organization_id).first()
    return summing.whole_since(cursor) if cursor else None


def _everywhere_since() -> datetime | None:
    """Return from when on the summaries of all organizations are whole."""
    behind = Q(summed_since__isnull=True) | ~Q(summed_version=F("version"))
    found = Counted.objects.aggregate(behind=Count("pk", filter=behind), since=Max("summed_since"))
    return None if found["behind"] else found["since"]


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
