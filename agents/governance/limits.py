"""What a call is charged to: rate cells and budget cells, named and bounded. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import lru_cache
from math import ceil
from typing import cast
from uuid import UUID

from bonobot.ledger import budgets
from bonobot.ledger.entries import Charge, Reserve, rates_of

# A third of a minute's calls may come at once: parallel calls of one turn are no flood.
BURST_SHARE = 3
LEAST_BURST = 10
# Seconds are counted in milliseconds, or a thousand short calls would be a thousand seconds.
CELL_UNITS = {"seconds": ("milliseconds", 1000)}


@dataclass(frozen=True, slots=True)
class Limit:
    """One budget as calls meet it; a session's gets its `scope_id` with the call."""

    scope: str
    scope_id: str
    unit: str
    period: str
    limit: int


def budget_key(organization_id: UUID, limit: Limit, now: datetime) -> str:
    """Return the ledger's cell of a budget in the period that `now` (UTC) falls into."""
    return _budget_key(organization_id, limit, now.astimezone(UTC).date())


@lru_cache(maxsize=4096)
def _budget_key(organization_id: UUID, limit: Limit, day: date) -> str:
    return budgets.budget_key(
        organization_id,
        scope=limit.scope,
        scope_id=limit.scope_id,
        unit=cell_unit(limit.unit)[0],
        period=cast(budgets.Period, limit.period),
        at=datetime(day.year, day.month, day.day, tzinfo=UTC),
    )


def cell_unit(unit: str) -> tuple[str, int]:
    """Return the unit that a budget's cell counts in, and how many of them are one of `unit`."""
    return CELL_UNITS.get(unit, (unit, 1))


def whole(unit: str, counted: int) -> int:
    """Return what a cell counted in whole units of its budget, rounded up."""
    return ceil(counted / cell_unit(unit)[1])


def applying(
    limits: Iterable[Limit], *, server_id: UUID | None, session_id: UUID | None
) -> tuple[Limit, ...]:
    """Return the limits that hold for a call of this server in this session."""
    found = []
    for limit in limits:
        if limit.scope == "session":
            if session_id is not None:
                found.append(replace(limit, scope_id=str(session_id)))
        elif limit.scope != "server" or limit.scope_id == str(server_id):
            found.append(limit)
    return tuple(found)


def reserves(
    organization_id: UUID, limits: Iterable[Limit], amounts: Mapping[str, int], now: datetime
) -> tuple[Reserve, ...]:
    """Return a reservation for each budget whose unit is in `amounts` (as its cell counts)."""
    return tuple(
        Reserve(
            budget_key(organization_id, limit, now),
            limit.limit * cell_unit(limit.unit)[1],
            amounts[limit.unit],
        )
        for limit in limits
        if limit.unit in amounts
    )


def actuals(
    reserved: Iterable[Reserve], amounts: Mapping[str, int] | None
) -> tuple[tuple[str, int, int], ...]:
    """Return reservations as they are settled: at `amounts`, or (None) at all that they hold."""
    by_cell = {cell_unit(unit)[0]: amount for unit, amount in (amounts or {}).items()}
    return tuple(
        (one.key, one.amount, one.amount if amounts is None else by_cell[budgets.unit_of(one.key)])
        for one in reserved
    )


@lru_cache(maxsize=4096)
def charge(organization_id: UUID, scope: str, scope_id: UUID | str, per_minute: int) -> Charge:
    """Return one call's charge on a rate of `per_minute`."""
    return Charge(f"{rates_of(organization_id)}{scope}:{scope_id}", per_minute, _burst(per_minute))


def global_charge(per_minute: int) -> Charge:
    """Return one call's charge on the rate that all organizations share."""
    return Charge("rate:all:global:all", per_minute, _burst(per_minute))


def _burst(per_minute: int) -> int:
    return max(min(LEAST_BURST, per_minute), per_minute // BURST_SHARE)
