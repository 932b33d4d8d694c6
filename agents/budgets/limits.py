"""Budget reservations and settlements of a call, and what it takes from rate limits. No I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import lru_cache
from math import ceil
from typing import cast
from uuid import UUID

from bonobot.core.rate_limiter import calculate_burst
from bonobot.ledger import budgets
from bonobot.ledger.types import BudgetReservation, RateCharge, build_rate_prefix

# Count seconds in milliseconds; otherwise each short call would be rounded up to a second.
CELL_UNITS = {"seconds": ("milliseconds", 1000)}


@dataclass(frozen=True, slots=True)
class BudgetLimit:
    """A budget limit for calls; a session's limit gets its `scope_id` with the call."""

    scope: str
    scope_id: str
    unit: str
    period: str
    limit: int


def build_budget_key(organization_id: UUID, limit: BudgetLimit, now: datetime) -> str:
    """Return the key of a budget's cell in the period that contains `now`."""
    return _build_daily_key(organization_id, limit, now.astimezone(UTC).date())


@lru_cache(maxsize=4096)
def _build_daily_key(organization_id: UUID, limit: BudgetLimit, day: date) -> str:
    return budgets.build_budget_key(
        organization_id,
        scope=limit.scope,
        scope_id=limit.scope_id,
        unit=get_cell_unit(limit.unit)[0],
        period=cast(budgets.Period, limit.period),
        at=datetime(day.year, day.month, day.day, tzinfo=UTC),
    )


def get_cell_unit(unit: str) -> tuple[str, int]:
    """Return the unit of a budget's cell, and how many of them make one `unit`."""
    return CELL_UNITS.get(unit, (unit, 1))


def to_whole_units(unit: str, amount: int) -> int:
    """Return a cell's amount in whole units of its budget, rounded up."""
    return ceil(amount / get_cell_unit(unit)[1])


def select_limits(
    limits: Iterable[BudgetLimit], *, server_id: UUID | None, session_id: UUID | None
) -> tuple[BudgetLimit, ...]:
    """Return the limits that apply to a call of this server in this session."""
    selected = []
    for limit in limits:
        if limit.scope == "session":
            if session_id is not None:
                selected.append(replace(limit, scope_id=str(session_id)))
        elif limit.scope != "server" or limit.scope_id == str(server_id):
            selected.append(limit)
    return tuple(selected)


def build_reservations(
    organization_id: UUID, limits: Iterable[BudgetLimit], amounts: Mapping[str, int], now: datetime
) -> tuple[BudgetReservation, ...]:
    """Return a reservation for each limit whose cell's unit is in `amounts`."""
    reservations = []
    for limit in limits:
        cell_unit, factor = get_cell_unit(limit.unit)
        if cell_unit in amounts:
            key = build_budget_key(organization_id, limit, now)
            reservations.append(BudgetReservation(key, limit.limit * factor, amounts[cell_unit]))
    return tuple(reservations)


@lru_cache(maxsize=4096)
def build_charge(
    organization_id: UUID, scope: str, scope_id: UUID | str, per_minute: int
) -> RateCharge:
    return RateCharge(
        f"{build_rate_prefix(organization_id)}{scope}:{scope_id}",
        per_minute,
        calculate_burst(per_minute),
    )


def build_global_charge(per_minute: int) -> RateCharge:
    """Return a call's charge on the rate limit shared by all organizations."""
    return RateCharge("rate:all:global:all", per_minute, calculate_burst(per_minute))
