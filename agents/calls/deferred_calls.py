"""Deferred calls: calls that are returned as MCP tasks until they are approved.

Reading a deferred call advances it: an approval makes it ready, a denial ends it, and a call whose
process crashed is repeated only if it was never sent. Each step is a conditional UPDATE, so only
one of several concurrent readers performs it.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from agents.approvals.changed_definitions import can_be_requested_again
from agents.approvals.services import withdraw_approval
from agents.calls.incomplete_results import get_earlier_call_ids
from agents.calls.require_approval import build_refusal
from agents.calls.settle_call import (
    OUTCOME_UNKNOWN_CODE,
    OUTCOME_UNKNOWN_REMEDY,
    PROCESS_ENDED,
    describe_unknown_outcome,
)
from agents.models import Approval, DeferredCall
from bonobot.accounts.principals import Principal
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.problems import Problem
from bonobot.ledger.models import AuditRow

State = DeferredCall.State
LEASE = timedelta(seconds=15)
# How long a result is kept after its approval has expired.
RETENTION = timedelta(days=1)
MAX_DELETED = 500
OPEN_STATES = (State.WAITING, State.READY, State.RUNNING, State.ASKING)


def create_deferred_call(approval_id: UUID, request: Mapping[str, Any]) -> DeferredCall:
    """Save a call that waits for approval; reuses the row of the same waiting call."""
    pending_calls = DeferredCall.objects.filter(approval_id=approval_id, state=State.WAITING)
    existing = pending_calls.select_related("approval").first()
    if existing is not None:
        return existing
    approval = Approval.objects.get(pk=approval_id)
    deferred_call: DeferredCall = DeferredCall.objects.create(
        organization_id=approval.organization_id,
        approval=approval,
        request=dict(request),
        ends_at=approval.expires_at + RETENTION,
    )
    return deferred_call


def find_deferred_call(organization_id: UUID, deferred_call_id: UUID) -> DeferredCall | None:
    """Return a deferred call, advanced to its current state; `ready` means it can be made.

    A problem that ended it is in its answer as `refused`.
    """
    rows = DeferredCall.objects.for_organization(organization_id).filter(pk=deferred_call_id)
    row: DeferredCall | None = rows.select_related("approval").first()
    if row is None:
        return None
    if row.state == State.WAITING:
        _advance_call(row)
    elif (
        row.state == State.RUNNING
        and row.heartbeat_at
        and timezone.now() - row.heartbeat_at > LEASE
    ):
        _recover_call(row)
    else:
        return row
    return rows.select_related("approval").first()


def claim_deferred_call(row: DeferredCall) -> bool:
    """Claim a ready call; return False if another process has claimed it."""
    call_id, now = generate_uuid7(), timezone.now()
    claimed = DeferredCall.objects.filter(pk=row.pk, state=State.READY, fence=row.fence).update(
        state=State.RUNNING, fence=F("fence") + 1, call_id=call_id, heartbeat_at=now, updated_at=now
    )
    if claimed:
        row.state, row.fence, row.call_id, row.heartbeat_at = (
            State.RUNNING,
            row.fence + 1,
            call_id,
            now,
        )
    return bool(claimed)


def update_heartbeat(row: DeferredCall) -> bool:
    """Update the heartbeat of a running call; False if it was claimed by others or canceled."""
    return bool(_filter_leased(row).update(heartbeat_at=timezone.now()))


def finish_deferred_call(row: DeferredCall, state: str, answer: Mapping[str, Any]) -> bool:
    """Save the result of a claimed call; return whether the claim was still valid."""
    return _update_state(row, _filter_leased(row), state, answer)


def return_to_waiting(row: DeferredCall, approval_id: UUID) -> bool:
    """Wait for a new approval, because the old one doesn't fit the call any more."""
    approval = Approval.objects.get(pk=approval_id)
    return bool(
        _filter_leased(row).update(
            state=State.WAITING,
            approval=approval,
            visited=False,
            ends_at=approval.expires_at + RETENTION,
            updated_at=timezone.now(),
        )
    )


def save_responses(row: DeferredCall, responses: Mapping[str, Any]) -> None:
    """Save responses to input requests; once complete, the call is ready to continue."""
    answer = row.answer.open()
    given_responses = answer.get("given", {}) | {
        key: response for key, response in responses.items() if key in answer["requests"]
    }
    asking_rows = DeferredCall.objects.filter(pk=row.pk, state=State.ASKING, fence=row.fence)
    if answer["requests"].keys() - given_responses.keys():
        _update_state(row, asking_rows, State.ASKING, answer | {"given": given_responses})
        return
    stored_request = row.request.open()
    extra_params = {"inputResponses": given_responses} | (
        {"requestState": answer["state"]} if answer.get("state") is not None else {}
    )
    earlier_call_ids = [*get_earlier_call_ids(stored_request), str(row.call_id)]
    with transaction.atomic():
        if asking_rows.update(state=State.READY, updated_at=timezone.now()):
            row.request = stored_request | {"more": extra_params, "call_ids": earlier_call_ids}
            row.save(update_fields=["request"])


def mark_visited(row: DeferredCall) -> None:
    """Note that the client's user visited the approval page."""
    DeferredCall.objects.filter(pk=row.pk).update(visited=True)


def cancel_deferred_call(principal: Principal, row: DeferredCall) -> None:
    """Cancel a deferred call: withdraw its approval request or discard its result."""
    with transaction.atomic():
        waiting_rows = DeferredCall.objects.filter(pk=row.pk, state=State.WAITING)
        if waiting_rows.update(state=State.CANCELLED, updated_at=timezone.now()):
            withdraw_approval(principal, row.approval)
            return
        open_rows = DeferredCall.objects.filter(pk=row.pk, state__in=OPEN_STATES)
        open_rows.update(state=State.CANCELLED, updated_at=timezone.now())


def delete_expired() -> int:
    """Delete expired deferred calls; return how many."""
    expired_ids = DeferredCall.objects.filter(ends_at__lt=timezone.now()).values_list(
        "pk", flat=True
    )
    deleted_count, _ = DeferredCall.objects.filter(pk__in=list(expired_ids[:MAX_DELETED])).delete()
    return deleted_count


def _advance_call(row: DeferredCall) -> None:
    """Advance a waiting call whose approval was answered, has expired, or is requested again."""
    waiting_rows = DeferredCall.objects.filter(
        pk=row.pk, state=State.WAITING, approval=row.approval
    )
    is_pending = row.approval.is_answerable(timezone.now())
    if is_pending and not can_be_requested_again(row.approval):
        return
    refusal = None if is_pending else build_refusal(row.approval)
    if refusal is None:
        waiting_rows.update(state=State.READY, updated_at=timezone.now())
    else:
        _update_state(row, waiting_rows, State.DONE, {"refused": _build_error(refusal)})


def _recover_call(row: DeferredCall) -> None:
    """End a call whose process crashed, or make it ready again if it was never sent."""
    was_sent = AuditRow.objects.filter(pk__in=[row.call_id]).exclude(decision="deny").exists()
    if not was_sent:
        _filter_leased(row).update(state=State.READY, updated_at=timezone.now())
        return
    problem = Problem(
        describe_unknown_outcome(PROCESS_ENDED),
        code=OUTCOME_UNKNOWN_CODE,
        remedy=OUTCOME_UNKNOWN_REMEDY,
    )
    _update_state(row, _filter_leased(row), State.DONE, {"refused": _build_error(problem)})


def _build_error(problem: Problem) -> dict[str, Any]:
    return problem.as_dict()


def _filter_leased(row: DeferredCall) -> Any:
    return DeferredCall.objects.filter(pk=row.pk, state=State.RUNNING, fence=row.fence)


def _update_state(row: DeferredCall, rows: Any, state: str, answer: Mapping[str, Any]) -> bool:
    """Save state and answer together if the row is still one of `rows`."""
    with transaction.atomic():
        if not rows.update(state=state, updated_at=timezone.now()):
            return False
        row.state, row.answer = state, dict(answer)
        row.save(update_fields=["answer"])
    return True
