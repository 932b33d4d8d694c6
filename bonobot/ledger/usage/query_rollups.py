"""Sums over a span, with the uncounted rest.

Each report is one query over rows that were counted already; what ended since the last count is
read once (`counting.tail`, bounded) and added to all of them.

The busiest of each step (hour or day) are read from an index. Whoever isn't among them in a step
has at most as many calls there as the last of them, so of each it is known how many there are at
least and at most. Where the most that anybody unseen can have is less than the least of those
wanted, the others needn't be looked at: who remains is exact. Where many are equally busy that
doesn't hold, and all have to be added up.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Count, F, FloatField, Max, Q, QuerySet
from django.db.models import Sum as SumOf
from django.db.models.functions import Cast
from django.utils import timezone

from bonobot.ledger.models import TOOK, AuditRow, Counted, Rollup, Summary
from bonobot.ledger.usage import build_rollups
from bonobot.ledger.usage.aggregation import (
    COUNTS,
    DIMENSIONS,
    ERRORS,
    NAMES,
    Grain,
    UsageDimension,
    UsageEntry,
    UsageLine,
    build_line,
    fold,
    hash_subject,
    truncate_time,
)

MOST = 20  # so many are looked for at most
LOOKED_AT = 300  # of each step
MOST_STEPS = 200

_FIELDS: dict[str, Any] = {
    name: Summary._meta.get_field(name) for name in ("organization_id", "begins")
}
_BUSIEST = (
    "SELECT * FROM (SELECT begins, subject, calls FROM ledger_summary WHERE organization_id = %s"
    " AND dimension = %s AND grain = %s AND begins = %s ORDER BY calls DESC LIMIT %s) AS step"
)


class BusiestSubject(NamedTuple):
    """One of the busiest of a step."""

    begins: datetime
    subject: UUID
    calls: int


def find_busiest_subjects(
    organization_id: UUID, dimension: str, grain: str, steps: Sequence[datetime], *, most: int
) -> list[UUID] | None:
    """Return those among whom the most are; None where that can't be told (one query)."""
    if not 0 < len(steps) <= MOST_STEPS:
        return None
    owner = _FIELDS["organization_id"].get_db_prep_value(organization_id, connection)
    values: list[Any] = []
    for begins in steps:
        moment = _FIELDS["begins"].get_db_prep_value(begins, connection)
        values += [owner, dimension, grain, moment, LOOKED_AT]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join([_BUSIEST] * len(steps)), values)
        found = [
            BusiestSubject(begins, _parse_uuid(subject), calls) for begins, subject, calls in cursor
        ]
    return select_busiest(found, most=most, looked_at=LOOKED_AT)


def select_busiest(
    seen: Sequence[BusiestSubject], *, most: int, looked_at: int
) -> list[UUID] | None:
    """Return those who may be among the most, of the busiest `looked_at` of each step."""
    least: Counter[UUID] = Counter()
    bounds = _bound_unseen_calls(seen, looked_at)
    unseen = sum(bounds.values())
    # What each can have in steps where it isn't among the busiest: all of those but its own.
    missed: Counter[UUID] = Counter()
    for one in seen:
        least[one.subject] += one.calls
        missed[one.subject] += bounds[one.begins]
    ranked = sorted(least.values(), reverse=True)
    wanted = ranked[most - 1] if len(ranked) >= most else 0
    if unseen and unseen >= wanted:
        return None
    return [who for who, calls in least.items() if calls + unseen - missed[who] >= wanted]


def _bound_unseen_calls(seen: Sequence[BusiestSubject], looked_at: int) -> Mapping[datetime, int]:
    """Return how many calls somebody unseen can have in each step."""
    many = Counter(one.begins for one in seen)
    bounds = dict.fromkeys(many, 0)
    for one in seen:
        if many[one.begins] >= looked_at:
            bounds[one.begins] = min(bounds[one.begins] or one.calls, one.calls)
    return bounds


def _parse_uuid(value: object) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


# What a report may be by; of agents and servers the id, their names come along.
BY = frozenset(
    {"begins", "organization_id", "event_type", "agent_id", "server_id", "tool_name", "model"}
    | {"code", "rule"}
)
MOST_LINES, MOST_ORGANIZATIONS = 1_000, 1_000_000
# What the most is of; PostgreSQL sums whole numbers of 64 bits several times slower than others.
MUCH = {"call": ("calls",), "model": ("turns",)}
HOURS_READ = build_rollups.HOURLY_SUMMARIES_KEPT - timedelta(days=1)

Key = tuple[Any, ...]


@dataclass(frozen=True)
class ReportSpan:
    """From when (inclusive) to when (exclusive; None: now), by hours or days of UTC."""

    since: datetime
    until: datetime | None
    grain: Grain

    def holds(self, moment: datetime) -> bool:
        """Tell whether a moment belongs to it."""
        return self.since <= moment and (self.until is None or moment < self.until)

    def by_days(self) -> "ReportSpan":
        """Return it by days, where it is of whole ones; the last one may still run."""
        ends = [one for one in (self.since, self.until) if one is not None]
        whole = all(one == truncate_time(one, "day") for one in ends)
        return replace(self, grain="day") if whole else self

    def in_days(self) -> "ReportSpan":
        """Return the days that it lies in."""
        return ReportSpan(truncate_time(self.since, "day"), self.until, "day")


def list_steps(span: ReportSpan) -> list[datetime]:
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
class UsageReader:
    """Reads reports of one organization (None: of all) within a span.

    `tail` is what isn't counted yet. Days from `summed_since` on are read from summaries, where
    one tells what is asked; None: no day is.
    """

    organization_id: UUID | None
    span: ReportSpan
    tail: Sequence[UsageEntry] = ()
    complete: bool = True  # False: there is more than the tail that isn't counted yet
    summed_since: datetime | None = None

    def read(self, *by: str, most: int = MOST_LINES, **where: Any) -> dict[Key, UsageLine]:
        """Return the lines by their keys, the most calls first (one query)."""
        if strange := set(by) - BY:
            raise ValueError(f"A report can't be by {sorted(strange)}.")
        span = self.span if "begins" in by else self.span.by_days()
        found = self._counted(span, by, most, where)
        for key, line in self._uncounted(span, by, where):
            found.setdefault(key, UsageLine()).add(line)
        ordered = sorted(found.items(), key=lambda one: (-one[1].calls, -one[1].turns))
        return dict(ordered[:most])

    def total(self, **where: Any) -> UsageLine:
        """Return what all of it comes to (one query)."""
        return sum_lines(self.read("organization_id", most=MOST_ORGANIZATIONS, **where).values())

    def _counted(
        self, span: ReportSpan, by: Sequence[str], most: int, where: Mapping[str, Any]
    ) -> dict[Key, UsageLine]:
        dimension = self._dimension(span, by, where)
        if dimension is None:
            rows, sums = self._rollups(span, where), _SUMS
        else:
            rows, sums = self._summaries(dimension, span, by, most, where), _SUMMED
        grouped = rows.order_by().values(*by).annotate(**sums, **_NAMES)
        lines = grouped.order_by("-n_calls", "-n_turns", *by)[:most]
        return {tuple(row[name] for name in by): _build_line(row) for row in lines}

    def _dimension(
        self, span: ReportSpan, by: Sequence[str], where: Mapping[str, Any]
    ) -> UsageDimension | None:
        """Return the dimension whose summaries tell it, where they are whole."""
        if self.summed_since is None or span.since < self.summed_since:
            return None
        if span.grain == "hour" and span.since < timezone.now() - HOURS_READ:
            return None
        return next((one for one in DIMENSIONS if one.tells(by, where)), None)

    def _summaries(
        self,
        dimension: UsageDimension,
        span: ReportSpan,
        by: Sequence[str],
        most: int,
        where: Mapping[str, Any],
    ) -> QuerySet[Summary]:
        apart = {name: value for name, value in where.items() if name not in dimension.of}
        rows = Summary.objects.filter(dimension=dimension.name, **apart)
        rows = self._within(rows, span)
        if apart.keys() >= set(dimension.columns):  # the indices know them as a subject alone
            values = [apart[name] for name in dimension.columns]
            rows = rows.filter(subject=hash_subject(values))
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

    def _busiest(self, dimension: UsageDimension, span: ReportSpan, most: int) -> list[UUID] | None:
        """Return who may be among the most, where looking at each step's busiest tells that."""
        of_calls = MUCH.get(dimension.of.get("event_type", ""), ("calls",)) == ("calls",)
        if self.organization_id is None or most > MOST or not of_calls:
            return None
        return find_busiest_subjects(
            self.organization_id, dimension.name, span.grain, list_steps(span), most=most
        )

    def _rollups(self, span: ReportSpan, where: Mapping[str, Any]) -> Any:
        rows = self._within(Rollup.objects.filter(**where), span)
        for column, name in NAMES.items():
            if name in where and self.summed_since and self.summed_since <= span.since:
                # Whoever was called so, that an index of rollups can be used.
                of = Summary.objects.filter(dimension=name.removesuffix("_name"))
                so = self._within(of, span.in_days()).filter(**{name: where[name]})
                rows = rows.filter(**{f"{column}__in": so.values(column)})
        return rows

    def _within(self, rows: Any, span: ReportSpan) -> Any:
        rows = rows.filter(grain=span.grain, begins__gte=span.since)
        if self.organization_id is not None:
            rows = rows.filter(organization_id=self.organization_id)
        else:  # so that the indices, which begin with the organization, are of use
            rows = rows.filter(organization_id__in=Counted.objects.values("organization_id"))
        return rows.filter(begins__lt=span.until) if span.until else rows

    def _uncounted(
        self, span: ReportSpan, by: Sequence[str], where: Mapping[str, Any]
    ) -> Iterable[tuple[Key, UsageLine]]:
        for place, sums in fold(self.tail, (span.grain,)).items():
            names = {"agent_name": sums.agent_name, "server_name": sums.server_name}
            facts = {**place.kind._asdict(), **names, "begins": place.begins}
            if not span.holds(place.begins):
                continue
            if any(facts[name] != value for name, value in where.items()):
                continue
            yield tuple(facts[name] for name in by), build_line(place.kind, sums)


def open_reader(
    organization_id: UUID, span: ReportSpan, *, everywhere: bool = False
) -> UsageReader:
    """Return what reads the reports of an organization up to now (3 queries).

    `everywhere`: those of all organizations, with what isn't counted yet of this one.
    """
    summed = _load_common_summed_since() if everywhere else _load_summed_since(organization_id)
    tail, more = build_rollups.load_uncounted_entries(organization_id)
    return UsageReader(
        None if everywhere else organization_id,
        span,
        tail,
        complete=not more,
        summed_since=summed,
    )


def _load_summed_since(organization_id: UUID) -> datetime | None:
    cursor = Counted.objects.filter(pk=organization_id).first()
    return build_rollups.get_complete_since(cursor) if cursor else None


def _load_common_summed_since() -> datetime | None:
    """Return from when on the summaries of all organizations are whole."""
    behind = Q(summed_since__isnull=True) | ~Q(summed_version=F("version"))
    found = Counted.objects.aggregate(behind=Count("pk", filter=behind), since=Max("summed_since"))
    return None if found["behind"] else found["since"]


def sum_lines(lines: Iterable[UsageLine]) -> UsageLine:
    """Return what lines come to together."""
    whole = UsageLine()
    for line in lines:
        whole.add(line)
    return whole


def _build_line(row: Mapping[str, Any]) -> UsageLine:
    return UsageLine(
        **{name: row[f"n_{name}"] for name in COUNTS},
        took=[row[f"n_{name}"] for name in TOOK],
        agent_name=row["n_agent"],
        server_name=row["n_server"],
    )


def to_utc(moment: datetime) -> datetime:
    """Return a moment in UTC, in which hours and days are counted."""
    return moment.astimezone(UTC)
