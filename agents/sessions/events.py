"""Session steps as resumable events, and the watcher that polls for them.

Steps change until they are settled, and parallel calls settle in any order. So an event has an id
(the step's number) only once its step and all earlier ones are settled: a reader that resumes after
the last id misses nothing. Until then each change of a step is sent without an id, and replaces the
previous event of the same `seq`. In between come deltas: `text` added by a model, `progress` of a
call. `state` reports the session's status; the last event is `rest`.

One poll takes one query for the sessions that are due, and one more for each that has changed.
Signals over the Redis bus make a session due; otherwise it is polled every `POLL_INTERVAL_S`, or
every `FALLBACK_POLL_INTERVAL_S` while the bus is connected, because a signal may be lost. Polls of
a session are at least `POLL_INTERVAL_S` apart, so it takes at most four queries per second, however
many watch it. Partial output comes from the bus, without a query. All of this runs on the runtime's
event loop.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from math import inf
from time import monotonic
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import Error as DatabaseFault

from agents.models import Session, Step
from agents.session_wakeups import build_bus_topic
from agents.sessions.partial_output import fetch_partial_outputs
from bonobot.core.redis_bus import get_bus
from bonobot.core.runtime import Runtime, get_runtime

RESTING = frozenset(
    {Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED, Session.Status.WAITING}
)
REST = "rest"
STATE = "state"
TEXT = "text"
PROGRESS = "progress"
# The payload fields that readers see, by kind of step.
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
class SessionEvent:
    """One event; `kind` is a step's kind, `rest`, `state`, `text` or `progress`.

    `id` is set once a reader can resume after the event.
    """

    kind: str
    data: dict[str, Any]
    id: int | None = None


def build_step_data(step: Step) -> dict[str, Any]:
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


def build_events(
    steps: Iterable[Step], shown_now: Mapping[int, Mapping[str, Any]] | None = None
) -> Iterator[SessionEvent]:
    """Yield steps as events; `partial_outputs` holds data of unsettled steps, by `seq`."""
    settled = True
    for step in steps:
        open_still = step.state == Step.State.INTENT
        settled = settled and not open_still
        found = build_step_data(step)
        if open_still and shown_now:
            found |= shown_now.get(step.seq, {})
        yield SessionEvent(step.kind, found, step.seq if settled else None)


def read_events(session_id: UUID, after_seq: int = 0) -> list[SessionEvent]:
    """Return the current events after `after_seq` (two queries).

    The last event is `rest` if the session rests or was deleted.
    """
    # Read the status first: all steps of a resting session were written before its status.
    session = Session.objects.filter(pk=session_id).first()
    steps = Step.objects.filter(session_id=session_id, seq__gt=after_seq).order_by("seq")
    return [*build_events(steps), *build_rest_events(session)]


def build_rest_events(session: Session | None) -> list[SessionEvent]:
    """Return the `rest` event of a session; empty if it doesn't rest."""
    if session is None:
        return [SessionEvent(REST, {"status": "removed", "error_code": "", "error_detail": ""})]
    if session.status not in RESTING:
        return []
    found = ("status", "error_code", "error_detail")
    return [SessionEvent(REST, {name: getattr(session, name) for name in found})]


class EventFeed:
    """What one reader has received, up to the id that it can resume after. Pure."""

    def __init__(self, after_seq: int = 0) -> None:
        self.after_seq = after_seq
        self._open: dict[int, dict[str, Any]] = {}
        self._status = ""
        self._rest: dict[str, Any] = {}

    def news(self, found: Iterable[SessionEvent], status: str) -> list[SessionEvent]:
        """Return the events that are new to the reader, and record them as sent."""
        new = [piece for event in found if (piece := self._told(event)) is not None]
        known, self._status = self._status, status
        if status == known or status in RESTING or self._rest:
            return new
        return [SessionEvent(STATE, {"status": status}), *new]

    def _told(self, event: SessionEvent) -> SessionEvent | None:
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
        return event if before is None else _build_delta(before, event)


def _list_changed_fields(before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    return {name for name in {*before, *now} if before.get(name) != now.get(name)}


def _is_older(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Tell whether a step's data is outdated: texts only grow, so a shorter one is older."""
    old, new = (str(one.get("text", "")) for one in (before, now))
    return _list_changed_fields(before, now) <= {"text"} and old.startswith(new)


def _build_delta(before: Mapping[str, Any], event: SessionEvent) -> SessionEvent:
    """Return the change of an unsettled step as a text or progress event, else the whole event."""
    now, changed = event.data, _list_changed_fields(before, event.data)
    if changed == {PROGRESS} and now.get(PROGRESS):
        return SessionEvent(PROGRESS, {"seq": now["seq"], **now[PROGRESS]})
    old, new = (str(one.get("text", "")) for one in (before, now))
    if changed == {"text"} and new.startswith(old):
        return SessionEvent(TEXT, {"seq": now["seq"], "at": len(old), "text": new[len(old) :]})
    return event


logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
SURE_EVERY_S = 2.0
# Seconds after which a subscriber without events gets an empty batch.
IDLE_S = 1.0
# A subscriber with more pending events is disconnected, and can resume after its last id.
MOST_PENDING = 5_000


class SessionSubscriber:
    """A subscriber: what it has received, and the events that are pending."""

    def __init__(self, after_seq: int) -> None:
        self.told = EventFeed(after_seq)
        self.pending: list[SessionEvent] = []
        self.wake = asyncio.Event()

    def take(self) -> list[SessionEvent]:
        """Return the pending events and clear them."""
        taken, self.pending = self.pending, []
        self.wake.clear()
        return taken


class WatchedSession:
    """A watched session: the result of the last poll, and when the next one is due."""

    def __init__(self, session_id: UUID, soon: asyncio.Event) -> None:
        """Watch a session; `wake_watcher` is set when the next poll is due earlier."""
        self.session_id = session_id
        self._soon = soon
        self.readers: set[SessionSubscriber] = set()
        self.due = self._looked_at = 0.0
        self.rung = False
        self._session: Session | None = None
        self._seen_at: datetime | None = None
        self._read_after: int | None = None
        self._steps: list[Step] = []
        self._shown: dict[int, dict[str, Any]] = {}

    def ring(self) -> None:
        """Note that the session may have changed."""
        self.rung = True
        self.due = max(monotonic(), self._looked_at + LOOK_EVERY_S)
        self._soon.set()

    def looked(self, next_s: float) -> None:
        """Schedule the next poll in `delay_s`, or sooner if the session was marked as changed."""
        self._looked_at = monotonic()
        self.due = self._looked_at + (LOOK_EVERY_S if self.due < inf else next_s)

    def needs_steps(self, session: Session | None) -> int | None:
        """Set the session's row; return the `seq` to load steps after, None if none are needed."""
        self._session = session
        after = min((reader.told.after_seq for reader in self.readers), default=0)
        wanted = self._read_after is None or after < self._read_after
        changed = session is not None and session.updated_at != self._seen_at
        return after if changed or wanted else None

    def read(self, after: int, steps: list[Step]) -> None:
        """Set the steps after `after`, loaded after the session's row."""
        self._read_after, self._steps = after, steps
        self._seen_at = self._session.updated_at if self._session else None

    async def look_at_shown(self) -> None:
        """Fetch the partial output of unsettled steps."""
        self.rung = False
        unsettled = any(step.state == Step.State.INTENT for step in self._steps)
        self._shown = await fetch_partial_outputs(self.session_id) if unsettled else {}

    def tell(self) -> None:
        """Queue new events for each subscriber that the loaded steps cover."""
        if self._read_after is None:
            return
        found = [*build_events(self._steps, self._shown), *build_rest_events(self._session)]
        status = self._session.status if self._session else ""
        for reader in self.readers:
            if reader.told.after_seq >= self._read_after:
                reader.pending += reader.told.news(found, status)
            if reader.pending:
                reader.wake.set()


class SessionWatcher:
    """The watched sessions of a process, and the one task that polls them."""

    def __init__(self) -> None:
        self._watches: dict[UUID, WatchedSession] = {}
        self._soon = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def follow(self, session_id: UUID, after_seq: int) -> AsyncGenerator[list[SessionEvent]]:
        """Yield batches of events, empty ones after `KEEPALIVE_S`, until the session rests."""
        reader = SessionSubscriber(after_seq)
        watch = self._begin(session_id, reader)
        try:
            await get_bus().listen(build_bus_topic(session_id), watch.ring)
            while True:
                await _wait_for_event(reader.wake, IDLE_S)
                if len(reader.pending) > MOST_PENDING:
                    return
                yield (new := reader.take())
                if new and new[-1].kind == REST:
                    return
        finally:
            self._end(watch, reader)

    def _begin(self, session_id: UUID, reader: SessionSubscriber) -> WatchedSession:
        watch = self._watches.get(session_id)
        if watch is None:
            watch = self._watches[session_id] = WatchedSession(session_id, self._soon)
        watch.readers.add(reader)
        watch.due = 0.0
        self._soon.set()
        if self._looking is None or self._looking.done():
            self._looking = get_runtime().begin(self._look_out(), name="lookout")
        return watch

    def _end(self, watch: WatchedSession, reader: SessionSubscriber) -> None:
        watch.readers.discard(reader)
        if not watch.readers:
            self._watches.pop(watch.session_id, None)
            get_bus().leave(build_bus_topic(watch.session_id), watch.ring)

    async def _look_out(self) -> None:
        while self._watches:
            self._soon.clear()
            now = monotonic()
            if due := [watch for watch in self._watches.values() if watch.due <= now]:
                await self._look(due)
            for watch in [one for one in self._watches.values() if one.rung]:
                await watch.look_at_shown()
                watch.tell()
            nearest = min((watch.due for watch in self._watches.values()), default=0.0)
            await _wait_for_event(self._soon, nearest - monotonic())

    async def _look(self, due: list[WatchedSession]) -> None:
        """Poll sessions; if the database is unavailable, try again later."""
        for watch in due:
            watch.due = inf  # a signal meanwhile brings the next poll forward
        try:
            found = await get_runtime().orm(_load_sessions, [watch.session_id for watch in due])
            for watch in due:
                after = watch.needs_steps(found.get(watch.session_id))
                if after is not None:
                    watch.read(after, await get_runtime().orm(_load_steps, watch.session_id, after))
                    await watch.look_at_shown()
                watch.tell()
        except DatabaseFault as fault:
            logger.warning("sessions could not be looked at: %s", fault)
        for watch in due:
            watch.looked(SURE_EVERY_S if get_bus().hears else LOOK_EVERY_S)


def watch_session(session_id: UUID, after_seq: int = 0) -> AsyncGenerator[list[SessionEvent]]:
    """Yield batches of a session's events (maybe empty) until it rests; close it when done."""
    return get_session_watcher().follow(session_id, after_seq)


def _load_sessions(ids: list[UUID]) -> dict[UUID, Session]:
    return Session.objects.in_bulk(ids)


def _load_steps(session_id: UUID, after_seq: int) -> list[Step]:
    return list(Step.objects.filter(session_id=session_id, seq__gt=after_seq).order_by("seq"))


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    if seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


_lock = threading.Lock()
_by_runtime: WeakKeyDictionary[Runtime, SessionWatcher] = WeakKeyDictionary()


def get_session_watcher() -> SessionWatcher:
    """Return the session watcher of this process's runtime."""
    with _lock:
        return _by_runtime.setdefault(get_runtime(), SessionWatcher())
