"""Read the balances of budgets, and delete those of old periods."""

from collections.abc import Iterable
from datetime import datetime

from django.db.models.functions import Right

from bonobot.ledger.budgets import BudgetBalance, Period, format_period
from bonobot.ledger.models import BudgetCell

RECURRING_PERIODS: tuple[Period, ...] = ("day", "month")


def load_balances(keys: Iterable[str]) -> dict[str, BudgetBalance]:
    """Return the balances of several cells in one query; missing cells are zero."""
    balances = dict.fromkeys(keys, BudgetBalance())
    rows = BudgetCell.objects.filter(pk__in=balances).values_list("key", "spent", "reserved")
    return balances | {key: BudgetBalance(spent, reserved) for key, spent, reserved in rows}


def delete_old_cells(before: datetime) -> int:
    """Delete the cells of days and months that ended before a time (UTC); return how many.

    Cells of totals are kept. Reservations of deleted cells are never settled.
    """
    deleted = 0
    for period in RECURRING_PERIODS:
        first_bucket = format_period(period, before)
        cells = BudgetCell.objects.annotate(bucket=Right("key", len(first_bucket)))
        rows = cells.filter(key__contains=f":{period}:", bucket__lt=first_bucket)
        deleted += rows.delete()[0]
    return deleted
