"""Audit entries of calls that end while they wait for approval.

A session records how its own calls end when it continues. The client of a call without a session
may never call again, so the call is recorded as soon as it is denied, expires, or is canceled.
"""

import json
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from agents.models import Approval
from bonobot.ledger.audit.admin_changes import ChangeEvent, record_change
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import Actor, ActorKind, Outcome

CANCELED_CODE = "approval_cancelled"


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Who canceled calls, and why: a sentence for people."""

    actor: Actor
    reason: str


def set_request_entry(approval_id: UUID, entry_id: UUID) -> None:
    """Save the audit entry of the first request for an approval."""
    unset = Approval.objects.filter(pk=approval_id, request_entry_id=None)
    unset.update(request_entry_id=entry_id)


def record_canceled_call(approval: Approval, cancellation: Cancellation) -> None:
    """Record a call as canceled in the caller's transaction, with what its request recorded."""
    actor = cancellation.actor
    details = {
        "canceled_by": "" if actor.kind == "system" else actor.label,
        "reason": cancellation.reason,
    }
    _record_call(approval, "cancelled", CANCELED_CODE, details)


def record_refused_call(approval: Approval, code: str, reason: str) -> None:
    """Record a call without a session as denied in the caller's transaction.

    `code` is `approval_denied` or `approval_expired`. The client's next identical call is answered
    with this refusal and not recorded again: see `take_recorded_refusal`.
    """
    if approval.session_id is None and _record_call(approval, "refused", code, {"reason": reason}):
        Approval.objects.filter(pk=approval.pk).update(is_refusal_recorded=True)


def take_recorded_refusal(approval_id: UUID) -> bool:
    """Return whether the refusal of a call is already recorded: true for the first caller only.

    The first call after the answer continues the call that requested the approval. Further ones
    are calls of their own.
    """
    recorded = Approval.objects.filter(pk=approval_id, is_refusal_recorded=True)
    return bool(recorded.update(is_refusal_recorded=False))


def _record_call(
    approval: Approval, outcome: Outcome, code: str, extra_details: dict[str, Any]
) -> bool:
    """Record the end of a call that didn't run; without a session, under the ID of the call.

    Return False for approvals without the entry of a request, such as those of sampling, and for
    calls that have an entry of their own.
    """
    entries = AuditRow.objects.for_organization(approval.organization_id)
    # The call of a session may have an entry of an attempt that was interrupted.
    has_entry = approval.session_id is None and entries.filter(pk=approval.call_id).exists()
    if approval.request_entry_id is None or has_entry:
        return False
    request = entries.get(pk=approval.request_entry_id)
    event = ChangeEvent(
        "call",
        outcome=outcome,
        code=code,
        decision=AuditRow.Decision.ASK,
        rule=request.rule,
        agent_id=request.agent_id,
        agent_name=request.agent_name,
        server_id=request.server_id,
        server_name=request.server_name,
        tool_name=request.tool_name,
        session_id=request.session_id,
        parent_id=request.parent_id,
    )
    with record_change(
        organization_id=request.organization_id,
        actor=Actor(cast(ActorKind, request.actor_kind), request.actor_id, request.actor_label),
        action=request.action,
        resource_type=request.resource_type,
        resource_id=request.resource_id,
        resource_name=request.resource_name,
        details=json.loads(request.opened).get("details", {}) | extra_details,
        governed=False,
        event=event,
    ) as change:
        if approval.session_id is None:
            change.id = approval.call_id
    return True
