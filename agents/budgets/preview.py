"""What a budget would have done in the last 30 days, estimated from the usage of each day.

Usage is known by day (UTC), so a day on which a limit is reached is divided in proportion: if a
third of its usage fits, two thirds of its calls count as denied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from agents.budgets.services import BudgetLine, BudgetUse, Owner
from agents.models import Agent, Budget
from bonobot.accounts.models import Organization
from bonobot.ledger.usage import query_rollups
from bonobot.ledger.usage.aggregation import CALL_FILTER, UsageLine, truncate_time
from bonobot.ledger.usage.query_rollups import ReportSpan

PREVIEW_DAYS = 30
DAY = timedelta(days=1)
MIN_ELAPSED = 0.05  # of a period: before, a projection is mostly chance


@dataclass(frozen=True)
class DayUsage:
    """The usage of a day in a budget's unit, and how many calls and model turns used it."""

    day: datetime
    amount: int
    calls: int


@dataclass(frozen=True)
class BudgetedDay:
    """A day with the budget: what its period would have used up to it, and the denied calls."""

    usage: DayUsage
    requested: int  # without the limit
    denied: int


@dataclass(frozen=True)
class BudgetPreview:
    """The last 30 days with a budget, oldest first."""

    days: tuple[BudgetedDay, ...]

    @property
    def calls(self) -> int:
        return sum(day.usage.calls for day in self.days)

    @property
    def denied(self) -> int:
        return sum(day.denied for day in self.days)

    @property
    def total(self) -> int:
        return sum(day.usage.amount for day in self.days)

    @property
    def highest(self) -> int:
        """The usage of the busiest day."""
        return max(day.usage.amount for day in self.days)


@dataclass(frozen=True)
class BudgetPace:
    """How much of a period has passed, and what it will have used at this rate, in percent."""

    elapsed: int
    projected_percent: int


def compute_pace(use: BudgetUse, now: datetime) -> BudgetPace | None:
    """Return the pace of a budget in its period; None without an end or early in the period."""
    begins, ends = (
        compute_period_start(use.line.period, now),
        compute_next_period(use.line.period, now),
    )
    if begins is None or ends is None or not use.line.limit:
        return None
    elapsed = (now - begins) / (ends - begins)
    if elapsed < MIN_ELAPSED:
        return None
    return BudgetPace(round(100 * elapsed), round(100 * use.spent / elapsed / use.line.limit))


def compute_next_period(period: str, now: datetime) -> datetime | None:
    """Return when a period that contains `now` ends (UTC); None for `total`."""
    midnight = truncate_time(now.astimezone(UTC), "day")
    if period == Budget.Period.DAY:
        return midnight + DAY
    if period == Budget.Period.MONTH:
        return (midnight.replace(day=1) + 32 * DAY).replace(day=1)
    return None


def compute_period_start(period: str, now: datetime) -> datetime | None:
    """Return when a period that contains `now` began (UTC); None for `total`."""
    midnight = truncate_time(now.astimezone(UTC), "day")
    if period == Budget.Period.DAY:
        return midnight
    return midnight.replace(day=1) if period == Budget.Period.MONTH else None


def build_preview(
    organization_id: UUID, owner: Owner, line: BudgetLine, now: datetime
) -> BudgetPreview | None:
    """Return the last 30 days with a budget (4 queries).

    None for what usage isn't counted by: seconds, and single sessions.
    """
    if line.unit == Budget.Unit.SECONDS or line.each_session:
        return None
    first_day = truncate_time(now.astimezone(UTC), "day") - (PREVIEW_DAYS - 1) * DAY
    # The month in which the first day is may have used its limit before.
    since = compute_period_start(line.period, first_day) or first_day
    days = _load_daily_usage(organization_id, owner, line.unit, since, now)
    budgeted_days = apply_limit(days, line.period, line.limit)
    return BudgetPreview(tuple(day for day in budgeted_days if day.usage.day >= first_day))


def apply_limit(days: Sequence[DayUsage], period: str, limit: int) -> list[BudgetedDay]:
    """Return what a budget would have let through, and denied, day by day."""
    budgeted_days = []
    current_period, requested = None, 0
    for usage in days:
        day_period = compute_period_start(period, usage.day)
        if day_period != current_period:
            current_period, requested = day_period, 0
        room = max(0, limit - requested)
        requested += usage.amount
        denied = 0
        if usage.amount > room:
            denied = usage.calls - usage.calls * room // usage.amount
        budgeted_days.append(BudgetedDay(usage, requested, denied))
    return budgeted_days


def _load_daily_usage(
    organization_id: UUID, owner: Owner, unit: str, since: datetime, now: datetime
) -> list[DayUsage]:
    reader = query_rollups.open_reader(organization_id, ReportSpan(since, None, "day"))
    lines = reader.load_lines("begins", **_build_owner_filters(owner))
    day_count = (now - since) // DAY + 1
    days = [since + index * DAY for index in range(day_count)]
    return [_build_day_usage(day, lines.get((day,), UsageLine()), unit) for day in days]


def _build_owner_filters(owner: Owner) -> dict[str, Any]:
    if isinstance(owner, Organization):
        return {}
    if isinstance(owner, Agent):
        return {"agent_id": owner.pk}
    return {"server_id": owner.pk, **CALL_FILTER}


def _build_day_usage(day: datetime, line: UsageLine, unit: str) -> DayUsage:
    calls = line.calls - line.refused  # denied calls don't count toward budgets
    if unit == Budget.Unit.CALLS:
        return DayUsage(day, calls, calls)
    if unit == Budget.Unit.TOKENS:  # only models use tokens
        return DayUsage(day, line.input_tokens + line.output_tokens, line.turns)
    return DayUsage(day, line.cost_microusd, calls + line.turns)
