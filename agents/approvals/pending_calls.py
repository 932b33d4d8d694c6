"""The calls that wait for approval, as the audit log lists them and usage counts them."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, Q
from django.db.models.functions import TruncMinute
from django.utils import timezone

from agents.models import Approval
from agents.models.approvals import PersonRequestQuerySet
from bonobot.ledger.extension_points import PendingCalls
from bonobot.ledger.models import ApprovalCell, AuditRow

IS_UNSPENT = Exists(ApprovalCell.objects.filter(pk=OuterRef("pk"), spent_by=None))
# A call without a session runs only if its client retries it.
IS_UNUSED = Q(IS_UNSPENT, state=Approval.State.APPROVED, session=None)
MAX_PENDING = 1_000
# An admission that started before an approval expired has ended by then.
ADMISSION_TIME = timedelta(minutes=1)
# Older approvals that weren't used may have lost their cells.
MAX_UNUSED_AGE = timedelta(days=30)

# Columns of rollups whose approvals have other names.
APPROVAL_COLUMNS = {"tool_name": "own_name", "agent_name": "agent__name"}


def filter_pending_calls() -> PersonRequestQuerySet:
    """Return approvals of calls that wait for an answer, or for the client to use the approval."""
    states = (Approval.State.WAITING, Approval.State.APPROVED)  # those of the index
    rows: PersonRequestQuerySet = Approval.objects.filter(
        Q(state=Approval.State.WAITING) | IS_UNUSED,
        state__in=states,
        expires_at__gt=timezone.now(),
    )
    return rows


def is_unused(approval: Approval) -> bool:
    """Return whether a client still has to use an approval (at most one query)."""
    is_approved = approval.state == Approval.State.APPROVED and approval.session_id is None
    return is_approved and Approval.objects.filter(IS_UNUSED, pk=approval.pk).exists()


def list_pending_entries(organization_id: UUID) -> list[UUID]:
    """Return the audit entries of the latest pending calls, one for each (one query).

    They are few, and their IDs lead the database to them without a scan of answered requests.
    """
    pending_calls = filter_pending_calls().for_organization(organization_id)
    requested = pending_calls.filter(request_entry_id__isnull=False).order_by("-created_at")
    return list(requested.values_list("request_entry_id", flat=True)[:MAX_PENDING])


def filter_unused_approvals() -> PersonRequestQuerySet:
    """Return approvals that expired before a client used them, and whose calls aren't recorded."""
    expired_at = timezone.now() - ADMISSION_TIME
    rows: PersonRequestQuerySet = Approval.objects.filter(
        IS_UNUSED,
        ~Exists(AuditRow.objects.filter(pk=OuterRef("call_id"))),
        request_entry_id__isnull=False,
        expires_at__range=(expired_at - MAX_UNUSED_AGE, expired_at),
    )
    return rows


def load_pending_calls(
    organization_id: UUID | None,
    since: datetime,
    until: datetime | None,
    filters: Mapping[str, Any],
) -> list[PendingCalls]:
    """Return the pending calls requested from `since` to before `until` (one query)."""
    conditions = {APPROVAL_COLUMNS.get(name, name): value for name, value in filters.items()}
    rows = filter_pending_calls().filter(created_at__gte=since, **conditions)
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
