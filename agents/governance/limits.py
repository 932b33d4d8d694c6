"""What a call is charged to: rate cells and budget cells, named and bounded. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import cast
from uuid import UUID

from agents.governance.snapshots import Limit
from bonobot.ledger import budgets
from bonobot.ledger.entries import Charge, Reserve

# A third of a minute's calls may come at once: parallel calls of one turn are no flood.
BURST_SHARE = 3
LEAST_BURST = 10


def budget_key(organization_id: UUID, limit: Limit, now: datetime) -> str:
    """Return the ledger's cell of a budget in the period that `now` (UTC) falls into."""
    return budgets.budget_key(
        organization_id,
        scope=limit.scope,
        scope_id=limit.scope_id,
        unit=limit.unit,
        period=cast(budgets.Period, limit.period),
        at=now,
    )


def reserves(
    organization_id: UUID, limits: Iterable[Limit], amounts: dict[str, int], now: datetime
) -> tuple[Reserve, ...]:
    """Return a reservation for each budget whose unit is in `amounts`."""
    return tuple(
        Reserve(budget_key(organization_id, limit, now), limit.limit, amounts[limit.unit])
        for limit in limits
        if limit.unit in amounts
    )


def charge(organization_id: UUID, scope: str, scope_id: object, per_minute: int) -> Charge:
    """Return one call's charge on a rate of `per_minute`."""
    burst = max(min(LEAST_BURST, per_minute), per_minute // BURST_SHARE)
    return Charge(f"rate:{organization_id}:{scope}:{scope_id}", per_minute, burst)
