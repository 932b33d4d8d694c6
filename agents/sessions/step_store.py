"""Write a session's steps while holding its lease."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Max
from django.utils import timezone

from agents.calls import pending_calls
from agents.llm import interface as llm_interface
from agents.models import Approval, Inbox, Session, Step
from agents.session_wakeups import notify_watchers, wake
from agents.sessions.leases import LeaseLost, SessionLease
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.text.untrusted_text import make_storable


def append(
    hold: SessionLease,
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
        _update_leased_session(hold)
        _add(hold, [step])
    return step


def append_notice(hold: SessionLease, payload: Mapping[str, Any], **counts: int) -> None:
    """Append a notice and add `counts` to the session; raises `LeaseLost`."""
    step = _build_step(Step.Kind.NOTICE, payload)
    with transaction.atomic():
        _update_leased_session(hold, **counts)
        _add(hold, [step])


def finish(
    hold: SessionLease, step: Step, state: str, payload: dict[str, Any], **counts: int
) -> None:
    """Save a step's outcome and add `counts` to the session, once; raises `LeaseLost`.

    The exchange of a multi-round call is closed with it.
    """
    payload, went_on_by = make_storable(payload), step.payload.get("exchange")
    begun = Step.objects.filter(pk=step.pk, state=Step.State.INTENT)
    with transaction.atomic():
        _update_leased_session(hold)
        if begun.update(state=state, payload=payload, finished_at=timezone.now()) and counts:
            _update_leased_session(hold, **counts)
        if went_on_by is not None:
            pending_calls.close(went_on_by)


def finish_turn(
    hold: SessionLease,
    step: Step,
    payload: dict[str, Any],
    asked: Sequence[llm_interface.ToolCall],
    **counts: int,
) -> list[Step]:
    """Save a model's reply and the steps of its calls in one transaction; raises `LeaseLost`.

    Call ids are stored before anything is sent. Rows are built before the transaction, because
    SQLite has one lock for all writers.
    """
    payload = make_storable(payload)
    begun = [
        Step(
            kind=Step.Kind.CALL,
            state=Step.State.INTENT,
            turn=step.turn,
            index=one.index,
            call_id=generate_uuid7(),
            payload=make_storable(
                {"name": one.name, "arguments": one.arguments, "raw": one.raw_arguments}
            ),
        )
        for one in asked
    ]
    mine = Step.objects.filter(pk=step.pk, state=Step.State.INTENT)
    with transaction.atomic():
        _update_leased_session(hold, turns=1, **counts)
        mine.update(state=Step.State.DONE, payload=payload, finished_at=timezone.now())
        if begun:
            _add(hold, begun)
    return begun


def replace_call_id(hold: SessionLease, step: Step) -> None:
    """Give a repeated or continued call a new id; the earlier one is kept in its step."""
    with transaction.atomic():
        _update_leased_session(hold)
        earlier = [*step.payload.get("earlier", ()), str(step.call_id)]
        step.payload = {**step.payload, "earlier": earlier}
        for waited_for in ("approval", "questions"):
            step.payload.pop(waited_for, None)
        step.call_id = generate_uuid7()
        step.save(update_fields=["call_id", "payload"])


def show_partial(hold: SessionLease, step: Step, text: str) -> None:
    """Save the text of an interrupted model turn."""
    Step.objects.filter(pk=step.pk, fence=hold.fence, state=Step.State.INTENT).update(
        payload={"text": make_storable(text)}
    )


def show_waiting(hold: SessionLease, step: Step, approval: Mapping[str, Any]) -> None:
    """Show watchers that a call waits for approval."""
    with transaction.atomic():
        _update_leased_session(hold)
        Step.objects.filter(pk=step.pk, state=Step.State.INTENT).update(
            payload={**step.payload, "approval": make_storable(dict(approval))}
        )


def show_questions(
    hold: SessionLease, step: Step, asked: Sequence[UUID], notices: Sequence[Mapping[str, Any]]
) -> None:
    """Show watchers that a call waits for answers to questions; raises `LeaseLost`."""
    step.payload = {**step.payload, "questions": [str(one) for one in asked]}
    mine = Step.objects.filter(pk=step.pk, state=Step.State.INTENT)
    with transaction.atomic():
        _update_leased_session(hold)
        mine.update(payload=step.payload)
        _add(hold, [_build_step(Step.Kind.NOTICE, notice) for notice in notices])


def keep_exchange(hold: SessionLease, step: Step, exchange_id: UUID, cost_microusd: int) -> None:
    """Save the exchange that a multi-round call continues with; raises `LeaseLost`."""
    step.payload = {**step.payload, "exchange": str(exchange_id)}
    with transaction.atomic():
        _update_leased_session(hold, cost_microusd=cost_microusd)
        mine = Step.objects.filter(pk=step.pk, state=Step.State.INTENT)
        mine.update(payload=step.payload)


def suspend_session(hold: SessionLease) -> None:
    """Suspend the session, or queue it again if nothing is pending anymore."""
    with transaction.atomic():
        _update_leased_session(hold)  # lock the session's row before checking what is pending
        asked = Approval.objects.filter(session_id=hold.session_id)
        waits = asked.filter(state=Approval.State.WAITING).exists()
        # A running child will wake this session when it ends.
        begun = Session.objects.filter(parent_id=hold.session_id)
        waits = waits or begun.filter(status=Session.Status.WAITING).exists()
        mine = Session.objects.filter(pk=hold.session_id)
        waits = waits or pending_calls.filter_waiting_sessions(mine).exists()
        Session.objects.filter(pk=hold.session_id, fence=hold.fence).update(
            status=Session.Status.WAITING if waits else Session.Status.QUEUED,
            runner=None,
            updated_at=timezone.now(),
        )


def is_cancel_requested(hold: SessionLease) -> bool:
    """Tell whether this session's cancellation was requested."""
    return Inbox.objects.filter(
        session_id=hold.session_id, kind=Inbox.Kind.CANCEL, taken_at=None
    ).exists()


def close(
    hold: SessionLease,
    status: str,
    *,
    end: Mapping[str, Any] | None = None,
    code: str = "",
    detail: str = "",
) -> None:
    """End the run, with an end step if `end` is given; raises `LeaseLost`.

    The session gets `status`, or is queued again if a new message arrived meanwhile.
    """
    last = [_build_step(Step.Kind.END, dict(end))] if end is not None else []
    with transaction.atomic():
        _update_leased_session(hold)  # lock the session's row before reading the inbox
        _add(hold, last)
        waiting = Inbox.objects.filter(
            session_id=hold.session_id, kind=Inbox.Kind.MESSAGE, taken_at=None
        ).exists()
        again = waiting and status != Session.Status.CANCELLED
        now = timezone.now()
        Session.objects.filter(pk=hold.session_id, fence=hold.fence).update(
            status=Session.Status.QUEUED if again else status,
            error_code=code,
            error_detail=detail,
            runner=None,
            finished_at=now,
            updated_at=now,
        )
        if not again:
            _wake_parent(hold.session_id)


def _wake_parent(session_id: UUID) -> None:
    """Wake the session that waits for this one, if any."""
    waiting = Session.objects.filter(children=session_id, status=Session.Status.WAITING)
    parent_id = waiting.values_list("pk", flat=True).first()
    if parent_id is not None:
        wake(parent_id)


def take_messages(hold: SessionLease) -> bool:
    """Move new messages from the inbox into steps; return whether there were any."""
    waiting = Inbox.objects.filter(
        session_id=hold.session_id, kind=Inbox.Kind.MESSAGE, taken_at=None
    )
    with transaction.atomic():
        _update_leased_session(hold)
        found = list(waiting)
        if found:
            said = [item.payload | {"by": item.actor} for item in found]
            _add(hold, [_build_step(Step.Kind.MESSAGE, payload) for payload in said])
            waiting.filter(pk__in=[one.pk for one in found]).update(taken_at=timezone.now())
    return bool(found)


def list_cancel_requests(runner_id: UUID) -> set[UUID]:
    """Return this runner's sessions with a cancellation request (one query)."""
    wishes = Inbox.objects.filter(
        session__runner_id=runner_id, kind=Inbox.Kind.CANCEL, taken_at=None
    )
    return set(wishes.values_list("session_id", flat=True))


def take_cancels(hold: SessionLease) -> str:
    """Mark cancellation requests as handled; return the first one's reason, if any."""
    wishes = Inbox.objects.filter(session_id=hold.session_id, kind=Inbox.Kind.CANCEL, taken_at=None)
    said = wishes.values_list("payload", flat=True).first() or {}
    wishes.update(taken_at=timezone.now())
    return str(said.get("why", ""))


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


def _add(hold: SessionLease, steps: Sequence[Step]) -> None:
    """Insert steps with the session's next numbers; its row must be locked.

    Only the lease's holder adds steps, so the last number is loaded once. A rollback leaves a gap,
    which is harmless.
    """
    if not steps:
        return
    presence = hold.presence
    if presence.last_seq is None:
        mine = Step.objects.filter(session_id=hold.session_id)
        presence.last_seq = mine.aggregate(last=Max("seq"))["last"] or 0
    for step in steps:
        presence.last_seq += 1
        step.session_id, step.seq, step.fence = hold.session_id, presence.last_seq, hold.fence
    Step.objects.bulk_create(steps)


def _update_leased_session(hold: SessionLease, **counts: int) -> None:
    """Update the session under its fence and notify watchers; raises `LeaseLost`.

    This is `query_leased_session(…).update(…)` as raw SQL: it starts every transaction, and Django
    takes ten times as long to compile it as the database to execute it.
    """
    table, prepared = Session._meta.db_table, partial(_prepare_value, connection)
    added = "".join(f', "{name}" = "{name}" + {int(count)}' for name, count in counts.items())
    with connection.cursor() as cursor:
        cursor.execute(
            f'UPDATE "{table}" SET "updated_at" = %s{added} '  # noqa: S608  # names of ours, numbers
            'WHERE "id" = %s AND "fence" = %s AND "runner_id" = %s AND "status" = %s',
            [
                prepared("updated_at", timezone.now()),
                prepared("id", hold.session_id),
                hold.fence,
                prepared("runner", hold.runner_id),
                Session.Status.RUNNING.value,
            ],
        )
        if not cursor.rowcount:
            raise LeaseLost
    notify_watchers(hold.session_id)


def _prepare_value(database: BaseDatabaseWrapper, name: str, value: object) -> Any:
    field: Any = Session._meta.get_field(name)
    return field.get_db_prep_value(value, database)
