"""The ledger writer thread of a process.

It commits all waiting items in one durable transaction and wakes each caller once, so concurrent
calls share the cost of a commit. A refused item doesn't affect the others of its batch; a failed
batch is repeated item by item. While the database is unreachable, items are retried until their
deadline and then refused as `audit_unavailable`. A settlement is kept even after its caller gave
up, because its call has happened.
"""

import asyncio
import atexit
import logging
import os
import time
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import UTC, datetime
from math import inf
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import DatabaseError, InterfaceError, transaction

from bonobot.core.db.transactions import AWAY
from bonobot.core.telemetry import metrics
from bonobot.ledger.refusals import AuditUnavailable, CallAlreadyStarted, Refusal
from bonobot.ledger.types import Admission, AdmissionResult, Opening, Outcome, Settlement
from bonobot.ledger.writer.batch_plan import (
    Answer,
    CloseItem,
    Item,
    Key,
    OpenItem,
    RefusalWindow,
    RepeatedRefusals,
    build_refusal_key,
    close_item,
    count_item,
    open_item,
)
from bonobot.ledger.writer.committer import BatchCommitter
from bonobot.ledger.writer.queue import (
    GRACE_S,
    Answered,
    BatchSizeEstimate,
    LoopWaiters,
    QueuedItem,
    wake_callers,
)

__all__ = ["DEADLINE_S", "LedgerWriter", "Refusal", "close", "get_writer"]

logger = logging.getLogger(__name__)

DEADLINE_S = 5.0
RETRY_S = 0.05
MOST_IN_GROUP = 256
STOP_S = 10.0

# Errors that the content of one item can cause; any other is a bug and stops the writer.
POISON = (DatabaseError, ValueError, TypeError, ArithmeticError)


class LedgerWriter:
    """Admits and settles calls and records refusals; usable from any thread or event loop."""

    def __init__(self, *, deadline_s: float = DEADLINE_S) -> None:
        self.deadline_s = deadline_s
        self.pid = os.getpid()
        self._queue: SimpleQueue[QueuedItem | None] = SimpleQueue()
        self._gate = Lock()  # nothing is enqueued after the final check of the queue
        self._closed = False
        self._stop_by = inf
        self._committer = BatchCommitter()
        self._floods = RepeatedRefusals()
        self._in_hand: list[QueuedItem] = []
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWaiters] = (
            WeakKeyDictionary()
        )
        self._crowd = BatchSizeEstimate()
        self._troubled = False
        self._thread = Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    @property
    def usable(self) -> bool:
        """Whether it accepts items: not closed, and not inherited by a fork."""
        return not self._closed and self.pid == os.getpid()

    # -- for threads ------------------------------------------------------------------------------

    def admit(self, admission: Admission) -> Future[AdmissionResult]:
        """Open a call's row, charge rates and reserve budgets; the future may raise a `Refusal`."""
        return self._from_thread(self._admission(admission))

    def settle(self, settlement: Settlement) -> Future[bool]:
        """Close a call's row and settle its budgets; False if it isn't open."""
        return self._from_thread(self._settlement(settlement))

    def refuse(self, opening: Opening) -> Future[UUID]:
        """Record a refused call; equal ones within a minute return the id of the first."""
        return self._from_thread(self._refusal(opening))

    def note(self, opening: Opening, *, outcome: Outcome = "ok") -> Future[UUID]:
        """Record an event that has already ended."""
        return self._from_thread(self._event(opening, outcome))

    # -- for the loop -----------------------------------------------------------------------------

    async def admit_async(self, admission: Admission) -> AdmissionResult:
        """Admit a call; if the caller is canceled, its row is closed."""
        began = time.perf_counter()
        admitted: AdmissionResult = await self._from_loop(self._admission(admission))
        metrics.admission_seconds.observe(time.perf_counter() - began)
        return admitted

    async def settle_async(self, settlement: Settlement, *, patient: bool = False) -> bool:
        """Settle a call, even if the caller is canceled while it waits.

        `wait_for_database` waits for an unreachable database without a deadline.
        """
        ticket = self._settlement(settlement)
        if patient:
            ticket.deadline = inf
        settled: bool = await self._from_loop(ticket)
        return settled

    async def refuse_async(self, opening: Opening) -> UUID:
        """Record a refused call."""
        row_id: UUID = await self._from_loop(self._refusal(opening))
        return row_id

    async def note_async(self, opening: Opening, *, outcome: Outcome = "ok") -> UUID:
        """Record an event."""
        row_id: UUID = await self._from_loop(self._event(opening, outcome))
        return row_id

    def close(self, timeout_s: float = STOP_S) -> None:
        """Write all waiting items and repeat counts, then stop; later items are refused."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._stop_by = time.monotonic() + timeout_s
                self._queue.put(None)
        self._thread.join(timeout_s + GRACE_S)

    # -- building and enqueuing items --------------------------------------------------------------

    def _admission(self, admission: Admission) -> QueuedItem:
        at = datetime.now(UTC)
        opening, generation = admission.opening, admission.generation
        return self._ticket(open_item(opening, at, admission=admission, generation=generation), at)

    def _settlement(self, settlement: Settlement) -> QueuedItem:
        at, one = datetime.now(UTC), settlement
        used = (one.input_tokens, one.output_tokens)
        metrics.observe_call(
            one.kind, one.outcome, one.code, one.duration_ms, one.cost_microusd, *used
        )
        return self._ticket(close_item(one, at), at)

    def _refusal(self, opening: Opening) -> QueuedItem:
        at = datetime.now(UTC)
        ticket = self._ticket(open_item(opening, at, outcome="refused"), at)
        ticket.refused = build_refusal_key(opening)
        metrics.observe_refusal(opening.event_type, opening.code)
        return ticket

    def _event(self, opening: Opening, outcome: Outcome) -> QueuedItem:
        at = datetime.now(UTC)
        return self._ticket(open_item(opening, at, outcome=outcome), at)

    def _ticket(self, item: Item, at: datetime) -> QueuedItem:
        return QueuedItem(item, at, deadline=time.monotonic() + self.deadline_s)

    def _from_thread(self, ticket: QueuedItem) -> Future[Any]:
        # A loop's thread has no transaction: Django lets none begin there.
        if transaction.get_connection().in_atomic_block:
            raise RuntimeError(
                "The ledger's writer can't be used inside a transaction: its rows would be locked "
                "by yours, and would stay if yours is rolled back. Use `ledger.changes` there."
            )
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # it can't be canceled: the row may be written
        ticket.future = future
        self._put([ticket])
        return future

    async def _from_loop(self, ticket: QueuedItem) -> Any:
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            waiting = self._waiting[loop] = LoopWaiters(self._put, self._unheard, self._crowd)
        return await waiting.answer(ticket)

    def _put(self, tickets: Iterable[QueuedItem]) -> None:
        with self._gate:
            if self._closed:
                raise AuditUnavailable("this process is stopping")
            for ticket in tickets:
                self._queue.put(ticket)

    def _unheard(self, ticket: QueuedItem, answer: Answer) -> None:
        """Close the row of a call whose caller disconnected before it could run."""
        item = ticket.item
        if (
            isinstance(item, CloseItem)
            or item.admission is None
            or not isinstance(answer, AdmissionResult)
        ):
            return
        settlement = Settlement(
            call_id=item.call_id,
            organization_id=item.organization_id,
            outcome="cancelled",
            duration_ms=0,
            actuals=tuple((one.key, one.amount, 0) for one in item.admission.reserves),
        )
        at = datetime.now(UTC)
        self._queue.put(QueuedItem(close_item(settlement, at), at))

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (group := self._gather()) is not None:
                self._serve(group)
            while group := self._drain([]):
                self._serve(group)
            self._serve(self._counts(inf))
        finally:
            self._end()

    def _gather(self) -> list[QueuedItem] | None:
        """Wait for items; return all waiting ones, or None to stop."""
        ends = self._floods.next_end()
        wait = None if ends is None else max(ends - time.monotonic(), 0)
        try:
            ticket = self._queue.get(timeout=wait)
        except Empty:
            return self._counts(time.monotonic())
        if ticket is None:
            return None
        self._in_hand.clear()
        self._in_hand.append(ticket)
        group = self._drain([ticket])
        self._crowd.learn(len(group))
        return group

    def _drain(self, group: list[QueuedItem]) -> list[QueuedItem]:
        """Add waiting items to the batch."""
        while len(group) < MOST_IN_GROUP:
            try:
                ticket = self._queue.get_nowait()
            except Empty:
                break
            if ticket is None:
                self._queue.put(None)  # for `_gather`
                break
            self._in_hand.append(ticket)
            group.append(ticket)
        return group

    def _serve(self, group: list[QueuedItem]) -> None:
        """Commit a batch; retry until the last deadline."""
        while group := self._in_time(group):
            try:
                wake_callers(self._attempt(group), self._unheard)
            except AWAY as error:
                self._trouble(error)
                time.sleep(RETRY_S)
                group = self._drain(group)
            except POISON as error:
                self._committer.disconnect()
                self._replay(group, error)
                return
            else:
                self._trouble(None)
                return

    def _attempt(self, group: list[QueuedItem]) -> list[Answered]:
        now = time.monotonic()
        writing: list[QueuedItem] = []
        firsts: dict[Key, QueuedItem] = {}
        echoes: list[Answered] = []
        for ticket in group:
            key = ticket.refused
            if key and (first := self._floods.find(key, now)):
                echoes.append((ticket, first.row_id))
            elif key and key in firsts:
                echoes.append((ticket, firsts[key].item.call_id))
            else:
                writing.append(ticket)
                firsts |= {key: ticket} if key else {}
        answered = self._committer.commit(writing) if writing else []
        for key, ticket in firsts.items():
            for over in self._floods.start(key, ticket.item.call_id, at=ticket.at, now=now):
                self._queue.put(_build_repeat_closing(over))
        for ticket, _ in echoes:
            if ticket.refused:
                self._floods.count(ticket.refused, ticket.at)
        return answered + echoes

    def _replay(self, group: list[QueuedItem], error: Exception) -> None:
        """Commit the items of a failed batch one by one, so that only the faulty one fails."""
        if len(group) > 1:
            logger.warning("A group of %d failed, its items are replayed", len(group))
            for ticket in group:
                self._serve([ticket])
            return
        wake_callers([(group[0], self._unfit(group[0].item, error))], self._unheard)

    def _unfit(self, item: Item, error: Exception) -> Refusal:
        """Return the refusal of a faulty item: its row exists, or its content is invalid."""
        try:
            if isinstance(item, OpenItem) and self._committer.holds(item.call_id):
                return CallAlreadyStarted()
        except (DatabaseError, InterfaceError) as other:
            self._trouble(other)
        logger.error("The ledger can't hold an entry", exc_info=error)
        return AuditUnavailable("it can't hold this entry")

    def _in_time(self, group: list[QueuedItem]) -> list[QueuedItem]:
        """Refuse overdue items; return the others, and those that must be written anyway."""
        now = time.monotonic()
        kept: list[QueuedItem] = []
        late: list[Answered] = []
        for ticket in group:
            if now < min(ticket.deadline, self._stop_by):
                if ticket.sent or not ticket.moot:
                    kept.append(ticket)
                continue
            late.append((ticket, AuditUnavailable("the database doesn't answer")))
            # Calls that happened, or may have been opened, are still closed later.
            if now < self._stop_by and (ticket.sent or isinstance(ticket.item, CloseItem)):
                kept.append(QueuedItem(ticket.item, ticket.at, sent=ticket.sent))
        if late:
            wake_callers(late, self._unheard)
        return kept

    def _counts(self, now: float) -> list[QueuedItem]:
        """Return closings for the refusal windows that have ended."""
        return [_build_repeat_closing(window) for window in self._floods.ended(now)]

    def _trouble(self, error: Exception | None) -> None:
        """Log once that the database is unreachable, and once that it is back."""
        if error is not None:
            metrics.ledger_troubles.inc()
            self._committer.disconnect()
        if bool(error) != self._troubled:
            self._troubled = bool(error)
            if error:
                logger.warning("The audit can't be written: %s", error)
            else:
                logger.info("The audit can be written again")

    def _end(self) -> None:
        with self._gate:
            self._closed = True
        waiting = [ticket for ticket in self._in_hand if ticket.future is not None]
        while not self._queue.empty():
            ticket = self._queue.get_nowait()
            if ticket is not None:
                waiting.append(ticket)
        ended = AuditUnavailable
        wake_callers(
            [(ticket, ended("its writer has stopped")) for ticket in waiting], self._unheard
        )
        self._committer.disconnect()


def _build_repeat_closing(window: RefusalWindow) -> QueuedItem:
    return QueuedItem(count_item(window), window.last_at)


# -- one per process -----------------------------------------------------------------------------

_creation = Lock()
_current: LedgerWriter | None = None
_inherited: list[LedgerWriter | None] = []


def get_writer() -> LedgerWriter:
    """Return this process's writer, started at its first use."""
    global _current
    current = _current
    if current is None or not current.usable:
        with _creation:
            current = _current
            if current is None or not current.usable:
                current = _current = LedgerWriter()
    return current


@atexit.register
def close() -> None:
    """Flush and stop this process's writer; the next use starts another."""
    current = _current
    if current is not None and current.usable:
        current.close()


def _reset_after_fork() -> None:
    """Forget the parent's writer, whose thread and connection belong to the parent."""
    global _creation, _current
    _inherited.append(_current)  # keep a reference, so that nothing of it is closed here
    _creation, _current = Lock(), None


os.register_at_fork(after_in_child=_reset_after_fork)
