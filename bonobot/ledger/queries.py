"""Read policy generations and budget balances; delete old budget cells."""

from collections.abc import Collection, Iterable
from datetime import datetime
from uuid import UUID

from django.db.models.functions import Right

from bonobot.ledger.budgets import BudgetBalance, Period, format_period
from bonobot.ledger.models import BudgetCell, Head

ENDING: tuple[Period, ...] = ("day", "month")


def load_balance(key: str) -> tuple[int, int]:
    """Return (spent, reserved) of a cell; zeros if it doesn't exist."""
    cell = load_balances([key])[key]
    return cell.spent, cell.reserved


def load_balances(keys: Iterable[str]) -> dict[str, BudgetBalance]:
    """Return the balances of several cells in one query; missing cells are zero."""
    wanted = dict.fromkeys(keys, BudgetBalance())
    found = BudgetCell.objects.filter(pk__in=wanted).values_list("key", "spent", "reserved")
    return wanted | {key: BudgetBalance(spent, reserved) for key, spent, reserved in found}


def forget(before: datetime) -> int:
    """Delete the cells of days and months that ended before a time (UTC); return how many.

    Cells of totals are kept. Reservations of deleted cells are never settled.
    """
    removed = 0
    for period in ENDING:
        first_kept = format_period(period, before)
        ended = BudgetCell.objects.annotate(bucket=Right("key", len(first_kept)))
        rows = ended.filter(key__contains=f":{period}:", bucket__lt=first_kept)
        removed += rows.delete()[0]
    return removed


def load_organization_balances(organization_id: UUID) -> dict[str, BudgetBalance]:
    """Return the balances of all cells of an organization by key."""
    found = BudgetCell.objects.filter(organization_id=organization_id).order_by("key")
    return {
        key: BudgetBalance(spent, reserved)
        for key, spent, reserved in found.values_list("key", "spent", "reserved")
    }


def load_policy_generation(organization_id: UUID) -> int:
    """Return the current policy generation (one query).

    Read it before the rows of a snapshot, so that a concurrent change makes the snapshot stale,
    never wrong.
    """
    found = Head.objects.filter(pk=organization_id).values_list("generation", flat=True).first()
    return found or 0


def load_policy_generations(organization_ids: Collection[UUID]) -> dict[UUID, int]:
    """Return the current policy generations of several organizations (one query, or none)."""
    if not organization_ids:
        return {}
    return dict(Head.objects.filter(pk__in=organization_ids).values_list("pk", "generation"))
