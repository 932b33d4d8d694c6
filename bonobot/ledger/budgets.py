"""Budgets: reserve before, settle after, never admit more than the limit.

Pure. A cell is one budget in one period; its key says whose, in which unit and when:
`budget:{organization}:{scope}:{scope id}:{unit}:{period}:{bucket}`.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from bonobot.lib.sayings import say

Period = Literal["day", "month", "total"]
_PARTS = ("kind", "organization", "scope", "scope_id", "unit", "period", "bucket")
_UNITS = {
    "microusd": say("money (micro-dollars)"),
    "milliseconds": say("running time (milliseconds)"),
    "calls": say("calls"),
    "tokens": say("tokens"),
}
_PERIODS = {"day": say("a day"), "month": say("a month"), "total": say("in total")}
# Whose rates and budgets there are.
OWNERS = {
    "global": say("whole installation's"),
    "organization": say("organization's"),
    "agent": say("agent's"),
    "session": say("session's"),
    "server": say("server's"),
    "token": say("token's"),
    "caller": say("caller's"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """What is spent, and what calls that still run have set aside."""

    spent: int = 0
    reserved: int = 0


def reserve(cell: Cell, *, limit: int | None, amount: int) -> Cell | None:
    """Return the cell with the amount set aside, or None if that would pass the limit."""
    if limit is not None and cell.spent + cell.reserved + amount > limit:
        return None
    return Cell(cell.spent, cell.reserved + amount)


def settle(cell: Cell, *, reserved: int, actual: int) -> Cell:
    """Return the cell with a reservation replaced by what it really cost, be it more or less.

    A cell that was pruned meanwhile holds no reservation any more: that never goes below zero.
    """
    return Cell(cell.spent + actual, max(cell.reserved - reserved, 0))


def bucket(period: Period, at: datetime) -> str:
    """Return the part of a key that changes when a new period begins, in UTC."""
    if period == "total":
        return "all"
    return at.astimezone(UTC).strftime("%Y-%m-%d" if period == "day" else "%Y-%m")


def budget_key(
    organization_id: UUID,
    *,
    scope: str,
    scope_id: str | UUID,
    unit: str,
    period: Period,
    at: datetime,
) -> str:
    """Return the key of the cell in which something of this unit counts at a time."""
    return f"budget:{organization_id}:{scope}:{scope_id}:{unit}:{period}:{bucket(period, at)}"


def unit_of(key: str) -> str:
    """Return the unit that a cell counts in."""
    return key.split(":")[4]


def named(key: str) -> str:
    """Return whose budget of what a key is of, in words; the key itself if it is no budget's."""
    parts = key.split(":")
    if len(parts) != len(_PARTS):
        return say("budget `{key}`", key=key)
    words = dict(zip(_PARTS, parts, strict=True))
    return say(
        "{whose} budget of {unit} {period}",
        whose=OWNERS.get(words["scope"], f"{words['scope']}'s"),
        unit=_UNITS.get(words["unit"], words["unit"]),
        period=_PERIODS.get(words["period"], words["period"]),
    )
