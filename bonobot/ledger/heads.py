"""Heads: the policy generation that an organization is at."""

from collections.abc import Collection
from uuid import UUID

from bonobot.ledger.models import Head


def generation(organization_id: UUID) -> int:
    """Return the current policy generation (one query).

    Read it before the rows that a snapshot is made of: a change in between then makes the snapshot
    stale, never wrong.
    """
    found = Head.objects.filter(pk=organization_id).values_list("generation", flat=True).first()
    return found or 0


def generations(organization_ids: Collection[UUID]) -> dict[UUID, int]:
    """Return the current policy generations of several organizations (one query, or none)."""
    if not organization_ids:
        return {}
    return dict(Head.objects.filter(pk__in=organization_ids).values_list("pk", "generation"))
