"""Audit entries of calls that were canceled while they waited for approval."""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from agents.models import Approval
from bonobot.ledger.audit.admin_changes import ChangeEvent, record_finished_change
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import APPROVAL_REQUIRED_CODE, Actor, ActorKind

CANCELED_CODE = "approval_cancelled"
# The entry of a request may have the clock of another process than its approval.
MAX_CLOCK_DIFFERENCE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Who canceled calls, and why: a sentence for people."""

    actor: Actor
    reason: str


def record_canceled_call(approval: Approval, cancellation: Cancellation) -> None:
    """Record a call as canceled in the caller's transaction, with what its request recorded.

    Approvals without the entry of a request, such as those of sampling, have no call to record.
    """
    request = _find_request(approval)
    if request is None:
        return
    details = json.loads(request.opened).get("details", {})
    actor = cancellation.actor
    record_finished_change(
        organization_id=request.organization_id,
        actor=Actor(cast(ActorKind, request.actor_kind), request.actor_id, request.actor_label),
        action=request.action,
        resource_type=request.resource_type,
        resource_id=request.resource_id,
        resource_name=request.resource_name,
        details={
            **details,
            "canceled_by": "" if actor.kind == "system" else actor.label,
            "reason": cancellation.reason,
        },
        governed=False,
        event=ChangeEvent(
            "call",
            outcome="cancelled",
            code=CANCELED_CODE,
            decision=AuditRow.Decision.ASK,
            rule=request.rule,
            agent_id=request.agent_id,
            agent_name=request.agent_name,
            server_id=request.server_id,
            server_name=request.server_name,
            tool_name=request.tool_name,
            session_id=request.session_id,
            parent_id=request.parent_id,
        ),
    )


def _find_request(approval: Approval) -> AuditRow | None:
    """Return the entry of the request for an approval; indexes find it by its session or code."""
    rows = AuditRow.objects.for_organization(approval.organization_id).filter(
        outcome=AuditRow.Outcome.REFUSED,
        code=APPROVAL_REQUIRED_CODE,
        opened_at__gte=approval.created_at - MAX_CLOCK_DIFFERENCE,
        opened__contains=str(approval.pk),
    )
    if approval.session_id is not None:
        rows = rows.filter(session_id=approval.session_id)
    return rows.order_by("opened_at").first()
