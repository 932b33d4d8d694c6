"""This process as a runner: it beats, takes sessions onto the loop, and lets go in order."""

import asyncio
import logging
import threading
from dataclasses import replace
from functools import partial
from time import monotonic
from uuid import UUID
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import Error as DatabaseFault

from agents.llm import port
from agents.sessions import loop, rows, runners
from agents.sessions.runners import Hold, Presence
from bonobot.lib.logs import bound
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import CLOSE_S, Runtime, runtime

logger = logging.getLogger(__name__)

# Cancel wishes are looked for this often: one query for all sessions of the process.
WATCH_S = 1.0
# A loop that didn't tick for this long is stuck, and must not keep its leases.
STUCK_S = 5.0


class SessionRunner:
    """Runs sessions on the process's loop under one heartbeat row."""

    def __init__(self) -> None:
        self.runner_id: UUID | None = None
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._present: dict[UUID, Presence] = {}
        self._cancelled: set[UUID] = set()
        self._draining = False
        self._watch: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Register this process and start its heartbeat; again is harmless.

        A row that is gone (a restored database) is made anew: what was held under it is lost.
        """
        now = monotonic()
        if self.runner_id is not None and await runtime().orm(runners.beat, self.runner_id):
            for present in self._present.values():
                present.beaten(now)
            return
        self.runner_id = await runtime().orm(runners.register)
        if self._watch is None:
            self._watch = asyncio.create_task(self._beat(), name="runner heartbeat")
            runtime().on_close(port.close)
            runtime().on_close(partial(self.drain, CLOSE_S / 2))

    async def take(self, session_id: UUID) -> asyncio.Task[None] | None:
        """Claim a session and run it; None when there is nothing for us to do."""
        if self._draining:
            return None
        await self.begin()
        if session_id in self._tasks or self.runner_id is None:
            return None
        hold = await runtime().orm(runners.claim, session_id, self.runner_id)
        if hold is None or session_id in self._tasks:
            return None
        present = self._present[session_id] = Presence()
        hold = replace(hold, presence=present)
        task = asyncio.create_task(self._run(hold), name=f"session {session_id}")
        self._tasks[session_id] = task
        return task

    async def _run(self, hold: Hold) -> None:
        again = False
        try:
            await self._outcome(hold)
            again = True
        except asyncio.CancelledError:
            if hold.session_id in self._cancelled:
                await loop.cancel(hold)
            else:
                await runtime().orm(runners.hand_back, hold)
        finally:
            self._tasks.pop(hold.session_id, None)
            self._present.pop(hold.session_id, None)
            self._cancelled.discard(hold.session_id)
        if again:
            # A message that came while the run ended queued the session again.
            await self.take(hold.session_id)

    async def _outcome(self, hold: Hold) -> None:
        """Run a session; a fault of ours ends it with a code instead of leaving it hanging."""
        try:
            with bound(session=str(hold.session_id)):
                await loop.run(hold)
        except Exception:
            # This is where a task of the worker ends up: nobody above could tell the person.
            logger.exception("session %s ended by a fault", hold.session_id)
            fault = Problem(
                "Something went wrong in Bonobot itself; the log says more.",
                code="internal_error",
                remedy="Send the message again; if it stays so, tell the administrator.",
            )
            await loop.fail(hold, fault)

    async def _beat(self) -> None:
        last = 0.0
        # Until the very end: while calls come back, nobody else may take their sessions.
        while True:
            try:
                if monotonic() - last >= runners.BEAT_S and self._ticks():
                    await self.begin()
                    await self._let_go_of_orphans()
                    last = monotonic()
                if self._tasks:
                    await self._fulfil_cancels()
            except DatabaseFault as fault:
                # A database that is away comes back; until then the lease runs out, as it should.
                logger.warning("the runner's heartbeat could not be written: %s", fault)
            await asyncio.sleep(WATCH_S)

    def _ticks(self) -> bool:
        return monotonic() - runtime().ticked_at < STUCK_S

    async def _let_go_of_orphans(self) -> None:
        """Queue sessions again that are ours by their rows, but that no task here runs."""
        if self.runner_id is not None:
            running = set(self._tasks)
            for session_id in await runtime().orm(runners.orphans, self.runner_id, running):
                logger.warning("session %s was held by nobody and is queued again", session_id)

    async def _fulfil_cancels(self) -> None:
        if self.runner_id is None:
            return
        for session_id in await runtime().orm(rows.cancelled, self.runner_id):
            if task := self._tasks.get(session_id):
                self._cancelled.add(session_id)
                task.cancel()

    async def drain(self, within_s: float | None = None) -> None:
        """Stop taking sessions, hand back those that run, and retire.

        Model requests are cut off: asking again costs tokens and nothing else. Calls that are out
        get `within_s` (default: `BONOBOT_DRAIN_S`) to come back, for nobody else could tell what
        they did.
        """
        within_s = settings.BONOBOT_DRAIN_S if within_s is None else within_s
        self._draining = True
        for session_id, task in self._tasks.items():
            self._present[session_id].leaving = True
            if not self._present[session_id].is_calling:
                task.cancel()
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._watch is not None:
            self._watch.cancel()
        if self.runner_id is not None:
            await runtime().orm(runners.retire, self.runner_id)
            self.runner_id = None


_lock = threading.Lock()
_by_runtime: WeakKeyDictionary[Runtime, SessionRunner] = WeakKeyDictionary()


def session_runner() -> SessionRunner:
    """Return the runner of this process's runtime: one that was closed takes nothing any more."""
    with _lock:
        return _by_runtime.setdefault(runtime(), SessionRunner())
