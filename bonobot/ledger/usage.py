"""Usage: what the budget cells hold, for screens."""

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from django.db.models.functions import Right

from bonobot.ledger.budgets import Cell, Period, bucket
from bonobot.ledger.models import BudgetCell

ENDING: tuple[Period, ...] = ("day", "month")


def spent(key: str) -> tuple[int, int]:
    """Return what a cell has spent and set aside; zeros when nothing was ever charged to it."""
    cell = spent_many([key])[key]
    return cell.spent, cell.reserved


def spent_many(keys: Iterable[str]) -> dict[str, Cell]:
    """Return the cells of several keys in one query, empty ones included."""
    wanted = dict.fromkeys(keys, Cell())
    found = BudgetCell.objects.filter(pk__in=wanted).values_list("key", "spent", "reserved")
    return wanted | {key: Cell(spent, reserved) for key, spent, reserved in found}


def forget(before: datetime) -> int:
    """Remove the cells of days and months that ended before a time (UTC); return how many.

    Totals stay, they never end. What a call of such a period still holds is settled nowhere: there
    is nothing left that it could be charged to.
    """
    removed = 0
    for period in ENDING:
        first_kept = bucket(period, before)
        ended = BudgetCell.objects.annotate(bucket=Right("key", len(first_kept)))
        rows = ended.filter(key__contains=f":{period}:", bucket__lt=first_kept)
        removed += rows.delete()[0]
    return removed


def cells(organization_id: UUID) -> dict[str, Cell]:
    """Return all cells of an organization by key."""
    found = BudgetCell.objects.filter(organization_id=organization_id).order_by("key")
    return {
        key: Cell(spent, reserved)
        for key, spent, reserved in found.values_list("key", "spent", "reserved")
    }
