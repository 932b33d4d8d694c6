"""Calls promised as tasks until approved.

Whoever asks what became of one takes it a step further: a yes makes it ready, a no ends it, and a
call whose process died is made again only if it never went out. Every step is a conditional
update, so that of several who come at once, one takes it.
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
# How long what came of a call is kept after its question is over.
KEPT = timedelta(days=1)
MOST_SWEPT = 500
OPEN = (State.WAITING, State.READY, State.RUNNING, State.ASKING)


def create_deferred_call(approval_id: UUID, request: Mapping[str, Any]) -> Promise:
    """Write a call down that waits for a person; the same call is promised once at a time."""
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
    """Return how a call stands by now; one that is to be made is `ready`.

    A problem that ended it stands in its answer as `refused`.
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
    """Take a call that is ready, to make it; tell whether nobody else has."""
    number, now = generate_uuid7(), timezone.now()
    taken = Promise.objects.filter(pk=row.pk, state=State.READY, fence=row.fence).update(
        state=State.RUNNING, fence=F("fence") + 1, call_id=number, beaten_at=now, updated_at=now
    )
    if taken:
        row.state, row.fence, row.call_id, row.beaten_at = State.RUNNING, row.fence + 1, number, now
    return bool(taken)


def update_heartbeat(row: Promise) -> bool:
    """Say that a call is still being made; False where it isn't ours any more, or taken back."""
    return bool(_filter_leased(row).update(beaten_at=timezone.now()))


def finish(row: Promise, state: str, answer: Mapping[str, Any]) -> bool:
    """Write what came of a call that we make; tell whether it was still ours."""
    return _move(row, _filter_leased(row), state, answer)


def wait_again(row: Promise, approval_id: UUID) -> bool:
    """Wait for a person once more: the yes was for a call as it isn't any more."""
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
    """Take what a server asked for; with all of it, the call is to go on."""
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
    """Note that the person before the client went to where it is answered."""
    Promise.objects.filter(pk=row.pk).update(visited=True)


def cancel(principal: Principal, row: Promise) -> None:
    """Take a call back: nobody is asked any more, and what comes of it is told to nobody."""
    with transaction.atomic():
        waits = Promise.objects.filter(pk=row.pk, state=State.WAITING)
        if waits.update(state=State.CANCELLED, updated_at=timezone.now()):
            take_back(principal, row.approval)
            return
        mine = Promise.objects.filter(pk=row.pk, state__in=OPEN)
        mine.update(state=State.CANCELLED, updated_at=timezone.now())


def forget_old() -> int:
    """Remove promises whose time is over; return how many."""
    old = Promise.objects.filter(ends_at__lt=timezone.now()).values_list("pk", flat=True)
    found, _ = Promise.objects.filter(pk__in=list(old[:MOST_SWEPT])).delete()
    return found


def _advance_call(row: Promise) -> None:
    """Take a call further whose question is answered, or whose time was over."""
    waits = Promise.objects.filter(pk=row.pk, state=State.WAITING, approval=row.approval)
    if row.approval.answerable(timezone.now()):
        return
    no = build_refusal(row.approval)
    if no is None:
        waits.update(state=State.READY, updated_at=timezone.now())
    else:
        _move(row, waits, State.DONE, {"refused": _build_error(no)})


def _recover_call(row: Promise) -> None:
    """End a call that its process left, or have it made where it never went out."""
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
    """Write state and answer together, where the row is still one of `rows`."""
    with transaction.atomic():
        if not rows.update(state=state, updated_at=timezone.now()):
            return False
        row.state, row.answer = state, dict(answer)
        row.save(update_fields=["answer"])
    return True
