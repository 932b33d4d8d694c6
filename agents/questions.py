"""Questions: where one that waits for a person is answered, how long it waits, and who is told."""

from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from agents.models import Approval
from bonobot.notices.writing import Subject, notify
from bonobot.tenancy.models import Organization


def page(approval: Approval) -> str:
    """Return the path of the question's page in the admin."""
    return reverse("admin:agents_approval_change", args=[approval.pk])


def address(approval: Approval) -> str:
    """Return the whole address of the question's page, as callers and people elsewhere get it."""
    return f"{settings.BONOBOT_URL}{page(approval)}"


def closing_time(organization_id: UUID) -> datetime:
    """Return when a question that is asked now becomes a no."""
    chosen = Organization.objects.filter(pk=organization_id).values_list("approval_hours")
    hours = next((hours for (hours,) in chosen if hours), settings.BONOBOT_APPROVAL_H)
    return timezone.now() + timedelta(hours=hours)


def tell(approval: Approval) -> None:
    """Tell people that a call waits for them, once; its arguments stay on the question's page."""
    asks = f"The agent {approval.agent.name}" if approval.agent else approval.requested_by
    where = f" of {approval.server_name}" if approval.server_name else ""
    notify(
        approval.organization_id,
        "approval_waiting",
        Subject("approval", str(approval.pk), approval.label, page(approval)),
        f"{asks} wants to call {approval.own_name}{where}, asked by {approval.requested_by}. "
        f"{approval.reason} Without an answer until "
        f"{approval.expires_at:%Y-%m-%d %H:%M} UTC it is refused.",
        topic=f"approval:{approval.pk}",
    )
