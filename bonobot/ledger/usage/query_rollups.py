"""Query totals over a time span, including entries that aren't counted yet.

Each report is one query over counted rows; entries that ended since the last count are read once
(a limited number) and added.

The busiest subjects of each step (hour or day) are read from an index. A subject that isn't among
them has at most as many calls in that step as the last of them, which gives a lower and an upper
bound for each subject. If the upper bound of all others is below the lower bound of the requested
ones, the result is exact; otherwise all rows have to be summed.
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

MOST = 20  # subjects that the index is used for
LOOKED_AT = 300  # subjects per step
MOST_STEPS = 200

_FIELDS: dict[str, Any] = {
    name: Summary._meta.get_field(name) for name in ("organization_id", "begins")
}
_BUSIEST = (
    "SELECT * FROM (SELECT begins, subject, calls FROM ledger_summary WHERE organization_id = %s"
    " AND dimension = %s AND grain = %s AND begins = %s ORDER BY calls DESC LIMIT %s) AS step"
)


class BusiestSubject(NamedTuple):
    """One of the busiest subjects of a step."""

    begins: datetime
    subject: UUID
    calls: int


def find_busiest_subjects(
    organization_id: UUID, dimension: str, grain: str, steps: Sequence[datetime], *, most: int
) -> list[UUID] | None:
    """Return candidates that include the busiest subjects, or None if unknown (one query)."""
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
    """Return the subjects that may be among the busiest, or None if others may be, too."""
    least: Counter[UUID] = Counter()
    bounds = _bound_unseen_calls(seen, looked_at)
    unseen = sum(bounds.values())
    # The bounds of the steps in which a subject is a candidate; they don't count for it.
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
    """Return the maximum calls of any other subject in each step."""
    many = Counter(one.begins for one in seen)
    bounds = dict.fromkeys(many, 0)
    for one in seen:
        if many[one.begins] >= looked_at:
            bounds[one.begins] = min(bounds[one.begins] or one.calls, one.calls)
    return bounds


def _parse_uuid(value: object) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


# The columns that a report can be grouped by; names are added to ids.
BY = frozenset(
    {"begins", "organization_id", "event_type", "agent_id", "server_id", "tool_name", "model"}
    | {"code", "rule"}
)
MOST_LINES, MOST_ORGANIZATIONS = 1_000, 1_000_000
# The columns that lines are ranked by.
MUCH = {"call": ("calls",), "model": ("turns",)}
HOURS_READ = build_rollups.HOURLY_SUMMARIES_KEPT - timedelta(days=1)

Key = tuple[Any, ...]


@dataclass(frozen=True)
class ReportSpan:
    """A time span from `since` to before `until` (None: now), by hours or days of UTC."""

    since: datetime
    until: datetime | None
    grain: Grain

    def holds(self, moment: datetime) -> bool:
        """Return whether the span contains a time."""
        return self.since <= moment and (self.until is None or moment < self.until)

    def by_days(self) -> "ReportSpan":
        """Return the span by days if it has whole days; the last one may be incomplete."""
        ends = [one for one in (self.since, self.until) if one is not None]
        whole = all(one == truncate_time(one, "day") for one in ends)
        return replace(self, grain="day") if whole else self

    def in_days(self) -> "ReportSpan":
        """Return the span expanded to whole days."""
        return ReportSpan(truncate_time(self.since, "day"), self.until, "day")


def list_steps(span: ReportSpan) -> list[datetime]:
    """Return the starts of the span's hours or days."""
    step = timedelta(hours=1) if span.grain == "hour" else timedelta(days=1)
    until = span.until or timezone.now()
    return [span.since + number * step for number in range(ceil((until - span.since) / step))]


_CALL = Q(event_type="call")
_OK = _CALL & Q(outcome=AuditRow.Outcome.OK)
# The prefix `n_` avoids conflicts with the model's columns.
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
# Summaries have a column for each field of a line.
_SUMMED: dict[str, Any] = {f"n_{name}": SumOf(name, default=0) for name in (*COUNTS, *TOOK)}
_NAMES: dict[str, Any] = {"n_agent": Max("agent_name"), "n_server": Max("server_name")}


@dataclass(frozen=True)
class UsageReader:
    """Reads reports of one organization (None: of all) within a span.

    `tail` has the entries that aren't counted yet. Days from `summed_since` on are read from
    summaries if a dimension fits; None means no day is.
    """

    organization_id: UUID | None
    span: ReportSpan
    tail: Sequence[UsageEntry] = ()
    complete: bool = True  # False: there are more uncounted entries than `tail`
    summed_since: datetime | None = None

    def read(self, *by: str, most: int = MOST_LINES, **where: Any) -> dict[Key, UsageLine]:
        """Return the lines by key, most calls first (one query)."""
        if strange := set(by) - BY:
            raise ValueError(f"A report can't be by {sorted(strange)}.")
        span = self.span if "begins" in by else self.span.by_days()
        found = self._counted(span, by, most, where)
        for key, line in self._uncounted(span, by, where):
            found.setdefault(key, UsageLine()).add(line)
        ordered = sorted(found.items(), key=lambda one: (-one[1].calls, -one[1].turns))
        return dict(ordered[:most])

    def total(self, **where: Any) -> UsageLine:
        """Return the total of all lines (one query)."""
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
        """Return the dimension whose complete summaries can answer the report, or None."""
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
        if apart.keys() >= set(dimension.columns):  # indexes only have the subject
            values = [apart[name] for name in dimension.columns]
            rows = rows.filter(subject=hash_subject(values))
        if not apart and set(by) == set(dimension.columns):
            # First select the subjects with an index, then sum their rows.
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
        """Return the subjects that may be among the busiest, or None if all must be summed."""
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
                # Translate the name to ids, so that an index of rollups can be used.
                of = Summary.objects.filter(dimension=name.removesuffix("_name"))
                so = self._within(of, span.in_days()).filter(**{name: where[name]})
                rows = rows.filter(**{f"{column}__in": so.values(column)})
        return rows

    def _within(self, rows: Any, span: ReportSpan) -> Any:
        rows = rows.filter(grain=span.grain, begins__gte=span.since)
        if self.organization_id is not None:
            rows = rows.filter(organization_id=self.organization_id)
        else:  # so that indexes, which start with the organization, are used
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
    """Return the reader of an organization's reports (3 queries).

    `all_organizations` reads those of all, with uncounted entries of this one only.
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
    """Return the time from which the summaries of all organizations are complete, or None."""
    behind = Q(summed_since__isnull=True) | ~Q(summed_version=F("version"))
    found = Counted.objects.aggregate(behind=Count("pk", filter=behind), since=Max("summed_since"))
    return None if found["behind"] else found["since"]


def sum_lines(lines: Iterable[UsageLine]) -> UsageLine:
    """Return the sum of lines."""
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
    """Return a time in UTC, which hours and days are counted in."""
    return moment.astimezone(UTC)
