"""Run sessions in this process."""

import asyncio
import logging
import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from time import monotonic
from uuid import UUID
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import IntegrityError

from agents.llm import interface as llm_interface
from agents.sessions import dead_runners, leases, loop, step_store
from agents.sessions.leases import LeaseState, SessionLease
from agents.wakeups import CANCEL_TOPIC, register_local_runner
from bonobot.core.db.transactions import (
    UNAVAILABLE_ERRORS,
    get_transaction_batcher,
    run_orm_with_retry,
)
from bonobot.core.message_bus import get_bus
from bonobot.core.problems import InternalError
from bonobot.core.runtime import CLOSE_TIMEOUT_S, Runtime, get_runtime
from bonobot.core.telemetry import tracing
from bonobot.core.telemetry.logging import LogContext
from bonobot.ledger.admission import AuditUnavailable

logger = logging.getLogger(__name__)

# Interval of polling for cancellation requests (one query for all sessions of the process), and of
# checking whether other workers' processes have ended (no query).
CANCEL_POLL_INTERVAL_S = 1.0
# A queued session that no worker took within this time is announced again when a worker starts or
# dies: the message may have been lost with the worker that received it.
MIN_QUEUED_TIME = timedelta(seconds=1)
# Sessions that a starting worker claims at once.
MAX_TAKEN_OVER = 50
# An event loop that didn't tick for this long is stuck, and must not keep its leases.
LOOP_STUCK_S = 5.0
_lock = threading.Lock()


class SessionRunner:
    """Runs sessions on the process's event loop with one runner row."""

    def __init__(self) -> None:
        self.runner_id: UUID | None = None
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._lease_states: dict[UUID, LeaseState] = {}
        self._cancelled_ids: set[UUID] = set()
        self._is_draining = False
        self._renewed_at = 0.0
        self._heartbeat: asyncio.Task[None] | None = None
        self._drain_task: asyncio.Task[None] | None = None
        self._start_lock = asyncio.Lock()
        self._other_runners: list[dead_runners.OtherRunner] = []
        # Until then, missing heartbeats of other workers prove nothing: see `release_dead_runners`.
        self._distrusts_heartbeats_until = 0.0

    async def start(self) -> None:
        """Register this process and start its heartbeat; may be called repeatedly.

        If the runner's row is gone (a restored database), create a new one; old leases are lost.
        """
        # Two starts at once would register two runners, and only the last one gets heartbeats.
        async with self._start_lock:
            await self._register_or_renew()

    async def _register_or_renew(self) -> None:
        now = self._renewed_at = monotonic()
        if self.runner_id is not None and await get_runtime().run_orm(
            leases.renew_runner_leases, self.runner_id
        ):
            for lease_state in self._lease_states.values():
                lease_state.mark_renewed(now)
            return
        self.runner_id = await get_runtime().run_orm(leases.register_runner)
        if self._heartbeat is None:
            self._heartbeat = asyncio.create_task(self._run_heartbeat(), name="runner heartbeat")
            register_local_runner(self.claim_and_run)
            await get_bus().add_listener(CANCEL_TOPIC, self._handle_cancel_signal)
            get_runtime().on_close(llm_interface.close_models)
            get_runtime().on_close(partial(self.drain, CLOSE_TIMEOUT_S / 2))

    async def claim_and_run(self, session_id: UUID) -> asyncio.Task[None] | None:
        """Claim a session and run it in a task; None if it can't be claimed."""
        if self._is_draining:
            return None
        if self.runner_id is None or monotonic() - self._renewed_at >= leases.HEARTBEAT_INTERVAL_S:
            await self.start()
        if session_id in self._tasks:
            # The wake-up may be for a message that arrived while the run ended, or a cancellation.
            if (lease_state := self._lease_states.get(session_id)) is not None:
                lease_state.may_be_queued = True
            await self._cancel_requested_sessions()
            return None
        if self._is_draining or self.runner_id is None:
            return None
        lease = await self._claim_session(session_id)
        if lease is None:
            return None
        # An earlier run that queued the session again may still be closing its connections.
        while (ending_task := self._tasks.get(session_id)) is not None:
            await asyncio.wait({ending_task})
        if self._is_draining:  # stopped during the claim
            await get_runtime().run_orm(leases.release_session, lease)
            return None
        lease_state = self._lease_states[session_id] = LeaseState(self._renewed_at)
        lease = replace(lease, state=lease_state)
        task = asyncio.create_task(self._supervise_session(lease), name=f"session {session_id}")
        self._tasks[session_id] = task
        return task

    async def _claim_session(self, session_id: UUID) -> SessionLease | None:
        for _ in range(2):
            if self.runner_id is None:
                break
            try:
                lease = await get_transaction_batcher().run(
                    leases.claim_session, session_id, self.runner_id
                )
            except IntegrityError:
                # This runner's row was deleted since the last heartbeat (a restored database).
                await self.start()
                continue
            if lease is not None:
                return lease
            holders = await get_runtime().run_orm(
                dead_runners.list_other_runners, self.runner_id, session_id
            )
            released_ids = await self._release_if_dead(holders)
            # Another process may have released it since the claim.
            if holders and not released_ids and not any(holder.has_ended for holder in holders):
                break
        return None

    async def _supervise_session(self, lease: SessionLease) -> None:
        must_retry = False
        try:
            await self._run_session(lease)
            must_retry = lease.state.may_be_queued
        except asyncio.CancelledError:
            if lease.session_id in self._cancelled_ids:
                await loop.cancel_run(lease)
            else:
                await get_runtime().run_orm(leases.release_session, lease)
        finally:
            self._tasks.pop(lease.session_id, None)
            self._lease_states.pop(lease.session_id, None)
            self._cancelled_ids.discard(lease.session_id)
        if must_retry:
            # A message that arrived while the run ended queued the session again.
            await self.claim_and_run(lease.session_id)

    async def _run_session(self, lease: SessionLease) -> None:
        """Run a session; an unexpected exception fails it.

        If the database is unavailable, the session is released and continues later.
        """
        try:
            session_id = str(lease.session_id)
            with LogContext(session=session_id), _trace_session(session_id):
                await loop.run_session(lease)
        except step_store.SessionStopped:
            await loop.cancel_run(lease)
        except (*UNAVAILABLE_ERRORS, AuditUnavailable) as error:
            logger.warning("session %s stands still: %s", lease.session_id, error)
            await run_orm_with_retry(leases.release_session, lease)
        except Exception:
            # No caller handles exceptions of this task.
            logger.exception("session %s ended by a fault", lease.session_id)
            remedy = "Send the message again. If it fails again, contact the administrator."
            await loop.fail_run(lease, InternalError(remedy=remedy))

    async def _run_heartbeat(self) -> None:
        last_renewed_at = 0.0
        # Continue while draining, so that no other runner claims sessions with running calls.
        while True:
            try:
                is_due = monotonic() - last_renewed_at >= leases.HEARTBEAT_INTERVAL_S
                if is_due and self._is_loop_responsive():
                    self._check_heartbeat_delay(last_renewed_at)
                    await self.start()
                    await self._release_orphans()
                    await self.release_dead_runners()
                    last_renewed_at = monotonic()
                elif any(runner.has_ended for runner in self._other_runners):
                    await self.release_dead_runners()
                if self._tasks:
                    await self._cancel_requested_sessions()
            except DatabaseFault as error:
                # The database is unavailable; until it returns, the lease expires, as it should.
                logger.warning("the runner's heartbeat could not be written: %s", error)
                self._distrust_heartbeats()
            except Exception:
                # Without heartbeats this process would lose its sessions.
                logger.exception("the runner's heartbeat failed")
            await asyncio.sleep(CANCEL_POLL_INTERVAL_S)

    def _check_heartbeat_delay(self, last_renewed_at: float) -> None:
        """Distrust other workers' heartbeats if this one is late: the machine may have slept."""
        late_after_s = leases.LEASE_DURATION.total_seconds() / 2
        if last_renewed_at and monotonic() - last_renewed_at > late_after_s:
            self._distrust_heartbeats()

    def _distrust_heartbeats(self) -> None:
        lease_s = leases.LEASE_DURATION.total_seconds()
        self._distrusts_heartbeats_until = monotonic() + lease_s

    async def release_dead_runners(self) -> list[UUID]:
        """Release the sessions of workers that died, and announce them; return their ids.

        After a database outage or a pause of this process, workers without heartbeats get the
        duration of a lease to send one.
        """
        if self._is_draining:
            return []
        self._other_runners = await get_runtime().run_orm(
            dead_runners.list_other_runners, self.runner_id
        )
        session_ids = await self._release_if_dead(self._other_runners)
        if session_ids:
            await self.announce_sessions()
        return session_ids

    async def _release_if_dead(self, runners: list[dead_runners.OtherRunner]) -> list[UUID]:
        if not runners:
            return []
        return await get_runtime().run_orm(
            dead_runners.release_dead_runners,
            runners,
            trust_heartbeats=monotonic() >= self._distrusts_heartbeats_until,
        )

    async def take_over_sessions(self) -> None:
        """Run what earlier workers left, without waiting for messages; called when a worker starts.

        At most `MAX_TAKEN_OVER` sessions; the others are announced to all workers.
        """
        await self.start()
        released_ids = await self.release_dead_runners()
        unattended_ids = await get_runtime().run_orm(
            leases.list_unattended_sessions, MIN_QUEUED_TIME
        )
        for session_id in [*released_ids, *unattended_ids][:MAX_TAKEN_OVER]:
            await self.claim_and_run(session_id)

    async def announce_sessions(self) -> None:
        """Notify workers of queued sessions, whose earlier messages may have been lost."""
        await get_runtime().run_orm(leases.announce_unattended_sessions, MIN_QUEUED_TIME)

    def _is_loop_responsive(self) -> bool:
        return monotonic() - get_runtime().ticked_at < LOOP_STUCK_S

    async def _release_orphans(self) -> None:
        """Queue sessions again that this runner holds but no task runs."""
        if self.runner_id is not None:
            running_ids = set(self._tasks)
            for session_id in await get_runtime().run_orm(
                leases.release_orphaned_sessions, self.runner_id, running_ids
            ):
                logger.warning("session %s had no runner and was queued again", session_id)

    async def _cancel_requested_sessions(self) -> None:
        if self.runner_id is None:
            return
        for session_id in await get_runtime().run_orm(
            step_store.list_cancel_requests, self.runner_id
        ):
            task = self._tasks.get(session_id)
            # Cancel only once: a second cancel would interrupt the recording of the first.
            if (
                task is not None
                and session_id not in self._cancelled_ids
                and not self._lease_states[session_id].is_canceled
            ):
                self._cancelled_ids.add(session_id)
                self._lease_states[session_id].is_canceled = True
                task.cancel()

    def _handle_cancel_signal(self) -> None:
        if self._tasks:
            get_runtime().spawn(self._cancel_requested_sessions(), name="fulfil cancels")

    async def suspend_session(self, session_id: UUID) -> None:
        """Stop waiting in this process for a person who has to answer a session's server."""
        task = self._tasks.get(session_id)
        if task is not None:
            self._lease_states[session_id].stopping.set()
            await asyncio.wait({task})

    async def cancel_live_requests(self, session_id: UUID) -> bool:
        """Cancel what servers request on live connections of a session; False if it isn't run here.

        Servers are answered with `cancel` from now on, so that their calls end.
        """
        lease_state = self._lease_states.get(session_id)
        if lease_state is None:
            return False
        lease_state.cancels_live_requests = True
        return True

    @property
    def is_draining(self) -> bool:
        """Whether it stops and claims no more sessions."""
        return self._is_draining

    async def drain(self, timeout_s: float | None = None) -> None:
        """Stop claiming sessions, release the running ones, and unregister; later calls wait, too.

        Model requests are canceled, since repeating them only costs tokens, and calls no longer
        wait for child sessions. Other running calls get `timeout_s` (default: `BONOBOT_DRAIN_S`) to
        finish, because their results would be lost.
        """
        if self._drain_task is None:
            self._drain_task = asyncio.create_task(self._release_and_stop(timeout_s), name="drain")
        await asyncio.shield(self._drain_task)

    async def _release_and_stop(self, timeout_s: float | None) -> None:
        timeout_s = settings.BONOBOT_DRAIN_S if timeout_s is None else timeout_s
        self._is_draining = True
        for session_id, task in self._tasks.items():
            self._lease_states[session_id].stopping.set()
            if not self._lease_states[session_id].is_calling:
                task.cancel()
        tasks = list(self._tasks.values())
        if tasks:
            _, unfinished_tasks = await asyncio.wait(tasks, timeout=timeout_s)
            for task in unfinished_tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            get_bus().remove_listener(CANCEL_TOPIC, self._handle_cancel_signal)
        if self.runner_id is not None:
            await get_runtime().run_orm(leases.stop_runner, self.runner_id)
            self.runner_id = None


_by_runtime: WeakKeyDictionary[Runtime, SessionRunner] = WeakKeyDictionary()


def get_session_runner() -> SessionRunner:
    """Return the session runner of this process's runtime."""
    with _lock:
        return _by_runtime.setdefault(get_runtime(), SessionRunner())


def _trace_session(session_id: str) -> AbstractContextManager[object]:
    operation = "invoke_agent"
    return tracing.start_span(
        operation, gen_ai__operation__name=operation, gen_ai__conversation__id=session_id
    )
