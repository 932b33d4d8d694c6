"""Changes of objects, as the audit log has them."""

from collections.abc import Collection
from uuid import UUID

from bonobot.ledger.models import AuditRow
from bonobot.ledger.models.audit import AuditQuerySet


def query_object_changes(organization_id: UUID, object_ids: Collection[str]) -> AuditQuerySet:
    """Return the audit entries of changes of these objects, latest first."""
    rows = AuditRow.objects.for_organization(organization_id).filter(
        event_type="change", resource_id__in=object_ids
    )
    # A token that reads labeled text gets its labels, which changes only the token.
    return rows.exclude(action__endswith="_labels_read").order_by("-seq")
