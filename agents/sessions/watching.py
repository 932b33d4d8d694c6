"""Watching sessions: all who watch in one process share its looks at the rows.

A look at all sessions that are due is one query for how they stand, and one more for each that has
changed since. The bus says when one is due (Redis); a session is looked at every `LOOK_EVERY_S`
while the bus hears nothing, every `SURE_EVERY_S` while it does, for a wake-up may be lost. Looks at
one session are `LOOK_EVERY_S` apart at least, so it takes four queries a second at most, whatever
happens in it and however many watch it. What steps show for a moment comes from the bus, without a
query. All of this belongs to the runtime's loop.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import datetime
from math import inf
from time import monotonic
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import Error as DatabaseFault

from agents.models import Session, Step
from agents.sessions.events import REST, Event, Told, events_of, standing
from agents.sessions.live import shown_now
from agents.sessions.nudges import place
from bonobot.lib.bus import bus
from bonobot.lib.runtime import Runtime, runtime

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
SURE_EVERY_S = 2.0
# Who follows is given nothing after so long a silence, and can do something else.
IDLE_S = 1.0
# Who lets so many events lie is left behind, and comes again with the last id.
MOST_PENDING = 5_000


class Reader:
    """One who watches: what was told, and what lies ready."""

    def __init__(self, after_seq: int) -> None:
        self.told = Told(after_seq)
        self.pending: list[Event] = []
        self.wake = asyncio.Event()

    def take(self) -> list[Event]:
        """Return what lies ready."""
        taken, self.pending = self.pending, []
        self.wake.clear()
        return taken


class Watch:
    """One session that is watched: what the last look found, and when the next is due."""

    def __init__(self, session_id: UUID, soon: asyncio.Event) -> None:
        """Watch a session; `soon` is set when a look or a word is due earlier."""
        self.session_id = session_id
        self._soon = soon
        self.readers: set[Reader] = set()
        self.due = self._looked_at = 0.0
        self.rung = False
        self._session: Session | None = None
        self._seen_at: datetime | None = None
        self._read_after: int | None = None
        self._steps: list[Step] = []
        self._shown: dict[int, dict[str, Any]] = {}

    def ring(self) -> None:
        """Note that there may be something new."""
        self.rung = True
        self.due = max(monotonic(), self._looked_at + LOOK_EVERY_S)
        self._soon.set()

    def looked(self, next_s: float) -> None:
        """Note that a look has ended; the next is due in `next_s`, sooner where it rang."""
        self._looked_at = monotonic()
        self.due = self._looked_at + (LOOK_EVERY_S if self.due < inf else next_s)

    def needs_steps(self, session: Session | None) -> int | None:
        """Take how the session stands; return after which step to read, None for not at all."""
        self._session = session
        after = min((reader.told.after_seq for reader in self.readers), default=0)
        wanted = self._read_after is None or after < self._read_after
        changed = session is not None and session.updated_at != self._seen_at
        return after if changed or wanted else None

    def read(self, after: int, steps: list[Step]) -> None:
        """Take the steps behind `after`, read since the session was looked at."""
        self._read_after, self._steps = after, steps
        self._seen_at = self._session.updated_at if self._session else None

    async def look_at_shown(self) -> None:
        """Read what unsettled steps show beside their rows."""
        self.rung = False
        unsettled = any(step.state == Step.State.INTENT for step in self._steps)
        self._shown = await shown_now(self.session_id) if unsettled else {}

    def tell(self) -> None:
        """Lay ready what is new for each reader whom the last look reached back to."""
        if self._read_after is None:
            return
        found = [*events_of(self._steps, self._shown), *standing(self._session)]
        status = self._session.status if self._session else ""
        for reader in self.readers:
            if reader.told.after_seq >= self._read_after:
                reader.pending += reader.told.news(found, status)
            if reader.pending:
                reader.wake.set()


class Lookout:
    """All watches of a process, and the one task that looks."""

    def __init__(self) -> None:
        self._watches: dict[UUID, Watch] = {}
        self._soon = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def follow(self, session_id: UUID, after_seq: int) -> AsyncGenerator[list[Event]]:
        """Yield what is new, or nothing after `IDLE_S`, until the session rests."""
        reader = Reader(after_seq)
        watch = self._begin(session_id, reader)
        try:
            await bus().listen(place(session_id), watch.ring)
            while True:
                await _within(reader.wake, IDLE_S)
                if len(reader.pending) > MOST_PENDING:
                    return
                yield (new := reader.take())
                if new and new[-1].kind == REST:
                    return
        finally:
            self._end(watch, reader)

    def _begin(self, session_id: UUID, reader: Reader) -> Watch:
        watch = self._watches.get(session_id)
        if watch is None:
            watch = self._watches[session_id] = Watch(session_id, self._soon)
        watch.readers.add(reader)
        watch.due = 0.0
        self._soon.set()
        if self._looking is None or self._looking.done():
            self._looking = runtime().begin(self._look_out(), name="lookout")
        return watch

    def _end(self, watch: Watch, reader: Reader) -> None:
        watch.readers.discard(reader)
        if not watch.readers:
            self._watches.pop(watch.session_id, None)
            bus().leave(place(watch.session_id), watch.ring)

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
            await _within(self._soon, nearest - monotonic())

    async def _look(self, due: list[Watch]) -> None:
        """Look at sessions; a database that is away is looked at again later."""
        for watch in due:
            watch.due = inf  # a ring meanwhile brings the next look forward
        try:
            found = await runtime().orm(_sessions, [watch.session_id for watch in due])
            for watch in due:
                after = watch.needs_steps(found.get(watch.session_id))
                if after is not None:
                    watch.read(after, await runtime().orm(_steps, watch.session_id, after))
                    await watch.look_at_shown()
                watch.tell()
        except DatabaseFault as fault:
            logger.warning("sessions could not be looked at: %s", fault)
        for watch in due:
            watch.looked(SURE_EVERY_S if bus().hears else LOOK_EVERY_S)


def follow(session_id: UUID, after_seq: int = 0) -> AsyncGenerator[list[Event]]:
    """Yield what is new of a session (it may be nothing), until it rests; close it when done."""
    return lookout().follow(session_id, after_seq)


def _sessions(ids: list[UUID]) -> dict[UUID, Session]:
    return Session.objects.in_bulk(ids)


def _steps(session_id: UUID, after_seq: int) -> list[Step]:
    return list(Step.objects.filter(session_id=session_id, seq__gt=after_seq).order_by("seq"))


async def _within(event: asyncio.Event, seconds: float) -> None:
    if seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


_lock = threading.Lock()
_by_runtime: WeakKeyDictionary[Runtime, Lookout] = WeakKeyDictionary()


def lookout() -> Lookout:
    """Return the lookout of this process's runtime."""
    with _lock:
        return _by_runtime.setdefault(runtime(), Lookout())
