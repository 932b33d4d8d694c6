"""A session as a stream of events: what its steps say, in an order that can be resumed.

Steps change until they are settled, and parallel calls settle in any order. So an event carries an
id (the step's number) only once its step and all before it are settled: whoever resumes after the
last id that came has missed nothing. Until then the same step is shown without an id, as often as
it changes, and readers put events of one `seq` in each other's place. Between those come pieces:
`text` that a model adds to a step, `progress` of a call; `state` says how the session stands, and
a last event where it rests.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agents.models import Session, Step

RESTING = frozenset(
    {Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED, Session.Status.WAITING}
)
REST = "rest"
STATE = "state"
TEXT = "text"
PROGRESS = "progress"
# What readers see of a step; the model's own message is for the model only.
_SHOWN: dict[str, tuple[str, ...]] = {
    Step.Kind.MESSAGE: ("text", "by", "replaces", "images", "files"),
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
        "progress",
        "questions",
    ),
    Step.Kind.NOTICE: ("code", "text", "wait_s", "question_id"),
    Step.Kind.END: ("answer", "code", "detail", "remedy", "field", "rule"),
}


@dataclass(frozen=True)
class Event:
    """One event; `kind` is a step's kind or one of the four others.

    `id` is there once it can be resumed after.
    """

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


def events_of(
    steps: Iterable[Step], shown_now: Mapping[int, Mapping[str, Any]] | None = None
) -> Iterator[Event]:
    """Yield steps as events; `shown_now` is what unsettled ones show beside their rows."""
    settled = True
    for step in steps:
        open_still = step.state == Step.State.INTENT
        settled = settled and not open_still
        found = shown(step)
        if open_still and shown_now:
            found |= shown_now.get(step.seq, {})
        yield Event(step.kind, found, step.seq if settled else None)


def read_events(session_id: UUID, after_seq: int = 0) -> list[Event]:
    """Return the events behind `after_seq` as they stand now (two queries).

    The last event is `rest` where the session rests. A session that is gone rests too.
    """
    # The status is read first: what a resting session did was written before it came to rest.
    session = Session.objects.filter(pk=session_id).first()
    steps = Step.objects.filter(session_id=session_id, seq__gt=after_seq).order_by("seq")
    return [*events_of(steps), *standing(session)]


def standing(session: Session | None) -> list[Event]:
    """Return the event that tells that a session rests, and how; none where it doesn't."""
    if session is None:
        return [Event(REST, {"status": "removed", "error_code": "", "error_detail": ""})]
    if session.status not in RESTING:
        return []
    found = ("status", "error_code", "error_detail")
    return [Event(REST, {name: getattr(session, name) for name in found})]


class Told:
    """What one reader was told, up to the id that it can resume after; pure."""

    def __init__(self, after_seq: int = 0) -> None:
        self.after_seq = after_seq
        self._open: dict[int, dict[str, Any]] = {}
        self._status = ""
        self._rest: dict[str, Any] = {}

    def news(self, found: Iterable[Event], status: str) -> list[Event]:
        """Return what of the events is news to the reader, who has been told then."""
        new = [piece for event in found if (piece := self._told(event)) is not None]
        known, self._status = self._status, status
        if status == known or status in RESTING or self._rest:
            return new
        return [Event(STATE, {"status": status}), *new]

    def _told(self, event: Event) -> Event | None:
        if event.kind == REST:
            known, self._rest = self._rest == event.data, event.data
            return None if known else event
        seq = event.data["seq"]
        if seq <= self.after_seq:
            return None
        before = self._open.get(seq)
        if event.id is not None:
            self.after_seq = event.id
            self._open.pop(seq, None)
            return event
        if before is not None and _is_older(event.data, before):
            return None
        self._open[seq] = event.data
        return event if before is None else _piece(before, event)


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    return {name for name in {*before, *now} if before.get(name) != now.get(name)}


def _is_older(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Tell whether a step shows nothing new: texts only grow, so a shorter one was seen before."""
    old, new = (str(one.get("text", "")) for one in (before, now))
    return _changed(before, now) <= {"text"} and old.startswith(new)


def _piece(before: Mapping[str, Any], event: Event) -> Event:
    """Return what an unsettled step shows more than before: a piece of it, or all of it."""
    now, changed = event.data, _changed(before, event.data)
    if changed == {PROGRESS} and now.get(PROGRESS):
        return Event(PROGRESS, {"seq": now["seq"], **now[PROGRESS]})
    old, new = (str(one.get("text", "")) for one in (before, now))
    if changed == {"text"} and new.startswith(old):
        return Event(TEXT, {"seq": now["seq"], "at": len(old), "text": new[len(old) :]})
    return event
