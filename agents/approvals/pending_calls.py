"""The calls that wait for approval, as usage counts them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import Count
from django.db.models.functions import TruncMinute

from agents.models import Approval
from bonobot.ledger.extension_points import PendingCalls

# Columns of rollups whose approvals have other names.
APPROVAL_COLUMNS = {"tool_name": "own_name", "agent_name": "agent__name"}


def load_pending_calls(
    organization_id: UUID | None,
    since: datetime,
    until: datetime | None,
    filters: Mapping[str, Any],
) -> list[PendingCalls]:
    """Return the pending calls requested from `since` to before `until` (one query)."""
    conditions = {APPROVAL_COLUMNS.get(name, name): value for name, value in filters.items()}
    rows = Approval.objects.filter(created_at__gte=since, **conditions).pending()
    if organization_id is not None:
        rows = rows.for_organization(organization_id)
    if until is not None:
        rows = rows.filter(created_at__lt=until)
    columns = ("organization_id", "agent_id", "agent__name", "server_id", "server_name", "own_name")
    groups = rows.order_by().values(*columns, begins=TruncMinute("created_at", tzinfo=UTC))
    return [
        PendingCalls(
            count=group["count"],
            begins=group["begins"],
            organization_id=group["organization_id"],
            agent_id=group["agent_id"],
            agent_name=group["agent__name"] or "",
            server_id=group["server_id"],
            server_name=group["server_name"],
            tool_name=group["own_name"],
        )
        for group in groups.annotate(count=Count("pk"))
    ]
