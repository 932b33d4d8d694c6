"""The rows of a running session: read for resuming, written only under the holder's fence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models import F, Max
from django.utils import timezone

from agents.llm import port
from agents.models import Approval, Inbox, Session, Step
from agents.sessions.retrying import Failure
from agents.sessions.runners import Hold, Lost
from bonobot.lib.untrusted import storable


@dataclass(frozen=True)
class History:
    """What a session's rows say: the conversation so far and where it stopped."""

    messages: tuple[port.Message, ...]
    turn: int
    turns_since_message: int
    calls_since_message: int
    pending: tuple[Step, ...]
    last_user_text: str
    # The servers of the last turn, by id with their names; None before the first one.
    servers: dict[str, str] | None = None
    # Model turns that failed since the last answer or message, and whose answer that was.
    failures: tuple[Failure, ...] = ()
    answered_by: str = ""


def append(
    hold: Hold,
    kind: str,
    payload: dict[str, Any],
    *,
    state: str = Step.State.DONE,
    turn: int = 0,
    call_id: UUID | None = None,
) -> Step:
    """Append one step; raises `Lost` when this holder is no longer the holder."""
    step = Step(
        kind=kind,
        state=state,
        turn=turn,
        call_id=call_id,
        payload=storable(payload),
        finished_at=None if state == Step.State.INTENT else timezone.now(),
    )
    with transaction.atomic():
        # The conditional update locks the session's row: steps are numbered one after the other.
        _hold(hold)
        _number(hold, [step])
        step.save(force_insert=True)
    return step


def finish(hold: Hold, step: Step, state: str, payload: dict[str, Any], **counts: int) -> None:
    """Write a step's outcome and add `counts` to the session; raises `Lost`."""
    payload = storable(payload)
    with transaction.atomic():
        _hold(hold, **counts)
        Step.objects.filter(pk=step.pk, state=Step.State.INTENT).update(
            state=state, payload=payload, finished_at=timezone.now()
        )


def finish_turn(
    hold: Hold,
    step: Step,
    payload: dict[str, Any],
    asked: Sequence[port.ToolCall],
    **counts: int,
) -> list[Step]:
    """Write a model's reply and the intents of the calls that it asks for: none is there alone.

    The ids of the calls are in the rows before anything is sent. Everything is made before the
    transaction begins: SQLite has one lock for all who write. Raises `Lost`.
    """
    payload = storable(payload)
    begun = [
        Step(
            kind=Step.Kind.CALL,
            state=Step.State.INTENT,
            turn=step.turn,
            index=one.index,
            call_id=uuid4(),
            payload=storable(
                {"name": one.name, "arguments": one.arguments, "raw": one.raw_arguments}
            ),
        )
        for one in asked
    ]
    mine = Step.objects.filter(pk=step.pk, state=Step.State.INTENT)
    with transaction.atomic():
        _hold(hold, turns=1, **counts)
        mine.update(state=Step.State.DONE, payload=payload, finished_at=timezone.now())
        if begun:
            _number(hold, begun)
            Step.objects.bulk_create(begun)
    return begun


def renew(hold: Hold, step: Step) -> None:
    """Give a call that is made again an id of its own; the earlier one stays in its step."""
    with transaction.atomic():
        _hold(hold)
        earlier = [*step.payload.get("earlier", ()), str(step.call_id)]
        step.payload = {**step.payload, "earlier": earlier}
        step.payload.pop("approval", None)
        step.call_id = uuid4()
        step.save(update_fields=["call_id", "payload"])


def last_turn(session_id: UUID) -> dict[str, Any] | None:
    """Return what is written of a session's last model turn that ended; None before the first."""
    turns = Step.objects.filter(session_id=session_id, kind=Step.Kind.MODEL, state=Step.State.DONE)
    return turns.order_by("-seq").values_list("payload", flat=True).first()


def show_partial(hold: Hold, step: Step, text: str) -> None:
    """Let watchers see what the model has written so far."""
    Step.objects.filter(pk=step.pk, fence=hold.fence, state=Step.State.INTENT).update(
        payload={"text": storable(text)}
    )


def show_waiting(hold: Hold, step: Step, approval: Mapping[str, Any]) -> None:
    """Let watchers see that a call waits for a person, and where it is answered."""
    Step.objects.filter(pk=step.pk, state=Step.State.INTENT).update(
        payload={**step.payload, "approval": storable(dict(approval))}
    )


def park(hold: Hold) -> None:
    """Rest until a person answers; queued again at once where somebody has meanwhile."""
    with transaction.atomic():
        _hold(hold)  # locks the session's row before the questions are looked at
        asked = Approval.objects.filter(session_id=hold.session_id)
        waits = asked.filter(state=Approval.State.WAITING).exists()
        Session.objects.filter(pk=hold.session_id, fence=hold.fence).update(
            status=Session.Status.WAITING if waits else Session.Status.QUEUED,
            runner=None,
            updated_at=timezone.now(),
        )


def wants_cancel(hold: Hold) -> bool:
    """Tell whether someone wants this session cancelled."""
    return Inbox.objects.filter(
        session_id=hold.session_id, kind=Inbox.Kind.CANCEL, taken_at=None
    ).exists()


def close(hold: Hold, status: str, *, code: str = "", detail: str = "") -> None:
    """End the run: the session rests in `status`, unless a new message has come meanwhile."""
    with transaction.atomic():
        _hold(hold)  # locks the session's row before the inbox is looked at
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


def take_messages(hold: Hold) -> bool:
    """Move waiting messages from the inbox into steps; tell whether there were any."""
    with transaction.atomic():
        _hold(hold)
        waiting = list(
            Inbox.objects.filter(session_id=hold.session_id, kind=Inbox.Kind.MESSAGE, taken_at=None)
        )
        for item in waiting:
            append(hold, Step.Kind.MESSAGE, {"text": item.payload["text"], "by": item.actor})
            Inbox.objects.filter(pk=item.pk).update(taken_at=timezone.now())
    return bool(waiting)


def cancelled(runner_id: UUID) -> set[UUID]:
    """Return the sessions of this runner that someone wants cancelled (one query)."""
    wishes = Inbox.objects.filter(
        session__runner_id=runner_id, kind=Inbox.Kind.CANCEL, taken_at=None
    )
    return set(wishes.values_list("session_id", flat=True))


def take_cancels(hold: Hold) -> str:
    """Mark the wishes to cancel as fulfilled; return why the first wanted it, if it said so."""
    wishes = Inbox.objects.filter(session_id=hold.session_id, kind=Inbox.Kind.CANCEL, taken_at=None)
    said = wishes.values_list("payload", flat=True).first() or {}
    wishes.update(taken_at=timezone.now())
    return str(said.get("why", ""))


def history(session_id: UUID) -> History:
    """Read the conversation from the steps."""
    messages: list[port.Message] = []
    pending: list[Step] = []
    failures: list[Failure] = []
    turn = turns = calls = 0
    text = answered_by = ""
    servers: dict[str, str] | None = None
    for step in Step.objects.filter(session_id=session_id).order_by("seq"):
        if step.state == Step.State.INTENT:
            pending.append(step)
        if step.kind == Step.Kind.MESSAGE:
            text, turns, calls = step.payload["text"], 0, 0
            failures, answered_by = [], ""
            messages.append(port.user_message(text))
        elif step.kind == Step.Kind.MODEL:
            turn = max(turn, step.turn)
            turns += 1
            if step.state == Step.State.DONE:
                messages.append(step.payload["message"])
                servers = step.payload.get("servers", servers)
                failures, answered_by = [], step.payload.get("endpoint", {}).get("id", "")
            elif "retryable" in step.payload:
                failures.append(_failure(step.payload))
        elif step.kind == Step.Kind.CALL:
            calls += 1
            if step.state != Step.State.INTENT:
                messages.append(_answer(step))
    return History(
        messages=tuple(messages),
        turn=turn,
        turns_since_message=turns,
        calls_since_message=calls,
        pending=tuple(pending),
        last_user_text=text,
        servers=servers,
        failures=tuple(failures),
        answered_by=answered_by,
    )


def _failure(payload: Mapping[str, Any]) -> Failure:
    return Failure(
        endpoint_id=payload.get("endpoint", {}).get("id", ""),
        code=payload.get("code", ""),
        retryable=payload["retryable"],
        retry_after=payload.get("retry_after"),
    )


def _answer(step: Step) -> port.Message:
    payload = step.payload
    images = {"images": payload["images"]} if payload.get("images") else {}
    return images | port.tool_result(
        port.call_id(step.turn, step.index),
        payload["name"],
        payload.get("text", ""),
        is_error=step.state != Step.State.DONE,
        frame=payload.get("frame"),
    )


def _number(hold: Hold, steps: Sequence[Step]) -> None:
    """Give new steps the session's next numbers; its row is locked."""
    last = Step.objects.filter(session_id=hold.session_id).aggregate(last=Max("seq"))["last"] or 0
    for seq, step in enumerate(steps, start=last + 1):
        step.session_id, step.seq, step.fence = hold.session_id, seq, hold.fence


def _hold(hold: Hold, **counts: int) -> None:
    """Touch the session under the fence; raises `Lost` when it is no longer ours."""
    values: dict[str, Any] = {name: F(name) + count for name, count in counts.items()}
    mine = Session.objects.filter(
        pk=hold.session_id,
        fence=hold.fence,
        runner_id=hold.runner_id,
        status=Session.Status.RUNNING,
    )
    if not mine.update(updated_at=timezone.now(), **values):
        raise Lost
