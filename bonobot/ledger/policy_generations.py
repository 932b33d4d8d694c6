"""Read policy generations, which each change of a rule or of a definition increments."""

from collections.abc import Collection
from uuid import UUID

from django.db.models import UUIDField

from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter
from bonobot.ledger.models import Head

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
