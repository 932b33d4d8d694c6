"""A session as a stream of events: what its steps say, in an order that can be resumed.

Steps change until they are settled, and parallel calls settle in any order. So an event carries an
id (the step's number) only once its step and all before it are settled: whoever resumes after an id
has missed nothing. Until then the same step is shown without an id, as often as it changes, and
readers put events of one `seq` in each other's place. A last event tells where the session rests.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agents.models import Session, Step
from bonobot.lib.runtime import runtime

# Two queries a look, so four a second.
LOOK_EVERY_S = 0.5
RESTING = frozenset(
    {Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED, Session.Status.WAITING}
)
REST = "rest"
# What readers see of a step; the model's own message is for the model only.
_SHOWN: dict[str, tuple[str, ...]] = {
    Step.Kind.MESSAGE: ("text", "by"),
    Step.Kind.MODEL: (
        "text",
        "images",
        "finish",
        "endpoint",
        "usage",
        "cost_microusd",
        "code",
        "detail",
        "remedy",
    ),
    Step.Kind.CALL: (
        "name",
        "arguments",
        "text",
        "code",
        "rule",
        "server",
        "tool",
        "duration_ms",
        "images",
        "flagged",
        "sanitized",
        "approval",
    ),
    Step.Kind.NOTICE: ("code", "text", "wait_s"),
    Step.Kind.END: ("answer", "code", "detail", "remedy", "field", "rule"),
}


@dataclass(frozen=True)
class Event:
    """One event; `kind` is a step's kind or `rest`, `id` is there once it can be resumed after."""

    kind: str
    data: dict[str, Any]
    id: int | None = None


def shown(step: Step) -> dict[str, Any]:
    """Return a step as every surface shows it."""
    found = {name: step.payload[name] for name in _SHOWN[step.kind] if name in step.payload}
    return {
        "seq": step.seq,
        "kind": step.kind,
        "state": step.state,
        "turn": step.turn,
        "index": step.index,
        "call_id": str(step.call_id) if step.call_id else None,
        "started_at": step.started_at.isoformat(),
        "finished_at": step.finished_at.isoformat() if step.finished_at else None,
        **found,
    }


def read_events(session_id: UUID, after_seq: int = 0) -> list[Event]:
    """Return the events behind `after_seq` as they stand now (two queries).

    The text that a model writes comes as its growing, unsettled step. The last event is `rest`
    where the session rests. A session that is gone rests too.
    """
    # The status is read first: what a resting session did was written before it came to rest.
    session = Session.objects.filter(pk=session_id).first()
    steps = Step.objects.filter(session_id=session_id, seq__gt=after_seq).order_by("seq")
    events = list(_events(steps))
    if session is None or session.status in RESTING:
        events.append(Event(REST, _rest(session)))
    return events


async def follow(session_id: UUID, after_seq: int = 0) -> AsyncIterator[list[Event]]:
    """Yield what is new at each look (it may be nothing), until the session rests.

    Belongs to the runtime's loop; at most four queries a second.
    """
    told: dict[int, dict[str, Any]] = {}
    while True:
        found = await runtime().orm(read_events, session_id, after_seq)
        new = [event for event in found if _is_news(event, told)]
        for event in new:
            if event.id is not None:
                after_seq = event.id
                told.pop(event.id, None)
            elif event.kind != REST:
                told[event.data["seq"]] = event.data
        yield new
        if found and found[-1].kind == REST:
            return
        await asyncio.sleep(LOOK_EVERY_S)


def _events(steps: Any) -> Iterator[Event]:
    settled = True
    for step in steps:
        settled = settled and step.state != Step.State.INTENT
        yield Event(step.kind, shown(step), step.seq if settled else None)


def _is_news(event: Event, told: dict[int, dict[str, Any]]) -> bool:
    return event.id is not None or event.kind == REST or told.get(event.data["seq"]) != event.data


def _rest(session: Session | None) -> dict[str, Any]:
    if session is None:
        return {"status": "removed", "error_code": "", "error_detail": ""}
    return {
        "status": session.status,
        "error_code": session.error_code,
        "error_detail": session.error_detail,
    }
