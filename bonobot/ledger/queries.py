"""Policy generation; what budgets have spent."""

from collections.abc import Collection, Iterable
from datetime import datetime
from uuid import UUID

from django.db.models.functions import Right

from bonobot.ledger.budgets import BudgetBalance, Period, format_period
from bonobot.ledger.models import BudgetCell, Head

ENDING: tuple[Period, ...] = ("day", "month")


def load_balance(key: str) -> tuple[int, int]:
    """Return what a cell has spent and set aside; zeros when nothing was ever charged to it."""
    cell = load_balances([key])[key]
    return cell.spent, cell.reserved


def load_balances(keys: Iterable[str]) -> dict[str, BudgetBalance]:
    """Return the cells of several keys in one query, empty ones included."""
    wanted = dict.fromkeys(keys, BudgetBalance())
    found = BudgetCell.objects.filter(pk__in=wanted).values_list("key", "spent", "reserved")
    return wanted | {key: BudgetBalance(spent, reserved) for key, spent, reserved in found}


def forget(before: datetime) -> int:
    """Remove the cells of days and months that ended before a time (UTC); return how many.

    Totals stay, they never end. What a call of such a period still holds is settled nowhere: there
    is nothing left that it could be charged to.
    """
    removed = 0
    for period in ENDING:
        first_kept = format_period(period, before)
        ended = BudgetCell.objects.annotate(bucket=Right("key", len(first_kept)))
        rows = ended.filter(key__contains=f":{period}:", bucket__lt=first_kept)
        removed += rows.delete()[0]
    return removed


def load_organization_balances(organization_id: UUID) -> dict[str, BudgetBalance]:
    """Return all cells of an organization by key."""
    found = BudgetCell.objects.filter(organization_id=organization_id).order_by("key")
    return {
        key: BudgetBalance(spent, reserved)
        for key, spent, reserved in found.values_list("key", "spent", "reserved")
    }


def load_policy_generation(organization_id: UUID) -> int:
    """Return the current policy generation (one query).

    Read it before the rows that a snapshot is made of: a change in between then makes the snapshot
    stale, never wrong.
    """
    found = Head.objects.filter(pk=organization_id).values_list("generation", flat=True).first()
    return found or 0


def load_policy_generations(organization_ids: Collection[UUID]) -> dict[UUID, int]:
    """Return the current policy generations of several organizations (one query, or none)."""
    if not organization_ids:
        return {}
    return dict(Head.objects.filter(pk__in=organization_ids).values_list("pk", "generation"))
