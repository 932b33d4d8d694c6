"""Write a session's steps while holding its lease."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BigIntegerField, CharField, DateTimeField, JSONField, UUIDField
from django.utils import timezone

from agents.approvals.services import withdraw_approvals
from agents.calls import pending_calls
from agents.llm import interface as llm_interface
from agents.models import Inbox, Session, Step
from agents.sessions.leases import LeaseLost, SessionLease
from agents.wakeups import notify_watchers
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.db.prepared_queries import PreparedQuery, PreparedUpdate, QueryParameter
from bonobot.core.text.untrusted_text import make_storable

_SESSION = QueryParameter("session", output_field=UUIDField())
_CANCEL_REQUEST = PreparedQuery(
    lambda: Inbox.objects.filter(
        session=_SESSION, kind=Inbox.Kind.CANCEL, processed_at=None
    ).values_list("pk")[:1]
)
_PENDING_MESSAGES = PreparedQuery(lambda: Inbox.objects.filter(session=_SESSION, processed_at=None))
_LAST_SEQ = PreparedQuery(
    lambda: Step.objects.filter(session=_SESSION).order_by("-seq").values_list("seq")[:1]
)
_STEP_OUTCOME = PreparedUpdate(
    lambda: Step.objects.filter(
        pk=QueryParameter("step", output_field=BigIntegerField()), state=Step.State.INTENT
    ),
    lambda: {
        "state": QueryParameter("state", output_field=CharField()),
        "payload": QueryParameter("payload", output_field=JSONField()),
        "finished_at": QueryParameter("now", output_field=DateTimeField()),
    },
)


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
    step = build_step(kind, payload, state=state, turn=turn, call_id=call_id)
    with transaction.atomic():
        # The conditional update locks the session's row, so step numbers are sequential.
        update_leased_session(lease)
        insert_steps(lease, [step])
    return step


def append_notice_once(lease: SessionLease, payload: dict[str, Any]) -> None:
    """Append a notice, unless the session's latest step but its messages and answers says it."""
    silent_kinds = (Step.Kind.MESSAGE, Step.Kind.MODEL, Step.Kind.END)
    steps = Step.objects.filter(session=lease.session_id).exclude(kind__in=silent_kinds)
    latest_step = steps.order_by("-seq").first()
    if latest_step is None or latest_step.payload != payload:
        append_step(lease, Step.Kind.NOTICE, payload)


def append_notice(lease: SessionLease, payload: Mapping[str, Any], **counts: int) -> None:
    """Append a notice and add `counts` to the session; raises `LeaseLost`."""
    step = build_step(Step.Kind.NOTICE, payload)
    with transaction.atomic():
        update_leased_session(lease, **counts)
        insert_steps(lease, [step])


def finish_step(
    lease: SessionLease, step: Step, state: str, payload: dict[str, Any], **counts: int
) -> None:
    """Save a step's outcome and add `counts` to the session, once; raises `LeaseLost`.

    The pending call of a multi-round call is closed with it, and its requests are withdrawn.
    """
    payload, pending_call_id = make_storable(payload), step.payload.get("exchange")
    may_have_approvals = any(name in step.payload for name in ("approval", "exchange", "earlier"))
    with transaction.atomic():
        update_leased_session(lease, **counts)
        if not _save_outcome(step, state, payload) and counts:
            # It was saved and counted before, although its commit seemed to fail.
            update_leased_session(lease, **{name: -count for name, count in counts.items()})
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
    with transaction.atomic():
        update_leased_session(lease, turns=1, **counts)
        _save_outcome(step, Step.State.DONE, payload)
        if call_steps:
            insert_steps(lease, call_steps)
    return call_steps


def _save_outcome(step: Step, state: str, payload: Mapping[str, Any]) -> bool:
    """Save the outcome of an unsettled step; return whether it was unsettled."""
    count = _STEP_OUTCOME.execute(step=step.pk, state=state, payload=payload, now=timezone.now())
    return bool(count)


def replace_call_id(lease: SessionLease, step: Step) -> None:
    """Give a repeated or continued call a new id; the earlier one is kept in its step."""
    with transaction.atomic():
        update_leased_session(lease)
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
        update_leased_session(lease, calls=1, cost_microusd=cost_microusd)


def show_pending_approval(lease: SessionLease, step: Step, approval: Mapping[str, Any]) -> None:
    """Show watchers that a call waits for approval."""
    with transaction.atomic():
        update_leased_session(lease)
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
        update_leased_session(lease)
        unsettled_step.update(payload=step.payload)
        insert_steps(lease, [build_step(Step.Kind.NOTICE, notice) for notice in notices])


def save_pending_call_id(
    lease: SessionLease, step: Step, pending_call_id: UUID, cost_microusd: int
) -> None:
    """Save the pending call that a multi-round call continues with; raises `LeaseLost`."""
    step.payload = {**step.payload, "exchange": str(pending_call_id)}
    with transaction.atomic():
        update_leased_session(lease, cost_microusd=cost_microusd)
        unsettled_step = Step.objects.filter(pk=step.pk, state=Step.State.INTENT)
        unsettled_step.update(payload=step.payload)


def is_cancel_requested(lease: SessionLease) -> bool:
    """Tell whether this session's cancellation was requested."""
    return bool(_CANCEL_REQUEST.fetch(session=lease.session_id))


def check_not_stopped(lease: SessionLease) -> None:
    """Raise `SessionStopped` if this session's cancellation was requested."""
    if is_cancel_requested(lease):
        lease.state.is_canceled = True
        raise SessionStopped


def take_messages(lease: SessionLease) -> bool:
    """Move new messages from the inbox into steps; return whether there were any.

    Without messages, this is one query that doesn't check the lease. Raises `LeaseLost`, and
    `SessionStopped` if the session's cancellation was requested.
    """
    messages = list_new_messages(lease)
    if not messages:
        return False
    # Only the lease's holder takes messages, so they are still in the inbox.
    with transaction.atomic():
        update_leased_session(lease)
        payloads = [item.payload | {"by": item.actor} for item in messages]
        insert_steps(lease, [build_step(Step.Kind.MESSAGE, payload) for payload in payloads])
        Inbox.objects.filter(pk__in=[message.pk for message in messages]).update(
            processed_at=timezone.now()
        )
    return True


def list_new_messages(lease: SessionLease) -> list[Inbox]:
    """Return the messages in the inbox; raises `SessionStopped` like `check_not_stopped`."""
    items: list[Inbox] = _PENDING_MESSAGES.fetch(session=lease.session_id)
    if any(item.kind == Inbox.Kind.CANCEL for item in items):
        lease.state.is_canceled = True
        raise SessionStopped
    return items


def has_new_messages(lease: SessionLease) -> bool:
    """Tell whether messages arrived that aren't in steps yet."""
    messages = _PENDING_MESSAGES.fetch(session=lease.session_id)
    return any(message.kind == Inbox.Kind.MESSAGE for message in messages)


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


def build_step(
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


def insert_steps(lease: SessionLease, steps: Sequence[Step]) -> None:
    """Insert steps with the session's next numbers; its row must be locked.

    Only the lease's holder adds steps, so the last number is loaded once. A rollback leaves a gap,
    which is harmless.
    """
    if not steps:
        return
    state = lease.state
    if state.last_seq is None:
        (state.last_seq,) = _LAST_SEQ.fetch_first(session=lease.session_id) or (0,)
    for step in steps:
        state.last_seq += 1
        step.session_id, step.seq, step.fence = lease.session_id, state.last_seq, lease.fence
    Step.objects.bulk_create(steps)


def update_leased_session(lease: SessionLease, **counts: int) -> None:
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
