"""Write a session's steps while holding its lease."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Max
from django.utils import timezone

from agents.approvals.services import withdraw_approvals
from agents.calls import pending_calls
from agents.llm import interface as llm_interface
from agents.models import Approval, Inbox, Session, Step
from agents.sessions.leases import LeaseLost, SessionLease
from agents.wakeups import notify_watchers, wake_session
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.text.untrusted_text import make_storable


class SessionStopped(Exception):
    """A person asked to cancel the run."""


def append_step(
    lease: SessionLease,
    kind: str,
    payload: dict[str, Any],
    *,
    state: str = Step.State.DONE,
    turn: int = 0,
    call_id: UUID | None = None,
) -> Step:
    """Append one step; raises `LeaseLost`."""
    step = _build_step(kind, payload, state=state, turn=turn, call_id=call_id)
    with transaction.atomic():
        # The conditional update locks the session's row, so step numbers are sequential.
        _update_leased_session(lease)
        _insert_steps(lease, [step])
    return step


def append_notice(lease: SessionLease, payload: Mapping[str, Any], **counts: int) -> None:
    """Append a notice and add `counts` to the session; raises `LeaseLost`."""
    step = _build_step(Step.Kind.NOTICE, payload)
    with transaction.atomic():
        _update_leased_session(lease, **counts)
        _insert_steps(lease, [step])


def finish_step(
    lease: SessionLease, step: Step, state: str, payload: dict[str, Any], **counts: int
) -> None:
    """Save a step's outcome and add `counts` to the session, once; raises `LeaseLost`.

    The pending call of a multi-round call is closed with it, and its requests are withdrawn.
    """
    payload, pending_call_id = make_storable(payload), step.payload.get("exchange")
    may_have_approvals = any(name in step.payload for name in ("approval", "exchange", "earlier"))
    unsettled_step = Step.objects.filter(pk=step.pk, state=Step.State.INTENT)
    with transaction.atomic():
        _update_leased_session(lease)
        if (
            unsettled_step.update(state=state, payload=payload, finished_at=timezone.now())
            and counts
        ):
            _update_leased_session(lease, **counts)
        if pending_call_id is not None:
            pending_calls.close_pending_call(pending_call_id)
        if may_have_approvals and step.call_id is not None:
            call_ids = [step.call_id, *map(UUID, step.payload.get("earlier", ()))]
            withdraw_approvals(lease.session_id, call_ids)


def finish_turn(
    lease: SessionLease,
    step: Step,
    payload: dict[str, Any],
    calls: Sequence[llm_interface.ToolCall],
    **counts: int,
) -> list[Step]:
    """Save a model's reply and the steps of its calls in one transaction; raises `LeaseLost`.

    Call ids are stored before anything is sent. Rows are built before the transaction, because
    SQLite has one lock for all writers.
    """
    payload = make_storable(payload)
    call_steps = [
        Step(
            kind=Step.Kind.CALL,
            state=Step.State.INTENT,
            turn=step.turn,
            index=call.index,
            call_id=generate_uuid7(),
            payload=make_storable(
                {
                    "name": call.name,
                    "arguments": call.arguments,
                    "raw": call.raw_arguments,
                    "turn_id": str(step.call_id),
                }
            ),
        )
        for call in calls
    ]
    unsettled_step = Step.objects.filter(pk=step.pk, state=Step.State.INTENT)
    with transaction.atomic():
        _update_leased_session(lease, turns=1, **counts)
        unsettled_step.update(state=Step.State.DONE, payload=payload, finished_at=timezone.now())
        if call_steps:
            _insert_steps(lease, call_steps)
    return call_steps


def replace_call_id(lease: SessionLease, step: Step) -> None:
    """Give a repeated or continued call a new id; the earlier one is kept in its step."""
    with transaction.atomic():
        _update_leased_session(lease)
        earlier_ids = [*step.payload.get("earlier", ()), str(step.call_id)]
        step.payload = {**step.payload, "earlier": earlier_ids}
        for name in ("approval", "questions", "cause"):
            step.payload.pop(name, None)
        step.call_id = generate_uuid7()
        step.save(update_fields=["call_id", "payload"])


def save_partial_output(lease: SessionLease, step: Step, output: Mapping[str, str]) -> None:
    """Save the text and thinking of an interrupted model turn."""
    Step.objects.filter(pk=step.pk, fence=lease.fence, state=Step.State.INTENT).update(
        payload=make_storable(dict(output))
    )


def count_call(lease: SessionLease, cost_microusd: int) -> None:
    """Count a call that isn't settled yet and may be made again; raises `LeaseLost`."""
    with transaction.atomic():
        _update_leased_session(lease, calls=1, cost_microusd=cost_microusd)


def show_pending_approval(lease: SessionLease, step: Step, approval: Mapping[str, Any]) -> None:
    """Show watchers that a call waits for approval."""
    with transaction.atomic():
        _update_leased_session(lease)
        Step.objects.filter(pk=step.pk, state=Step.State.INTENT).update(
            payload={**step.payload, "approval": make_storable(dict(approval))}
        )


def show_questions(
    lease: SessionLease,
    step: Step,
    question_ids: Sequence[UUID],
    notices: Sequence[Mapping[str, Any]],
) -> None:
    """Show watchers that a call waits for answers to questions; raises `LeaseLost`."""
    step.payload = {**step.payload, "questions": [str(question_id) for question_id in question_ids]}
    unsettled_step = Step.objects.filter(pk=step.pk, state=Step.State.INTENT)
    with transaction.atomic():
        _update_leased_session(lease)
        unsettled_step.update(payload=step.payload)
        _insert_steps(lease, [_build_step(Step.Kind.NOTICE, notice) for notice in notices])


def save_pending_call_id(
    lease: SessionLease, step: Step, pending_call_id: UUID, cost_microusd: int
) -> None:
    """Save the pending call that a multi-round call continues with; raises `LeaseLost`."""
    step.payload = {**step.payload, "exchange": str(pending_call_id)}
    with transaction.atomic():
        _update_leased_session(lease, cost_microusd=cost_microusd)
        unsettled_step = Step.objects.filter(pk=step.pk, state=Step.State.INTENT)
        unsettled_step.update(payload=step.payload)


def suspend_session(lease: SessionLease) -> None:
    """Suspend the session, or queue it again if nothing is pending anymore."""
    with transaction.atomic():
        _update_leased_session(lease)  # lock the session's row before checking what is pending
        approvals = Approval.objects.filter(session_id=lease.session_id)
        must_wait = approvals.filter(state=Approval.State.WAITING).exists()
        # A running child will wake this session when it ends.
        children = Session.objects.filter(parent_id=lease.session_id)
        must_wait = must_wait or children.filter(status=Session.Status.WAITING).exists()
        this_session = Session.objects.filter(pk=lease.session_id)
        must_wait = must_wait or pending_calls.filter_waiting_sessions(this_session).exists()
        Session.objects.filter(pk=lease.session_id, fence=lease.fence).update(
            status=Session.Status.WAITING if must_wait else Session.Status.QUEUED,
            runner=None,
            updated_at=timezone.now(),
        )


def is_cancel_requested(lease: SessionLease) -> bool:
    """Tell whether this session's cancellation was requested."""
    return Inbox.objects.filter(
        session_id=lease.session_id, kind=Inbox.Kind.CANCEL, processed_at=None
    ).exists()


def check_not_stopped(lease: SessionLease) -> None:
    """Raise `SessionStopped` if this session's cancellation was requested."""
    if is_cancel_requested(lease):
        lease.state.is_canceled = True
        raise SessionStopped


def close_session(
    lease: SessionLease,
    status: str,
    *,
    end: Mapping[str, Any] | None = None,
    code: str = "",
    detail: str = "",
) -> None:
    """End the run, with an end step if `end` is given; raises `LeaseLost`.

    The session gets `status`, or is queued again if a new message arrived meanwhile.
    """
    end_steps = [_build_step(Step.Kind.END, dict(end))] if end is not None else []
    with transaction.atomic():
        _update_leased_session(lease)  # lock the session's row before reading the inbox
        _insert_steps(lease, end_steps)
        has_new_messages = Inbox.objects.filter(
            session_id=lease.session_id, kind=Inbox.Kind.MESSAGE, processed_at=None
        ).exists()
        must_requeue = has_new_messages and status != Session.Status.CANCELLED
        now = timezone.now()
        Session.objects.filter(pk=lease.session_id, fence=lease.fence).update(
            status=Session.Status.QUEUED if must_requeue else status,
            error_code=code,
            error_detail=detail,
            runner=None,
            finished_at=now,
            updated_at=now,
        )
        if not must_requeue:
            wake_parent(lease.session_id)


def wake_parent(session_id: UUID) -> None:
    """Wake the session that waits for this one, if any; call it in the transaction that ends it."""
    for parent_id in Session.objects.filter(children=session_id).values_list("pk", flat=True):
        wake_session(parent_id)


def take_messages(lease: SessionLease) -> bool:
    """Move new messages from the inbox into steps; return whether there were any.

    Raises `SessionStopped` if the session's cancellation was requested.
    """
    pending_messages = Inbox.objects.filter(session_id=lease.session_id, processed_at=None)
    with transaction.atomic():
        _update_leased_session(lease)
        messages = list(pending_messages)
        if any(item.kind == Inbox.Kind.CANCEL for item in messages):
            lease.state.is_canceled = True
            raise SessionStopped
        if messages:
            payloads = [item.payload | {"by": item.actor} for item in messages]
            _insert_steps(lease, [_build_step(Step.Kind.MESSAGE, payload) for payload in payloads])
            pending_messages.filter(pk__in=[message.pk for message in messages]).update(
                processed_at=timezone.now()
            )
    return bool(messages)


def list_cancel_requests(runner_id: UUID) -> set[UUID]:
    """Return this runner's sessions with a cancellation request (one query)."""
    cancel_requests = Inbox.objects.filter(
        session__runner_id=runner_id, kind=Inbox.Kind.CANCEL, processed_at=None
    )
    return set(cancel_requests.values_list("session_id", flat=True))


def take_cancel_requests(lease: SessionLease) -> str:
    """Mark cancellation requests as handled; return the first one's reason, if any."""
    cancel_requests = Inbox.objects.filter(
        session_id=lease.session_id, kind=Inbox.Kind.CANCEL, processed_at=None
    )
    payload = cancel_requests.values_list("payload", flat=True).first() or {}
    cancel_requests.update(processed_at=timezone.now())
    return str(payload.get("why", ""))


def _build_step(
    kind: str,
    payload: Mapping[str, Any],
    *,
    state: str = Step.State.DONE,
    turn: int = 0,
    call_id: UUID | None = None,
) -> Step:
    """Return a new step without a number."""
    return Step(
        kind=kind,
        state=state,
        turn=turn,
        call_id=call_id,
        payload=make_storable(payload),
        finished_at=None if state == Step.State.INTENT else timezone.now(),
    )


def _insert_steps(lease: SessionLease, steps: Sequence[Step]) -> None:
    """Insert steps with the session's next numbers; its row must be locked.

    Only the lease's holder adds steps, so the last number is loaded once. A rollback leaves a gap,
    which is harmless.
    """
    if not steps:
        return
    state = lease.state
    if state.last_seq is None:
        session_steps = Step.objects.filter(session_id=lease.session_id)
        state.last_seq = session_steps.aggregate(last=Max("seq"))["last"] or 0
    for step in steps:
        state.last_seq += 1
        step.session_id, step.seq, step.fence = lease.session_id, state.last_seq, lease.fence
    Step.objects.bulk_create(steps)


def _update_leased_session(lease: SessionLease, **counts: int) -> None:
    """Update the session under its fence and notify watchers; raises `LeaseLost`.

    This is `query_leased_session(…).update(…)` as raw SQL: it starts every transaction, and Django
    takes ten times as long to compile it as the database to execute it.
    """
    table, prepare = Session._meta.db_table, partial(_prepare_value, connection)
    increments = "".join(f', "{name}" = "{name}" + {int(count)}' for name, count in counts.items())
    with connection.cursor() as cursor:
        cursor.execute(
            f'UPDATE "{table}" SET "updated_at" = %s{increments} '  # noqa: S608  # constant names, numbers
            'WHERE "id" = %s AND "fence" = %s AND "runner_id" = %s AND "status" = %s',
            [
                prepare("updated_at", timezone.now()),
                prepare("id", lease.session_id),
                lease.fence,
                prepare("runner", lease.runner_id),
                Session.Status.RUNNING.value,
            ],
        )
        if not cursor.rowcount:
            raise LeaseLost
    notify_watchers(lease.session_id)


def _prepare_value(database: BaseDatabaseWrapper, name: str, value: object) -> Any:
    field: Any = Session._meta.get_field(name)
    return field.get_db_prep_value(value, database)
