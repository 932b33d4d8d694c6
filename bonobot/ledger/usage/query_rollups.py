"""Query totals over a time span, including entries that aren't counted yet.

Each report is one query over counted rows; entries that ended since the last count are read once
(a limited number) and added.

The busiest subjects of each step (hour or day) are read from an index. A subject that isn't among
them has at most as many calls in that step as the last of them, which gives a lower and an upper
bound for each subject. If the upper bound of all others is below the lower bound of the requested
ones, the result is exact; otherwise all rows have to be summed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Count, F, FloatField, Max, Q, QuerySet
from django.db.models import Sum as SumOf
from django.db.models.functions import Cast
from django.utils import timezone

from bonobot.core.db.compiled_aggregates import CompiledAggregate, compile_aggregates
from bonobot.core.process_cache import compute_once
from bonobot.ledger.models import TOOK, AuditRow, Rollup, RollupCursor, Summary
from bonobot.ledger.types import Actor
from bonobot.ledger.usage import build_rollups
from bonobot.ledger.usage.aggregation import (
    COUNT_FIELDS,
    DIMENSIONS,
    NAME_COLUMNS,
    Grain,
    UsageDimension,
    UsageEntry,
    UsageLine,
    build_kind,
    build_line,
    fold_entries,
    hash_subject,
    truncate_time,
)

MAX_BUSIEST = 20  # subjects that the index is used for
CANDIDATES_PER_STEP = 300  # subjects per step
MAX_STEPS = 200

_FIELDS: dict[str, Any] = {
    name: Summary._meta.get_field(name) for name in ("organization_id", "begins")
}
_BUSIEST_SQL = (
    "SELECT * FROM (SELECT begins, subject, calls FROM ledger_summary WHERE organization_id = %s"
    " AND dimension = %s AND grain = %s AND begins = %s ORDER BY calls DESC LIMIT %s) AS step"
)


class BusiestSubject(NamedTuple):
    """One of the busiest subjects of a step."""

    begins: datetime
    subject: UUID
    calls: int


def find_busiest_subjects(
    organization_id: UUID, dimension: str, grain: str, steps: Sequence[datetime], *, limit: int
) -> list[UUID] | None:
    """Return candidates that include the busiest subjects, or None if unknown (one query)."""
    if not 0 < len(steps) <= MAX_STEPS:
        return None
    owner = _FIELDS["organization_id"].get_db_prep_value(organization_id, connection)
    values: list[Any] = []
    for begins in steps:
        begins_value = _FIELDS["begins"].get_db_prep_value(begins, connection)
        values += [owner, dimension, grain, begins_value, CANDIDATES_PER_STEP]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join([_BUSIEST_SQL] * len(steps)), values)
        candidates = [
            BusiestSubject(begins, _parse_uuid(subject), calls) for begins, subject, calls in cursor
        ]
    return select_busiest(candidates, limit=limit, per_step=CANDIDATES_PER_STEP)


def select_busiest(
    candidates: Sequence[BusiestSubject], *, limit: int, per_step: int
) -> list[UUID] | None:
    """Return the subjects that may be among the busiest, or None if others may be, too."""
    known_calls: Counter[UUID] = Counter()
    bounds = _bound_unseen_calls(candidates, per_step)
    max_unseen = sum(bounds.values())
    # The bounds of the steps in which a subject is a candidate; they don't count for it.
    own_bounds: Counter[UUID] = Counter()
    for candidate in candidates:
        known_calls[candidate.subject] += candidate.calls
        own_bounds[candidate.subject] += bounds[candidate.begins]
    ranked = sorted(known_calls.values(), reverse=True)
    threshold = ranked[limit - 1] if len(ranked) >= limit else 0
    if max_unseen and max_unseen >= threshold:
        return None
    return [
        subject
        for subject, calls in known_calls.items()
        if calls + max_unseen - own_bounds[subject] >= threshold
    ]


def _bound_unseen_calls(
    candidates: Sequence[BusiestSubject], per_step: int
) -> Mapping[datetime, int]:
    counts = Counter(candidate.begins for candidate in candidates)
    bounds = dict.fromkeys(counts, 0)
    for candidate in candidates:
        if counts[candidate.begins] >= per_step:
            bounds[candidate.begins] = min(
                bounds[candidate.begins] or candidate.calls, candidate.calls
            )
    return bounds


def _parse_uuid(value: object) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


# The columns that a report can be grouped by; names are added to ids.
REPORT_COLUMNS = frozenset(
    {"begins", "organization_id", "event_type", "agent_id", "server_id", "tool_name", "model"}
    | {"code", "rule"}
)
# Entries whose durations are read: percentiles of more are estimated from buckets.
MAX_TIMED_ENTRIES = 1_000
TIMED_FILTERS = ("agent_id", "server_id")
MAX_LINES, MAX_ORGANIZATIONS = 1_000, 1_000_000
# The columns that lines are ranked by.
RANKING_COLUMNS = {"call": ("calls",), "model": ("turns",)}
MAX_HOURLY_AGE = build_rollups.HOURLY_SUMMARIES_KEPT - timedelta(days=1)

LineKey = tuple[Any, ...]


@dataclass(frozen=True)
class ReportSpan:
    """A time span from `since` to before `until` (None: now), by hours or days of UTC."""

    since: datetime
    until: datetime | None
    grain: Grain

    def contains(self, moment: datetime) -> bool:
        return self.since <= moment and (self.until is None or moment < self.until)

    def to_days_if_whole(self) -> "ReportSpan":
        """Return the span by days if it has whole days; the last one may be incomplete."""
        ends = [end for end in (self.since, self.until) if end is not None]
        is_whole = all(end == truncate_time(end, "day") for end in ends)
        return replace(self, grain="day") if is_whole else self

    def expand_to_days(self) -> "ReportSpan":
        return ReportSpan(truncate_time(self.since, "day"), self.until, "day")


def list_steps(span: ReportSpan) -> list[datetime]:
    """Return the starts of the span's hours or days."""
    step = timedelta(hours=1) if span.grain == "hour" else timedelta(days=1)
    until = span.until or timezone.now()
    return [span.since + index * step for index in range(ceil((until - span.since) / step))]


_CALL = Q(event_type="call")
_OK = _CALL & Q(outcome=AuditRow.Outcome.OK)
# The prefix `n_` avoids conflicts with the model's columns.
_SUMS: dict[str, Any] = {
    "n_calls": SumOf("calls", filter=_CALL, default=0),
    "n_ok": SumOf("calls", filter=_OK, default=0),
    "n_errors": SumOf("calls", filter=_CALL & Q(outcome="error"), default=0),
    "n_unknown": SumOf("calls", filter=_CALL & Q(outcome="unknown"), default=0),
    "n_refused": SumOf("calls", filter=_CALL & Q(outcome="refused"), default=0),
    "n_turns": SumOf("calls", filter=Q(event_type="model") & ~Q(outcome="refused"), default=0),
    "n_input_tokens": SumOf("input_tokens", default=0),
    "n_output_tokens": SumOf("output_tokens", default=0),
    "n_cost_microusd": SumOf("cost_microusd", default=0),
    **{f"n_{name}": SumOf(name, filter=_OK, default=0) for name in TOOK},
}
_CALL_COUNTS = ("n_calls", "n_ok", "n_errors", "n_unknown", "n_refused", "n_turns")
# Summaries have a column for each field of a line.
_SUMMED: dict[str, Any] = {f"n_{name}": SumOf(name, default=0) for name in (*COUNT_FIELDS, *TOOK)}
_NAMES: dict[str, Any] = {"n_agent": Max("agent_name"), "n_server": Max("server_name")}


@compute_once
def _compile_rollup_sums() -> dict[str, CompiledAggregate]:
    return compile_aggregates(Rollup, _SUMS | _NAMES)


@compute_once
def _compile_summary_sums() -> dict[str, CompiledAggregate]:
    return compile_aggregates(Summary, _SUMMED | _NAMES)


def _select_counts(sums: Mapping[str, CompiledAggregate]) -> dict[str, CompiledAggregate]:
    return {name: sums[name] for name in _CALL_COUNTS}


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
    successes: dict[Any, Sequence[UsageEntry]] = field(default_factory=dict, compare=False)

    def load_lines(
        self,
        *by: str,
        limit: int = MAX_LINES,
        timed: bool = False,
        only_counts: bool = False,
        **filters: Any,
    ) -> dict[LineKey, UsageLine]:
        """Return the lines by key, most calls first (one query).

        With `only_counts`, lines have neither names nor amounts other than numbers of calls and
        turns, which takes less time.
        With `timed`, percentiles are exact if few calls match (another query, once for filters).
        """
        if unknown_columns := set(by) - REPORT_COLUMNS:
            raise ValueError(f"A report can't be by {sorted(unknown_columns)}.")
        span = self.span if "begins" in by else self.span.to_days_if_whole()
        lines = self._load_counted_lines(span, by, limit, filters, only_counts=only_counts)
        for key, line in self._iterate_uncounted(span, by, filters):
            lines.setdefault(key, UsageLine()).add_line(line)
        ordered_lines = sorted(lines.items(), key=lambda item: (-item[1].calls, -item[1].turns))
        selected_lines = dict(ordered_lines[:limit])
        if timed:
            for key, entry in self._iterate_timed(span, by, filters):
                if key in selected_lines and entry.duration_ms is not None:
                    selected_lines[key].durations.append(entry.duration_ms)
        return selected_lines

    def load_total(self, *, timed: bool = False, **filters: Any) -> UsageLine:
        """Return the total of all lines (one query, or two: see `load_lines`)."""
        lines = self.load_lines("organization_id", limit=MAX_ORGANIZATIONS, timed=timed, **filters)
        return sum_lines(lines.values())

    def _load_counted_lines(
        self,
        span: ReportSpan,
        by: Sequence[str],
        limit: int,
        filters: Mapping[str, Any],
        *,
        only_counts: bool,
    ) -> dict[LineKey, UsageLine]:
        dimension = self._find_dimension(span, by, filters)
        if dimension is None:
            rows, sums = self._query_rollups(span, filters), _compile_rollup_sums()
        else:
            rows = self._query_summaries(dimension, span, by, limit, filters)
            sums = _compile_summary_sums()
        sums = _select_counts(sums) if only_counts else sums
        grouped_rows = rows.order_by().values(*by).annotate(**sums)
        lines = grouped_rows.order_by("-n_calls", "-n_turns", *by)[:limit]
        return {tuple(row[name] for name in by): _build_line(row) for row in lines}

    def _find_dimension(
        self, span: ReportSpan, by: Sequence[str], filters: Mapping[str, Any]
    ) -> UsageDimension | None:
        """Return the dimension whose complete summaries can answer the report, or None."""
        if self.summed_since is None or span.since < self.summed_since:
            return None
        if span.grain == "hour" and span.since < timezone.now() - MAX_HOURLY_AGE:
            return None
        return next(
            (dimension for dimension in DIMENSIONS if dimension.can_answer(by, filters)), None
        )

    def _query_summaries(
        self,
        dimension: UsageDimension,
        span: ReportSpan,
        by: Sequence[str],
        limit: int,
        conditions: Mapping[str, Any],
    ) -> QuerySet[Summary]:
        filters = {
            name: value for name, value in conditions.items() if name not in dimension.filters
        }
        rows = Summary.objects.filter(dimension=dimension.name, **filters)
        rows = self._filter_span(rows, span)
        if filters.keys() >= set(dimension.columns):  # indexes only have the subject
            values = [filters[name] for name in dimension.columns]
            rows = rows.filter(subject=hash_subject(values))
        if not filters and set(by) == set(dimension.columns):
            # First select the subjects with an index, then sum their rows.
            subjects = self._find_busiest(dimension, span, limit)
            if subjects is not None:
                return rows.filter(subject__in=subjects)
            ranking = RANKING_COLUMNS.get(
                dimension.filters.get("event_type", ""), ("calls", "turns")
            )
            sums = {f"n_{name}": SumOf(Cast(name, FloatField())) for name in ranking}
            ordering = [f"-{name}" for name in sums]
            grouped_rows = rows.order_by().values("subject").annotate(**sums)
            top_subjects = grouped_rows.order_by(*ordering, "subject")[:limit]
            rows = rows.filter(subject__in=top_subjects.values("subject"))
        return rows

    def _find_busiest(
        self, dimension: UsageDimension, span: ReportSpan, limit: int
    ) -> list[UUID] | None:
        """Return the subjects that may be among the busiest, or None if all must be summed."""
        is_by_calls = RANKING_COLUMNS.get(dimension.filters.get("event_type", ""), ("calls",)) == (
            "calls",
        )
        if self.organization_id is None or limit > MAX_BUSIEST or not is_by_calls:
            return None
        return find_busiest_subjects(
            self.organization_id, dimension.name, span.grain, list_steps(span), limit=limit
        )

    def _query_rollups(self, span: ReportSpan, filters: Mapping[str, Any]) -> Any:
        rows = self._filter_span(Rollup.objects.filter(**filters), span)
        for column, name in NAME_COLUMNS.items():
            if name in filters and self.summed_since and self.summed_since <= span.since:
                # Translate the name to ids, so that an index of rollups can be used.
                summaries = Summary.objects.filter(dimension=name.removesuffix("_name"))
                named_summaries = self._filter_span(summaries, span.expand_to_days()).filter(
                    **{name: filters[name]}
                )
                rows = rows.filter(**{f"{column}__in": named_summaries.values(column)})
        return rows

    def _filter_span(self, rows: Any, span: ReportSpan) -> Any:
        rows = rows.filter(grain=span.grain, begins__gte=span.since)
        if self.organization_id is not None:
            rows = rows.filter(organization_id=self.organization_id)
        else:  # so that indexes, which start with the organization, are used
            rows = rows.filter(organization_id__in=RollupCursor.objects.values("organization_id"))
        return rows.filter(begins__lt=span.until) if span.until else rows

    def _iterate_timed(
        self, span: ReportSpan, by: Sequence[str], filters: Mapping[str, Any]
    ) -> Iterator[tuple[LineKey, UsageEntry]]:
        """Yield the successful calls of the span with their keys; none if there are many."""
        for entry in self._load_successes(filters):
            begins = truncate_time(entry.opened_at, span.grain)
            names = {"agent_name": entry.agent_name, "server_name": entry.server_name}
            facts = {**build_kind(entry)._asdict(), **names, "begins": begins}
            is_wanted = all(facts[name] == value for name, value in filters.items())
            if span.contains(begins) and is_wanted:
                yield tuple(facts[name] for name in by), entry

    def _load_successes(self, filters: Mapping[str, Any]) -> Sequence[UsageEntry]:
        """Return the successful calls of the span with filters that have an index (one query).

        Empty if there are more than `MAX_TIMED_ENTRIES` entries of calls and model turns.
        """
        indexed = {name: filters[name] for name in TIMED_FILTERS if name in filters}
        cache_key = (self.span, *indexed.items())
        if self.organization_id is None:
            return ()
        if cache_key not in self.successes:
            rows = AuditRow.objects.for_organization(self.organization_id).filter(
                outcome=AuditRow.Outcome.OK, opened_at__gte=self.span.since, **indexed
            )
            if self.span.until:
                rows = rows.filter(opened_at__lt=self.span.until + timedelta(days=1))
            columns = UsageEntry._fields[:-1]
            timed_rows = list(rows.values_list(*columns)[: MAX_TIMED_ENTRIES + 1])
            entries = [UsageEntry._make((*row, 1)) for row in timed_rows]
            self.successes[cache_key] = (
                [entry for entry in entries if entry.event_type == "call"]
                if len(entries) <= MAX_TIMED_ENTRIES
                else ()
            )
        return self.successes[cache_key]

    def _iterate_uncounted(
        self, span: ReportSpan, by: Sequence[str], filters: Mapping[str, Any]
    ) -> Iterable[tuple[LineKey, UsageLine]]:
        for rollup_key, sums in fold_entries(self.tail, (span.grain,)).items():
            names = {"agent_name": sums.agent_name, "server_name": sums.server_name}
            facts = {**rollup_key.kind._asdict(), **names, "begins": rollup_key.begins}
            if not span.contains(rollup_key.begins):
                continue
            if any(facts[name] != value for name, value in filters.items()):
                continue
            yield tuple(facts[name] for name in by), build_line(rollup_key.kind, sums)


def open_reader(
    organization_id: UUID, span: ReportSpan, *, all_organizations: bool = False
) -> UsageReader:
    """Return the reader of an organization's reports (3 queries).

    `all_organizations` reads those of all, with uncounted entries of this one only.
    """
    summed_since = (
        _load_common_summed_since() if all_organizations else _load_summed_since(organization_id)
    )
    tail, has_more = build_rollups.load_uncounted_entries(organization_id)
    return UsageReader(
        None if all_organizations else organization_id,
        span,
        tail,
        complete=not has_more,
        summed_since=summed_since,
    )


def _load_summed_since(organization_id: UUID) -> datetime | None:
    cursor = RollupCursor.objects.filter(pk=organization_id).first()
    return build_rollups.get_complete_since(cursor) if cursor else None


def _load_common_summed_since() -> datetime | None:
    """Return the time from which the summaries of all organizations are complete, or None."""
    behind = Q(summed_since__isnull=True) | ~Q(summed_version=F("version"))
    totals = RollupCursor.objects.aggregate(
        behind=Count("pk", filter=behind), since=Max("summed_since")
    )
    return None if totals["behind"] else totals["since"]


def sum_lines(lines: Iterable[UsageLine]) -> UsageLine:
    total = UsageLine()
    for line in lines:
        total.add_line(line)
    return total


def _build_line(row: Mapping[str, Any]) -> UsageLine:
    return UsageLine(
        **{name: row.get(f"n_{name}", 0) for name in COUNT_FIELDS},
        duration_counts=[row.get(f"n_{name}", 0) for name in TOOK],
        agent_name=row.get("n_agent", ""),
        server_name=row.get("n_server", ""),
    )


def to_utc(moment: datetime) -> datetime:
    """Return a time in UTC, which hours and days are counted in."""
    return moment.astimezone(UTC)


# The agent's latest entries that are read: this bounds the query on any audit log.
MAX_READ_ENTRIES = 2_000


def count_recent_successes(
    organization_id: UUID, agent_id: UUID | None, actor: Actor | None = None
) -> Counter[tuple[UUID | None, str]]:
    """Return how many of an agent's latest calls succeeded, by server and the tool's own name.

    With `actor`, only the calls of that person or program are counted.
    """
    if agent_id is None:
        return Counter()
    rows = AuditRow.objects.filter(organization_id=organization_id, agent_id=agent_id)
    fields = ("server_id", "tool_name", "outcome", "actor_kind", "actor_id")
    latest = rows.order_by("-opened_at").values_list(*fields)[:MAX_READ_ENTRIES]
    return Counter(
        (server_id, tool_name)
        for server_id, tool_name, outcome, actor_kind, actor_id in latest
        if server_id is not None and tool_name and outcome == AuditRow.Outcome.OK
        if actor is None or (actor_kind, actor_id) == (actor.kind, actor.id)
    )
