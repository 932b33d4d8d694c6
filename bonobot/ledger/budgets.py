"""Reserve and settle amounts in budget cells. No I/O.

A cell is one budget in one period, with the key
`budget:{organization}:{scope}:{scope id}:{unit}:{period}:{bucket}`.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Literal
from uuid import UUID

from bonobot.core.i18n.messages import format_message
from bonobot.core.records import record
from bonobot.ledger.types import BudgetReservation

Period = Literal["day", "month", "total"]
_KEY_PARTS = ("kind", "organization", "scope", "scope_id", "unit", "period", "bucket")
_UNIT_LABELS = {
    "microusd": format_message("dollars"),
    "milliseconds": format_message("seconds of running time"),
    "calls": format_message("calls"),
    "tokens": format_message("tokens"),
}
_PERIOD_LABELS = {
    "day": format_message("per day"),
    "month": format_message("per month"),
    "total": format_message("in total"),
}
# Decimal places of amounts that are kept in a fraction of the unit that people read.
_DECIMAL_PLACES = {"microusd": 6, "milliseconds": 3}
# Owners of rates and budgets, by scope.
OWNER_LABELS = {
    "global": format_message("installation's"),
    "organization": format_message("organization's"),
    "agent": format_message("agent's"),
    "session": format_message("session's"),
    "server": format_message("server's"),
    "token": format_message("token's"),
    "caller": format_message("caller's"),
}


@record()
class BudgetBalance:
    """The amounts spent, and reserved by running calls."""

    spent: int = 0
    reserved: int = 0


def reserve_amount(
    balance: BudgetBalance, *, limit: int | None, amount: int
) -> BudgetBalance | None:
    """Return the balance with the amount reserved, or None if that exceeds the limit."""
    if limit is not None and balance.spent + balance.reserved + amount > limit:
        return None
    return BudgetBalance(balance.spent, balance.reserved + amount)


def settle_reservation(balance: BudgetBalance, *, reserved: int, actual: int) -> BudgetBalance:
    """Return the balance with a reservation replaced by the actual amount.

    The reserved amount never goes below zero, since the cell may have been pruned meanwhile.
    """
    return BudgetBalance(balance.spent + actual, max(balance.reserved - reserved, 0))


def settle_reservations(
    reservations: Iterable[BudgetReservation], amounts: Mapping[str, int] | None
) -> tuple[tuple[str, int, int], ...]:
    """Return (key, reserved, actual) of each reservation; without `amounts` all of it is spent.

    `amounts` are the actual ones by the unit of a cell.
    """
    return tuple(
        [
            (
                reservation.key,
                reservation.amount,
                reservation.amount if amounts is None else amounts[parse_unit(reservation.key)],
            )
            for reservation in reservations
        ]
    )


def format_period(period: Period, at: datetime) -> str:
    """Return the bucket of a key: the period in UTC that contains `at`."""
    if period == "total":
        return "all"
    return at.astimezone(UTC).strftime("%Y-%m-%d" if period == "day" else "%Y-%m")


def build_budget_key(
    organization_id: UUID,
    *,
    scope: str,
    scope_id: str | UUID,
    unit: str,
    period: Period,
    at: datetime,
) -> str:
    """Return the key of the cell for the period that contains `at`."""
    return (
        f"budget:{organization_id}:{scope}:{scope_id}:{unit}:{period}:{format_period(period, at)}"
    )


def convert_amount(unit: str, amount: int) -> Decimal:
    """Return an amount in the unit that people read: dollars of micro-dollars, for example.

    Messages format it with `{amount:,}`, so that its separators are those of the reader's language.
    """
    if unit not in _DECIMAL_PLACES:
        return Decimal(amount)
    value = Decimal(amount).scaleb(-_DECIMAL_PLACES[unit])
    rounded = value.quantize(Decimal("0.01"))
    return rounded if rounded == value else value.normalize()


@lru_cache(maxsize=4096)
def parse_unit(key: str) -> str:
    """Return the unit of a cell's key; empty for other keys."""
    parts = key.split(":")
    return parts[_KEY_PARTS.index("unit")] if len(parts) == len(_KEY_PARTS) else ""


def parse_budget_key(key: str) -> dict[str, str]:
    """Return the parts of a budget key by name; empty for other keys."""
    parts = key.split(":")
    return dict(zip(_KEY_PARTS, parts, strict=True)) if len(parts) == len(_KEY_PARTS) else {}


def describe_budget_key(key: str) -> str:
    """Return a description of a budget key; other keys are quoted."""
    fields = parse_budget_key(key)
    if not fields:
        return format_message("budget `{key}`", key=key)
    return format_message(
        "{whose} budget of {unit} {period}",
        whose=OWNER_LABELS.get(fields["scope"], f"{fields['scope']}'s"),
        unit=_UNIT_LABELS.get(fields["unit"], fields["unit"]),
        period=_PERIOD_LABELS.get(fields["period"], fields["period"]),
    )


def describe_remedy(key: str) -> str:
    """Return what to do if a budget doesn't cover a call: when it resets, and who can raise it."""
    fields = parse_budget_key(key)
    match fields.get("period"):
        case "day":
            resets_on = date.fromisoformat(fields["bucket"]) + timedelta(days=1)
        case "month":
            resets_on = (date.fromisoformat(f"{fields['bucket']}-01") + timedelta(days=31)).replace(
                day=1
            )
        case _:
            return format_message("Ask someone with permission to raise the budget.")
    return format_message(
        "It resets on {date} at 00:00 UTC. To continue before, ask someone with permission to "
        "raise the budget.",
        date=resets_on.isoformat(),
    )
