"""The numbers of calls over time above the audit log, in a bounded number of queries.

Spans of up to six hours have bars of minutes, counted from entries if they are few enough. Longer
ones have bars of hours or days, from rollups.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import is_approval_request
from bonobot.ledger.usage import build_rollups, query_rollups
from bonobot.ledger.usage.aggregation import UsageLine
from bonobot.ledger.usage.pending_calls import find_pending_calls
from bonobot.ledger.usage.query_rollups import ReportSpan

MAX_BARS = 72
MAX_ENTRIES_COUNTED = 20_000
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
STEPS = (MINUTE, 5 * MINUTE, HOUR, 3 * HOUR, DAY, 7 * DAY, 30 * DAY)
MAX_COUNTED_SPAN = 6 * HOUR
# Filters that entries and rollups have in common.
ROLLUP_COLUMNS = frozenset({"agent_id", "server_id", "tool_name", "code", "rule"})

# In the order in which bars stack them.
OUTCOMES = ("ok", "refused", "pending", "cancelled", "unknown", "error")


@dataclass
class ActivityBar:
    """The calls of one step by outcome."""

    begins: datetime
    ends: datetime
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))

    @property
    def total(self) -> int:
        """All calls of the step."""
        return sum(self.counts.values())


def choose_step(length: timedelta) -> timedelta:
    """Return the shortest step with which a span has at most `MAX_BARS` bars."""
    return next((step for step in STEPS if length <= step * MAX_BARS), STEPS[-1])


def load_activity(
    organization_id: UUID,
    since: datetime,
    until: datetime,
    filters: Mapping[str, Any],
    outcomes: Collection[str] = (),
) -> list[ActivityBar]:
    """Return the bars of a span, oldest first; `filters` are columns of `ROLLUP_COLUMNS`.

    `outcomes` keeps these outcomes of entries, and `pending` calls that wait for approval.
    """
    since, until = query_rollups.to_utc(since), query_rollups.to_utc(until)
    bars = _count_calls(organization_id, since, until, filters, outcomes)
    if not outcomes or "pending" in outcomes:
        _add_pending(organization_id, bars, filters)
    return bars


def _count_calls(
    organization_id: UUID,
    since: datetime,
    until: datetime,
    filters: Mapping[str, Any],
    outcomes: Collection[str],
) -> list[ActivityBar]:
    """Return the bars with the calls that have ended."""
    step = choose_step(until - since)
    if until - since <= MAX_COUNTED_SPAN:
        bars = _build_bars(since, until, step)
        entry_filters = {**filters, "outcome__in": outcomes} if outcomes else filters
        if _count_entries(organization_id, bars, entry_filters):
            return bars
        step = HOUR
    if since < timezone.now() - build_rollups.HOURLY_ROLLUPS_KEPT:
        step = max(step, DAY)
    bars = _build_bars(since, until, step)
    _add_rollups(organization_id, bars, step, filters, outcomes)
    return bars


def _build_bars(since: datetime, until: datetime, step: timedelta) -> list[ActivityBar]:
    midnight = since.replace(hour=0, minute=0, second=0, microsecond=0)
    begins = midnight + (since - midnight) // step * step
    bars = []
    while begins < until:
        bars.append(ActivityBar(begins, begins + step))
        begins += step
    return bars


def _count_entries(
    organization_id: UUID, bars: list[ActivityBar], filters: Mapping[str, Any]
) -> bool:
    """Count the entries of the span; False if there are too many (one query)."""
    rows = AuditRow.objects.for_organization(organization_id).filter(
        opened_at__gte=bars[0].begins, opened_at__lt=bars[-1].ends, event_type="call", **filters
    )
    entries = rows.values_list("opened_at", "outcome", "code", "repeats")[: MAX_ENTRIES_COUNTED + 1]
    new_entries = list(entries)
    if len(new_entries) > MAX_ENTRIES_COUNTED:
        return False
    step = bars[0].ends - bars[0].begins
    for opened_at, outcome, code, repeats in new_entries:
        bar = bars[(opened_at - bars[0].begins) // step]
        if outcome in bar.counts and not is_approval_request(outcome, code):
            bar.counts[outcome] += 1 + repeats
    return True


def _add_rollups(
    organization_id: UUID,
    bars: list[ActivityBar],
    step: timedelta,
    filters: Mapping[str, Any],
    outcomes: Collection[str],
) -> None:
    """Add the totals of rollups (five queries, and one for each further outcome)."""
    since = bars[0].begins
    span = ReportSpan(since, bars[-1].ends, "day" if step >= DAY else "hour")
    reader = query_rollups.open_reader(organization_id, span)
    for outcome_filter in [{"outcome": outcome} for outcome in outcomes] or [{}]:
        conditions = {"event_type": "call", **filters, **outcome_filter}
        lines = reader.load_lines("begins", only_counts=True, **conditions)
        for (begins,), line in lines.items():
            index = (begins - since) // step
            if 0 <= index < len(bars):
                _add_line(bars[index], line)


def _add_pending(
    organization_id: UUID, bars: list[ActivityBar], filters: Mapping[str, Any]
) -> None:
    """Add the calls that wait for approval, at the time of their request (one query)."""
    since, step = bars[0].begins, bars[0].ends - bars[0].begins
    for calls in find_pending_calls(organization_id, since, bars[-1].ends, **filters):
        bars[(calls.begins - since) // step].counts["pending"] += calls.count


def _add_line(bar: ActivityBar, line: UsageLine) -> None:
    bar.counts["ok"] += line.ok
    bar.counts["refused"] += line.refused
    bar.counts["error"] += line.errors
    bar.counts["unknown"] += line.unknown
    bar.counts["cancelled"] += line.canceled
