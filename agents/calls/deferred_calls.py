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

from agents.approvals.services import take_back
from agents.calls.require_approval import build_refusal
from agents.models import Approval, Promise
from bonobot.accounts.principals import Principal
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.problems import Problem
from bonobot.ledger.models import AuditRow

State = Promise.State
LEASE = timedelta(seconds=15)
# How long a result is kept after its approval has expired.
KEPT = timedelta(days=1)
MOST_SWEPT = 500
OPEN = (State.WAITING, State.READY, State.RUNNING, State.ASKING)


def create_deferred_call(approval_id: UUID, request: Mapping[str, Any]) -> Promise:
    """Save a call that waits for approval; reuses the row of the same waiting call."""
    waiting = Promise.objects.filter(approval_id=approval_id, state=State.WAITING)
    found = waiting.select_related("approval").first()
    if found is not None:
        return found
    approval = Approval.objects.get(pk=approval_id)
    made: Promise = Promise.objects.create(
        organization_id=approval.organization_id,
        approval=approval,
        request=dict(request),
        ends_at=approval.expires_at + KEPT,
    )
    return made


def find_deferred_call(organization_id: UUID, promise_id: UUID) -> Promise | None:
    """Return a deferred call, advanced to its current state; `ready` means it can be made.

    A problem that ended it is in its answer as `refused`.
    """
    rows = Promise.objects.for_organization(organization_id).filter(pk=promise_id)
    row: Promise | None = rows.select_related("approval").first()
    if row is None:
        return None
    if row.state == State.WAITING:
        _advance_call(row)
    elif row.state == State.RUNNING and row.beaten_at and timezone.now() - row.beaten_at > LEASE:
        _recover_call(row)
    else:
        return row
    return rows.select_related("approval").first()


def claim(row: Promise) -> bool:
    """Claim a ready call; return False if another process has claimed it."""
    number, now = generate_uuid7(), timezone.now()
    taken = Promise.objects.filter(pk=row.pk, state=State.READY, fence=row.fence).update(
        state=State.RUNNING, fence=F("fence") + 1, call_id=number, beaten_at=now, updated_at=now
    )
    if taken:
        row.state, row.fence, row.call_id, row.beaten_at = State.RUNNING, row.fence + 1, number, now
    return bool(taken)


def update_heartbeat(row: Promise) -> bool:
    """Update the heartbeat of a running call; False if it was claimed by others or canceled."""
    return bool(_filter_leased(row).update(beaten_at=timezone.now()))


def finish(row: Promise, state: str, answer: Mapping[str, Any]) -> bool:
    """Save the result of a claimed call; return whether the claim was still valid."""
    return _move(row, _filter_leased(row), state, answer)


def wait_again(row: Promise, approval_id: UUID) -> bool:
    """Wait for a new approval, because the old one doesn't fit the call any more."""
    approval = Approval.objects.get(pk=approval_id)
    return bool(
        _filter_leased(row).update(
            state=State.WAITING,
            approval=approval,
            visited=False,
            ends_at=approval.expires_at + KEPT,
            updated_at=timezone.now(),
        )
    )


def save_responses(row: Promise, responses: Mapping[str, Any]) -> None:
    """Save responses to input requests; once complete, the call is ready to continue."""
    found = row.answer.open()
    given = found.get("given", {}) | {
        key: one for key, one in responses.items() if key in found["requests"]
    }
    mine = Promise.objects.filter(pk=row.pk, state=State.ASKING, fence=row.fence)
    if found["requests"].keys() - given.keys():
        _move(row, mine, State.ASKING, found | {"given": given})
        return
    asked = row.request.open()
    more = {"inputResponses": given} | (
        {"requestState": found["state"]} if found.get("state") is not None else {}
    )
    legs = [*asked.get("legs", []), str(row.call_id)]
    with transaction.atomic():
        if mine.update(state=State.READY, updated_at=timezone.now()):
            row.request = asked | {"more": more, "legs": legs}
            row.save(update_fields=["request"])


def mark_visited(row: Promise) -> None:
    """Note that the client's user visited the approval page."""
    Promise.objects.filter(pk=row.pk).update(visited=True)


def cancel(principal: Principal, row: Promise) -> None:
    """Cancel a deferred call: withdraw its approval request or discard its result."""
    with transaction.atomic():
        waits = Promise.objects.filter(pk=row.pk, state=State.WAITING)
        if waits.update(state=State.CANCELLED, updated_at=timezone.now()):
            take_back(principal, row.approval)
            return
        mine = Promise.objects.filter(pk=row.pk, state__in=OPEN)
        mine.update(state=State.CANCELLED, updated_at=timezone.now())


def forget_old() -> int:
    """Delete expired deferred calls; return how many."""
    old = Promise.objects.filter(ends_at__lt=timezone.now()).values_list("pk", flat=True)
    found, _ = Promise.objects.filter(pk__in=list(old[:MOST_SWEPT])).delete()
    return found


def _advance_call(row: Promise) -> None:
    """Advance a waiting call whose approval was answered or has expired."""
    waits = Promise.objects.filter(pk=row.pk, state=State.WAITING, approval=row.approval)
    if row.approval.answerable(timezone.now()):
        return
    no = build_refusal(row.approval)
    if no is None:
        waits.update(state=State.READY, updated_at=timezone.now())
    else:
        _move(row, waits, State.DONE, {"refused": _build_error(no)})


def _recover_call(row: Promise) -> None:
    """End a call whose process crashed, or make it ready again if it was never sent."""
    went_out = AuditRow.objects.filter(pk__in=[row.call_id]).exclude(decision="deny").exists()
    if not went_out:
        _filter_leased(row).update(state=State.READY, updated_at=timezone.now())
        return
    unknown = Problem(
        "The process that made this call ended before it knew what came of it.",
        code="outcome_unknown",
        remedy="Look what it did before you make it again.",
    )
    _move(row, _filter_leased(row), State.DONE, {"refused": _build_error(unknown)})


def _build_error(problem: Problem) -> dict[str, Any]:
    return problem.as_dict()


def _filter_leased(row: Promise) -> Any:
    return Promise.objects.filter(pk=row.pk, state=State.RUNNING, fence=row.fence)


def _move(row: Promise, rows: Any, state: str, answer: Mapping[str, Any]) -> bool:
    """Save state and answer together if the row is still one of `rows`."""
    with transaction.atomic():
        if not rows.update(state=state, updated_at=timezone.now()):
            return False
        row.state, row.answer = state, dict(answer)
        row.save(update_fields=["answer"])
    return True
