"""Read policy generations, budget balances and changes of objects; delete old budget cells."""

from collections.abc import Collection, Iterable
from datetime import datetime
from uuid import UUID

from django.db.models import UUIDField
from django.db.models.functions import Right

from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter
from bonobot.ledger.budgets import BudgetBalance, Period, format_period
from bonobot.ledger.models import AuditRow, BudgetCell, Head
from bonobot.ledger.models.audit import AuditQuerySet

RECURRING_PERIODS: tuple[Period, ...] = ("day", "month")


def load_balance(key: str) -> tuple[int, int]:
    """Return (spent, reserved) of a cell; zeros if it doesn't exist."""
    balance = load_balances([key])[key]
    return balance.spent, balance.reserved


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


_GENERATION = PreparedQuery(
    lambda: Head.objects.filter(
        pk=QueryParameter("organization", output_field=UUIDField())
    ).values_list("generation")
)


def load_policy_generation(organization_id: UUID) -> int:
    """Return the current policy generation (one query).

    Read it before the rows of a snapshot, so that a concurrent change makes the snapshot stale,
    never wrong.
    """
    row = _GENERATION.fetch_first(organization=organization_id)
    return row[0] if row else 0


def load_policy_generations(organization_ids: Collection[UUID]) -> dict[UUID, int]:
    """Return the current policy generations of several organizations (one query, or none)."""
    if not organization_ids:
        return {}
    return dict(Head.objects.filter(pk__in=organization_ids).values_list("pk", "generation"))


def query_object_changes(organization_id: UUID, object_ids: Collection[str]) -> AuditQuerySet:
    """Return the audit entries of changes of these objects, latest first."""
    rows = AuditRow.objects.for_organization(organization_id).filter(
        event_type="change", resource_id__in=object_ids
    )
    # A token that reads labeled text gets its labels, which changes only the token.
    return rows.exclude(action__endswith="_labels_read").order_by("-seq")
