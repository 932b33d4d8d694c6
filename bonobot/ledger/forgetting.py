"""Forgetting an organization that has left: the one way in which its audit goes as a whole.

Whoever calls this has written the audit elsewhere, or was told what is lost. It works past the
querysets, which refuse to change audit rows, inside the caller's transaction.
"""

from typing import Any
from uuid import UUID

from django.apps import apps
from django.db.models import QuerySet

from bonobot.ledger.entries import rates_of
from bonobot.ledger.models import RateCell


def rows_of(organization_id: UUID) -> list[QuerySet[Any]]:
    """Return what the ledger holds of an organization: its chain, its cells, what is counted."""
    own = [
        model
        for model in apps.get_app_config("ledger").get_models()
        if any(field.attname == "organization_id" for field in model._meta.fields)
    ]
    found: list[QuerySet[Any]] = [
        model._base_manager.filter(organization_id=organization_id) for model in own
    ]
    return [*found, RateCell.objects.filter(key__startswith=rates_of(organization_id))]


def forget(organization_id: UUID) -> int:
    """Remove all of it; return how many rows."""
    return sum(rows._raw_delete(rows.db) for rows in rows_of(organization_id))
