"""Run sessions in this process."""

import asyncio
import logging
import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from time import monotonic
from uuid import UUID
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import IntegrityError

from agents.llm import interface as llm_interface
from agents.session_wakeups import CANCELS, register_local_runner
from agents.sessions import leases, loop, step_store
from agents.sessions.leases import LeaseState, SessionLease
from bonobot.core.db.transactions import AWAY, get_transaction_batcher, run_orm_with_retry
from bonobot.core.problems import InternalError
from bonobot.core.redis_bus import get_bus
from bonobot.core.runtime import CLOSE_S, Runtime, get_runtime
from bonobot.core.telemetry import tracing
from bonobot.core.telemetry.logging import LogContext
from bonobot.ledger.refusals import AuditUnavailable

logger = logging.getLogger(__name__)

# Interval of polling for cancellation requests: one query for all sessions of the process.
WATCH_S = 1.0
# An event loop that didn't tick for this long is stuck, and must not keep its leases.
STUCK_S = 5.0


class SessionRunner:
    """Runs sessions on the process's event loop with one runner row."""

    def __init__(self) -> None:
        self.runner_id: UUID | None = None
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._present: dict[UUID, LeaseState] = {}
        self._cancelled: set[UUID] = set()
        self._draining = False
        self._beaten_at = 0.0
        self._watch: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Register this process and start its heartbeat; may be called repeatedly.

        If the runner's row is gone (a restored database), create a new one; old leases are lost.
        """
        now = self._beaten_at = monotonic()
        if self.runner_id is not None and await get_runtime().orm(
            leases.renew_runner_leases, self.runner_id
        ):
            for present in self._present.values():
                present.beaten(now)
            return
        self.runner_id = await get_runtime().orm(leases.register)
        if self._watch is None:
            self._watch = asyncio.create_task(self._beat(), name="runner heartbeat")
            register_local_runner(self.take)
            await get_bus().listen(CANCELS, self._hear_of_cancels)
            get_runtime().on_close(llm_interface.close_models)
            get_runtime().on_close(partial(self.drain, CLOSE_S / 2))

    async def take(self, session_id: UUID) -> asyncio.Task[None] | None:
        """Claim a session and run it in a task; None if it can't be claimed."""
        if self._draining:
            return None
        if self.runner_id is None or monotonic() - self._beaten_at >= leases.BEAT_S:
            await self.begin()
        if session_id in self._tasks:
            await self._fulfil_cancels()  # the wake-up may be for a cancellation
            return None
        if self._draining or self.runner_id is None:
            return None
        hold = await self._claimed(session_id)
        if hold is None or session_id in self._tasks:
            return None
        if self._draining:  # stopped during the claim
            await get_runtime().orm(leases.release_session, hold)
            return None
        present = self._present[session_id] = LeaseState(self._beaten_at)
        hold = replace(hold, presence=present)
        task = asyncio.create_task(self._run(hold), name=f"session {session_id}")
        self._tasks[session_id] = task
        return task

    async def _claimed(self, session_id: UUID) -> SessionLease | None:
        for _ in range(2):
            if self.runner_id is None:
                break
            try:
                return await get_transaction_batcher().do(leases.claim, session_id, self.runner_id)
            except IntegrityError:
                # This runner's row was deleted since the last heartbeat (a restored database).
                await self.begin()
        return None

    async def _run(self, hold: SessionLease) -> None:
        again = False
        try:
            await self._outcome(hold)
            again = True
        except asyncio.CancelledError:
            if hold.session_id in self._cancelled:
                await loop.cancel(hold)
            else:
                await get_runtime().orm(leases.release_session, hold)
        finally:
            self._tasks.pop(hold.session_id, None)
            self._present.pop(hold.session_id, None)
            self._cancelled.discard(hold.session_id)
        if again:
            # A message that arrived while the run ended queued the session again.
            await self.take(hold.session_id)

    async def _outcome(self, hold: SessionLease) -> None:
        """Run a session; an unexpected exception fails it.

        If the database is unavailable, the session is released and continues later.
        """
        try:
            number = str(hold.session_id)
            with LogContext(session=number), _trace_session(number):
                await loop.run(hold)
        except (*AWAY, AuditUnavailable) as away:
            logger.warning("session %s stands still: %s", hold.session_id, away)
            await run_orm_with_retry(leases.release_session, hold)
        except Exception:
            # No caller handles exceptions of this task.
            logger.exception("session %s ended by a fault", hold.session_id)
            remedy = "Send the message again; if it stays so, tell the administrator."
            await loop.fail(hold, InternalError(remedy=remedy))

    async def _beat(self) -> None:
        last = 0.0
        # Continue while draining, so that no other runner claims sessions with running calls.
        while True:
            try:
                if monotonic() - last >= leases.BEAT_S and self._ticks():
                    await self.begin()
                    await self._let_go_of_orphans()
                    last = monotonic()
                if self._tasks:
                    await self._fulfil_cancels()
            except DatabaseFault as fault:
                # The database is unavailable; until it returns, the lease expires, as it should.
                logger.warning("the runner's heartbeat could not be written: %s", fault)
            await asyncio.sleep(WATCH_S)

    def _ticks(self) -> bool:
        return monotonic() - get_runtime().ticked_at < STUCK_S

    async def _let_go_of_orphans(self) -> None:
        """Queue sessions again that this runner holds but no task runs."""
        if self.runner_id is not None:
            running = set(self._tasks)
            for session_id in await get_runtime().orm(
                leases.release_orphaned_sessions, self.runner_id, running
            ):
                logger.warning("session %s was held by nobody and is queued again", session_id)

    async def _fulfil_cancels(self) -> None:
        if self.runner_id is None:
            return
        for session_id in await get_runtime().orm(step_store.list_cancel_requests, self.runner_id):
            task = self._tasks.get(session_id)
            # Cancel only once: a second cancel would interrupt the recording of the first.
            if task is not None and session_id not in self._cancelled:
                self._cancelled.add(session_id)
                task.cancel()

    def _hear_of_cancels(self) -> None:
        if self._tasks:
            get_runtime().spawn(self._fulfil_cancels(), name="fulfil cancels")

    async def drain(self, within_s: float | None = None) -> None:
        """Stop claiming sessions, release the running ones, and unregister.

        Model requests are canceled, since repeating them only costs tokens. Running calls get
        `timeout_s` (default: `BONOBOT_DRAIN_S`) to finish, because their results would be lost.
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
            get_bus().leave(CANCELS, self._hear_of_cancels)
        if self.runner_id is not None:
            await get_runtime().orm(leases.stop_runner, self.runner_id)
            self.runner_id = None


_lock = threading.Lock()
_by_runtime: WeakKeyDictionary[Runtime, SessionRunner] = WeakKeyDictionary()


def get_session_runner() -> SessionRunner:
    """Return the session runner of this process's runtime."""
    with _lock:
        return _by_runtime.setdefault(get_runtime(), SessionRunner())


def _trace_session(number: str) -> AbstractContextManager[object]:
    operation = "invoke_agent"
    return tracing.start_span(
        operation, gen_ai__operation__name=operation, gen_ai__conversation__id=number
    )
