"""Session steps as resumable events, and the watcher that polls for them.

Steps change until they are settled, and parallel calls settle in any order. So an event has an id
(the step's number) only once its step and all earlier ones are settled: a reader that resumes after
the last id misses nothing. Until then each change of a step is sent without an id, and replaces the
previous event of the same `seq`. In between come deltas: `text` and `thinking` added by a model,
`progress` of a call. `state` reports the session's status; the last event is `rest`.

One poll takes one query for the sessions that are due, and one more for each that has changed.
Signals over the message bus make a session due at once, as far as its `PollAllowance` permits: a
few polls in quick succession, and `MAX_POLLS_PER_S` in the long run, however many watch it. A
signal may be lost, so it is also polled every `FALLBACK_POLL_INTERVAL_S` or, while the bus isn't
connected, every `POLL_INTERVAL_S`. With Redis, partial output comes from the bus, without a query.
All of this runs on the runtime's event loop.
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
from agents.sessions.partial_output import TEXT_FIELDS, fetch_partial_outputs
from agents.wakeups import build_session_topic
from bonobot.core.message_bus import get_bus
from bonobot.core.runtime import Runtime, get_runtime

RESTING_STATUSES = frozenset(
    {Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED, Session.Status.WAITING}
)
REST = "rest"
STATE = "state"
TEXT = "text"
THINKING = "thinking"
PROGRESS = "progress"
# The payload fields that readers see, by kind of step.
_SHOWN_FIELDS: dict[str, tuple[str, ...]] = {
    Step.Kind.MESSAGE: ("text", "by", "replaces", "images", "files", "output_schema"),
    Step.Kind.MODEL: (
        "text",
        "thinking",
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
    Step.Kind.END: ("answer", "output", "code", "detail", "remedy", "field", "rule"),
}
logger = logging.getLogger(__name__)
# How often to poll a session without signals: without a bus, and with one.
POLL_INTERVAL_S = 0.5
FALLBACK_POLL_INTERVAL_S = 2.0
# How often signals cause polls of a session: in the long run, and in quick succession.
MAX_POLLS_PER_S = 4.0
MAX_POLLS_AT_ONCE = 6
# Seconds after which a subscriber without events gets an empty batch.
KEEPALIVE_S = 1.0
# A subscriber with more pending events is disconnected, and can resume after its last id.
MAX_PENDING_EVENTS = 5_000
_lock = threading.Lock()


@dataclass(frozen=True)
class SessionEvent:
    """One event; `kind` is a step's kind, `rest`, `state`, `text`, `thinking` or `progress`.

    `id` is set once a reader can resume after the event.
    """

    kind: str
    data: dict[str, Any]
    id: int | None = None


def build_step_data(step: Step) -> dict[str, Any]:
    """Return a step as every surface shows it."""
    shown_fields = {
        name: step.payload[name] for name in _SHOWN_FIELDS[step.kind] if name in step.payload
    }
    return {
        "seq": step.seq,
        "kind": step.kind,
        "state": step.state,
        "turn": step.turn,
        "index": step.index,
        "call_id": str(step.call_id) if step.call_id else None,
        "started_at": step.started_at.isoformat(),
        "finished_at": step.finished_at.isoformat() if step.finished_at else None,
        **shown_fields,
    }


def build_events(
    steps: Iterable[Step], partial_outputs: Mapping[int, Mapping[str, Any]] | None = None
) -> Iterator[SessionEvent]:
    """Yield steps as events; `partial_outputs` holds data of unsettled steps, by `seq`."""
    settled = True
    for step in steps:
        is_open = step.state == Step.State.INTENT
        settled = settled and not is_open
        data = build_step_data(step)
        if is_open and partial_outputs:
            data |= partial_outputs.get(step.seq, {})
        yield SessionEvent(step.kind, data, step.seq if settled else None)


def build_rest_events(session: Session | None) -> list[SessionEvent]:
    """Return the `rest` event of a session; empty if it doesn't rest."""
    if session is None:
        return [SessionEvent(REST, {"status": "removed", "error_code": "", "error_detail": ""})]
    if session.status not in RESTING_STATUSES:
        return []
    names = ("status", "error_code", "error_detail")
    return [SessionEvent(REST, {name: getattr(session, name) for name in names})]


class EventFeed:
    """What one reader has received, up to the id that it can resume after. Pure."""

    def __init__(self, after_seq: int = 0) -> None:
        self.after_seq = after_seq
        self._unsettled: dict[int, dict[str, Any]] = {}
        self._status = ""
        self._last_rest: dict[str, Any] = {}

    def list_new_events(self, events: Iterable[SessionEvent], status: str) -> list[SessionEvent]:
        """Return the events that are new to the reader, and record them as sent."""
        new_events = [
            new_event for event in events if (new_event := self._filter_event(event)) is not None
        ]
        previous_status, self._status = self._status, status
        if status == previous_status or status in RESTING_STATUSES or self._last_rest:
            return new_events
        return [SessionEvent(STATE, {"status": status}), *new_events]

    def _filter_event(self, event: SessionEvent) -> SessionEvent | None:
        if event.kind == REST:
            is_known, self._last_rest = self._last_rest == event.data, event.data
            return None if is_known else event
        seq = event.data["seq"]
        if seq <= self.after_seq:
            return None
        previous_data = self._unsettled.get(seq)
        if event.id is not None:
            self.after_seq = event.id
            self._unsettled.pop(seq, None)
            return event
        if previous_data is not None and _is_older(event.data, previous_data):
            return None
        self._unsettled[seq] = event.data
        return event if previous_data is None else _build_delta(previous_data, event)


def _list_changed_fields(previous: Mapping[str, Any], current: Mapping[str, Any]) -> set[str]:
    return {name for name in {*previous, *current} if previous.get(name) != current.get(name)}


def _is_older(current: Mapping[str, Any], previous: Mapping[str, Any]) -> bool:
    """Tell whether a step's data is outdated: texts only grow, so a shorter one is older."""
    changed_fields = _list_changed_fields(previous, current)
    return changed_fields <= {*TEXT_FIELDS} and all(
        str(previous.get(name, "")).startswith(str(current.get(name, "")))
        for name in changed_fields
    )


def _build_delta(previous: Mapping[str, Any], event: SessionEvent) -> SessionEvent:
    """Return the change of an unsettled step as a delta, else the whole event."""
    current, changed_fields = event.data, _list_changed_fields(previous, event.data)
    if changed_fields == {PROGRESS} and current.get(PROGRESS):
        return SessionEvent(PROGRESS, {"seq": current["seq"], **current[PROGRESS]})
    for name in TEXT_FIELDS:
        old_text, new_text = (str(data.get(name, "")) for data in (previous, current))
        if changed_fields == {name} and new_text.startswith(old_text):
            added_text = new_text[len(old_text) :]
            return SessionEvent(
                name, {"seq": current["seq"], "at": len(old_text), "text": added_text}
            )
    return event


class SessionSubscriber:
    """A subscriber: what it has received, and the events that are pending."""

    def __init__(self, after_seq: int) -> None:
        self.feed = EventFeed(after_seq)
        self.pending: list[SessionEvent] = []
        self.wake = asyncio.Event()

    def take_pending(self) -> list[SessionEvent]:
        """Return the pending events and clear them."""
        events, self.pending = self.pending, []
        self.wake.clear()
        return events


class PollAllowance:
    """How often signals may cause polls: `MAX_POLLS_AT_ONCE`, refilled over time. Pure."""

    def __init__(self) -> None:
        self._full_at = 0.0

    def find_next_time(self, now: float) -> float:
        """Return when the next poll is permitted: now, or later if there were many."""
        return max(now, self._full_at - (MAX_POLLS_AT_ONCE - 1) / MAX_POLLS_PER_S)

    def record_poll(self, now: float) -> None:
        """Count a poll, permitted or not."""
        full_at = max(now, self._full_at) + 1 / MAX_POLLS_PER_S
        self._full_at = min(full_at, now + MAX_POLLS_AT_ONCE / MAX_POLLS_PER_S)


class WatchedSession:
    """A watched session: the result of the last poll, and when the next one is due."""

    def __init__(self, session_id: UUID, wake_watcher: asyncio.Event) -> None:
        """Watch a session; `wake_watcher` is set when the next poll is due earlier."""
        self.session_id = session_id
        self._wake_watcher = wake_watcher
        self.subscribers: set[SessionSubscriber] = set()
        self.due_at = 0.0
        self.allowance = PollAllowance()
        self.has_signal = False
        self._session: Session | None = None
        self._known_updated_at: datetime | None = None
        self._loaded_after: int | None = None
        self._steps: list[Step] = []
        self._partial_outputs: dict[int, dict[str, Any]] = {}

    def mark_changed(self) -> None:
        """Note that the session may have changed."""
        self.has_signal = True
        self.due_at = min(self.due_at, self.allowance.find_next_time(monotonic()))
        self._wake_watcher.set()

    def schedule_next_poll(self, delay_s: float) -> None:
        """Schedule the next poll in `delay_s`, or sooner if the session was marked as changed."""
        if self.due_at == inf:
            self.due_at = monotonic() + delay_s

    def find_missing_steps_start(self, session: Session | None) -> int | None:
        """Set the session's row; return the `seq` to load steps after, None if none are needed."""
        self._session = session
        after = min((subscriber.feed.after_seq for subscriber in self.subscribers), default=0)
        is_needed = self._loaded_after is None or after < self._loaded_after
        is_changed = session is not None and session.updated_at != self._known_updated_at
        return after if is_changed or is_needed else None

    def set_steps(self, after: int, steps: list[Step]) -> None:
        """Set the steps after `after`, loaded after the session's row."""
        self._loaded_after, self._steps = after, steps
        self._known_updated_at = self._session.updated_at if self._session else None

    async def refresh_partial_outputs(self) -> None:
        """Fetch the partial output of unsettled steps."""
        self.has_signal = False
        has_unsettled_steps = any(step.state == Step.State.INTENT for step in self._steps)
        self._partial_outputs = (
            await fetch_partial_outputs(self.session_id) if has_unsettled_steps else {}
        )

    def dispatch_events(self) -> None:
        """Queue new events for each subscriber that the loaded steps cover."""
        if self._loaded_after is None:
            return
        events = [
            *build_events(self._steps, self._partial_outputs),
            *build_rest_events(self._session),
        ]
        status = self._session.status if self._session else ""
        for subscriber in self.subscribers:
            if subscriber.feed.after_seq >= self._loaded_after:
                subscriber.pending += subscriber.feed.list_new_events(events, status)
            if subscriber.pending:
                subscriber.wake.set()


class SessionWatcher:
    """The watched sessions of a process, and the one task that polls them."""

    def __init__(self) -> None:
        self._watches: dict[UUID, WatchedSession] = {}
        self._wake_event = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None

    async def watch_session(
        self, session_id: UUID, after_seq: int
    ) -> AsyncGenerator[list[SessionEvent]]:
        """Yield batches of events, empty ones after `KEEPALIVE_S`, until the session rests."""
        subscriber = SessionSubscriber(after_seq)
        watch = self._add_subscriber(session_id, subscriber)
        try:
            await get_bus().add_listener(build_session_topic(session_id), watch.mark_changed)
            while True:
                await _wait_for_event(subscriber.wake, KEEPALIVE_S)
                if len(subscriber.pending) > MAX_PENDING_EVENTS:
                    return
                yield (events := subscriber.take_pending())
                if events and events[-1].kind == REST:
                    return
        finally:
            self._remove_subscriber(watch, subscriber)

    def _add_subscriber(self, session_id: UUID, subscriber: SessionSubscriber) -> WatchedSession:
        watch = self._watches.get(session_id)
        if watch is None:
            watch = self._watches[session_id] = WatchedSession(session_id, self._wake_event)
        watch.subscribers.add(subscriber)
        watch.due_at = 0.0
        self._wake_event.set()
        if self._polling is None or self._polling.done():
            self._polling = get_runtime().create_task(self._run_polls(), name="lookout")
        return watch

    def _remove_subscriber(self, watch: WatchedSession, subscriber: SessionSubscriber) -> None:
        watch.subscribers.discard(subscriber)
        if not watch.subscribers:
            self._watches.pop(watch.session_id, None)
            get_bus().remove_listener(build_session_topic(watch.session_id), watch.mark_changed)

    async def _run_polls(self) -> None:
        while self._watches:
            self._wake_event.clear()
            now = monotonic()
            if due_watches := [watch for watch in self._watches.values() if watch.due_at <= now]:
                await self._poll_sessions(due_watches)
            for watch in [
                candidate for candidate in self._watches.values() if candidate.has_signal
            ]:
                await watch.refresh_partial_outputs()
                watch.dispatch_events()
            next_due_at = min((watch.due_at for watch in self._watches.values()), default=0.0)
            await _wait_for_event(self._wake_event, next_due_at - monotonic())

    async def _poll_sessions(self, due_watches: list[WatchedSession]) -> None:
        """Poll sessions; if the database is unavailable, try again later."""
        for watch in due_watches:
            watch.due_at = inf  # a signal meanwhile brings the next poll forward
            watch.allowance.record_poll(monotonic())
        try:
            sessions = await get_runtime().run_orm(
                _load_sessions, [watch.session_id for watch in due_watches]
            )
            for watch in due_watches:
                after = watch.find_missing_steps_start(sessions.get(watch.session_id))
                if after is not None:
                    watch.set_steps(
                        after, await get_runtime().run_orm(_load_steps, watch.session_id, after)
                    )
                    await watch.refresh_partial_outputs()
                watch.dispatch_events()
        except DatabaseFault as error:
            logger.warning("sessions could not be looked at: %s", error)
        for watch in due_watches:
            watch.schedule_next_poll(
                FALLBACK_POLL_INTERVAL_S if get_bus().is_subscribed else POLL_INTERVAL_S
            )


def watch_session(session_id: UUID, after_seq: int = 0) -> AsyncGenerator[list[SessionEvent]]:
    """Yield batches of a session's events (maybe empty) until it rests; close it when done."""
    return get_session_watcher().watch_session(session_id, after_seq)


def _load_sessions(ids: list[UUID]) -> dict[UUID, Session]:
    return Session.objects.in_bulk(ids)


def _load_steps(session_id: UUID, after_seq: int) -> list[Step]:
    return list(Step.objects.filter(session_id=session_id, seq__gt=after_seq).order_by("seq"))


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    if seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


_by_runtime: WeakKeyDictionary[Runtime, SessionWatcher] = WeakKeyDictionary()


def get_session_watcher() -> SessionWatcher:
    """Return the session watcher of this process's runtime."""
    with _lock:
        return _by_runtime.setdefault(get_runtime(), SessionWatcher())
