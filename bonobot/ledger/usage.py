"""Usage: what the budget cells hold, for screens."""

from collections.abc import Iterable
from uuid import UUID

from bonobot.ledger.budgets import Cell
from bonobot.ledger.models import BudgetCell


def spent(key: str) -> tuple[int, int]:
    """Return what a cell has spent and set aside; zeros when nothing was ever charged to it."""
    cell = spent_many([key])[key]
    return cell.spent, cell.reserved


def spent_many(keys: Iterable[str]) -> dict[str, Cell]:
    """Return the cells of several keys in one query, empty ones included."""
    wanted = dict.fromkeys(keys, Cell())
    found = BudgetCell.objects.filter(pk__in=wanted).values_list("key", "spent", "reserved")
    return wanted | {key: Cell(spent, reserved) for key, spent, reserved in found}


def cells(organization_id: UUID) -> dict[str, Cell]:
    """Return all cells of an organization by key."""
    found = BudgetCell.objects.filter(organization_id=organization_id).order_by("key")
    return {
        key: Cell(spent, reserved)
        for key, spent, reserved in found.values_list("key", "spent", "reserved")
    }
