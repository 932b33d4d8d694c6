"""Questions: what waits for a person, where it is answered, how long it waits, and who is told."""

from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.urls import reverse
from django.utils import timezone

from agents.models import Approval, Session
from bonobot.lib.sayings import say
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


def behind(session: Session) -> dict[str, str]:
    """Return a question's fields about who asks: the person or token that started the session."""
    return {
        "requested_by_kind": session.started_by_kind,
        "requested_by_id": session.started_by_id,
        "requested_by": session.started_by,
    }


def put(question: Approval) -> Approval:
    """Write a question down and tell people; two who ask the same at once get the same one."""
    question.expires_at = closing_time(question.organization_id)
    try:
        with transaction.atomic():
            question.save(force_insert=True)
            tell(question)
    except IntegrityError:
        waiting = Approval.objects.filter(
            organization_id=question.organization_id,
            digest=question.digest,
            state=Approval.State.WAITING,
        )
        # One that was overdue and not swept yet makes way for the new question.
        if waiting.overdue().update(state=Approval.State.EXPIRED):
            return put(question)
        return waiting.get()
    return question


def tell(approval: Approval) -> None:
    """Tell people that a call waits for them, once; its arguments stay on the question's page."""
    called = approval.own_name
    if approval.server_name:
        called = f"{called} ({approval.server_name})"
    told = {"called": called, "who": approval.requested_by}
    if approval.agent:
        name = approval.agent.name
        wish = say("The agent {agent} wants to call {called}, asked by {who}.", agent=name, **told)
    else:
        wish = say("{who} wants to call {called}.", **told)
    until = say(
        "Without an answer until {until} UTC it is refused.",
        until=f"{approval.expires_at:%Y-%m-%d %H:%M}",
    )
    notify(
        approval.organization_id,
        "approval_waiting",
        Subject("approval", str(approval.pk), approval.label, page(approval)),
        " ".join((wish, approval.reason, until)),
        topic=f"approval:{approval.pk}",
    )
