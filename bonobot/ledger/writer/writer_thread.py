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
from operator import attrgetter
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import DatabaseError, InterfaceError, transaction

from bonobot.core.db.transactions import UNAVAILABLE_ERRORS
from bonobot.core.telemetry import metrics
from bonobot.ledger.admission import AuditUnavailable, CallAlreadyStarted, Refusal
from bonobot.ledger.types import (
    Admission,
    AdmissionResult,
    Opening,
    Settlement,
    is_approval_request,
)
from bonobot.ledger.writer.batch_plan import (
    Answer,
    CloseItem,
    Item,
    OpenItem,
    build_close_item,
    build_open_item,
    build_repeat_item,
)
from bonobot.ledger.writer.committer import BatchCommitter
from bonobot.ledger.writer.queue import (
    GRACE_S,
    AnsweredItem,
    BatchSizeEstimate,
    LoopWaiters,
    QueuedItem,
    wake_callers,
)
from bonobot.ledger.writer.repeated_refusals import (
    RefusalKey,
    RefusalWindow,
    RepeatedRefusals,
    build_refusal_key,
)

__all__ = ["DEADLINE_S", "LedgerWriter", "Refusal", "close_writer", "get_writer"]

logger = logging.getLogger(__name__)

DEADLINE_S = 5.0
RETRY_S = 0.05
MAX_BATCH_SIZE = 256
STOP_TIMEOUT_S = 10.0

# Errors that the content of one item can cause; any other is a bug and stops the writer.
ITEM_ERRORS = (DatabaseError, ValueError, TypeError, ArithmeticError)


_get_refusal_key = attrgetter("refusal_key")


class LedgerWriter:
    """Admits and settles calls and records refusals; usable from any thread or event loop."""

    def __init__(self, *, deadline_s: float = DEADLINE_S) -> None:
        self.deadline_s = deadline_s
        self.pid = os.getpid()
        self._queue: SimpleQueue[QueuedItem | None] = SimpleQueue()
        self._queue_lock = Lock()  # nothing is enqueued after the final check of the queue
        self._closed = False
        self._stop_deadline = inf
        self._committer = BatchCommitter()
        self._repeated_refusals = RepeatedRefusals()
        self._current_items: list[QueuedItem] = []
        self._loop_waiters: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWaiters] = (
            WeakKeyDictionary()
        )
        self._batch_size = BatchSizeEstimate()
        self._is_unavailable = False
        self._thread = Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        """Whether it accepts items: not closed, and not inherited by a fork."""
        return not self._closed and self.pid == os.getpid()

    # -- for threads ------------------------------------------------------------------------------

    def admit_call(self, admission: Admission) -> Future[AdmissionResult]:
        """Open a call's row, charge rates and reserve budgets; the future may raise a `Refusal`."""
        return self._submit_from_thread(self._build_admission(admission))

    def settle_call(self, settlement: Settlement) -> Future[bool]:
        """Close a call's row and settle its budgets; False if it isn't open."""
        return self._submit_from_thread(self._build_settlement(settlement))

    def record_refusal(self, opening: Opening) -> Future[UUID]:
        """Record a refused call; equal ones within a minute return the id of the first."""
        return self._submit_from_thread(self._build_refusal(opening))

    # -- for the loop -----------------------------------------------------------------------------

    async def admit_call_async(self, admission: Admission) -> AdmissionResult:
        """Admit a call; if the caller is canceled, its row is closed."""
        started_at = time.perf_counter()
        queued_item = self._build_admission(admission)
        result: AdmissionResult = await self._get_waiters().wait_for_answer(queued_item)
        metrics.admission_seconds.observe(time.perf_counter() - started_at)
        return result

    async def settle_call_async(
        self, settlement: Settlement, *, wait_for_database: bool = False
    ) -> bool:
        """Settle a call, even if the caller is canceled while it waits.

        `wait_for_database` waits for an unreachable database without a deadline.
        """
        queued_item = self._build_settlement(settlement)
        if wait_for_database:
            queued_item.deadline = inf
        settled: bool = await self._get_waiters().wait_for_answer(queued_item)
        return settled

    async def record_refusal_async(self, opening: Opening) -> UUID:
        """Record a refused call."""
        queued_item = self._build_refusal(opening)
        row_id: UUID = await self._get_waiters().wait_for_answer(queued_item)
        return row_id

    def close(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Write all waiting items and repeat counts, then stop; later items are refused."""
        with self._queue_lock:
            if not self._closed:
                self._closed = True
                self._stop_deadline = time.monotonic() + timeout_s
                self._queue.put(None)
        self._thread.join(timeout_s + GRACE_S)

    # -- building and enqueuing items --------------------------------------------------------------

    def _build_admission(self, admission: Admission) -> QueuedItem:
        at = datetime.now(UTC)
        opening, generation = admission.opening, admission.generation
        item = build_open_item(opening, at, admission=admission, generation=generation)
        return QueuedItem(item, at, deadline=time.monotonic() + self.deadline_s)

    def _build_settlement(self, settlement: Settlement) -> QueuedItem:
        at, call = datetime.now(UTC), settlement
        tokens = (call.input_tokens, call.output_tokens)
        metrics.observe_call(
            call.kind, call.outcome, call.code, call.duration_ms, call.cost_microusd, *tokens
        )
        item = build_close_item(call, at)
        return QueuedItem(item, at, deadline=time.monotonic() + self.deadline_s)

    def _build_refusal(self, opening: Opening) -> QueuedItem:
        at = datetime.now(UTC)
        item = build_open_item(opening, at, outcome="refused")
        queued_item = QueuedItem(item, at, deadline=time.monotonic() + self.deadline_s)
        queued_item.refusal_key = build_refusal_key(opening)
        if not is_approval_request("refused", opening.code):
            metrics.observe_refusal(opening.event_type, opening.code)
        return queued_item

    def _submit_from_thread(self, queued_item: QueuedItem) -> Future[Any]:
        # A loop's thread has no transaction: Django lets none begin there.
        if transaction.get_connection().in_atomic_block:
            raise RuntimeError(
                "The ledger's writer can't be used inside a transaction: its rows would be locked "
                "by yours, and would stay if yours is rolled back. Use `record_change` there."
            )
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # it can't be canceled: the row may be written
        queued_item.future = future
        self._enqueue([queued_item])
        return future

    def _get_waiters(self) -> LoopWaiters:
        """Return the waiting callers of the running event loop."""
        loop = asyncio.get_running_loop()
        waiters = self._loop_waiters.get(loop)
        if waiters is None:
            waiters = self._loop_waiters[loop] = LoopWaiters(
                self._enqueue, self._cancel_abandoned_call, self._batch_size
            )
        return waiters

    def _enqueue(self, queued_items: Iterable[QueuedItem]) -> None:
        with self._queue_lock:
            if self._closed:
                raise AuditUnavailable("this process is shutting down")
            for queued_item in queued_items:
                self._queue.put(queued_item)

    def _cancel_abandoned_call(self, queued_item: QueuedItem, answer: Answer) -> None:
        """Close the row of a call whose caller disconnected before it could run."""
        item = queued_item.item
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
            actuals=tuple(
                (reservation.key, reservation.amount, 0)
                for reservation in item.admission.reservations
            ),
        )
        at = datetime.now(UTC)
        self._queue.put(QueuedItem(build_close_item(settlement, at), at))

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (batch := self._wait_for_items()) is not None:
                self._commit_batch(batch)
            while batch := self._add_waiting_items([]):
                self._commit_batch(batch)
            self._commit_batch(self._collect_repeat_closings(inf))
        finally:
            self._stop()

    def _wait_for_items(self) -> list[QueuedItem] | None:
        """Wait for items; return all waiting ones, or None to stop."""
        refusals = self._repeated_refusals
        next_end = refusals.find_next_end() if refusals.windows else None
        timeout_s = None if next_end is None else max(next_end - time.monotonic(), 0)
        try:
            queued_item = self._queue.get(timeout=timeout_s)
        except Empty:
            return self._collect_repeat_closings(time.monotonic())
        if queued_item is None:
            return None
        self._current_items.clear()
        self._current_items.append(queued_item)
        batch = self._add_waiting_items([queued_item])
        if len(batch) != self._batch_size.expected:
            self._batch_size.update(len(batch))
        return batch

    def _add_waiting_items(self, batch: list[QueuedItem]) -> list[QueuedItem]:
        while len(batch) < MAX_BATCH_SIZE:
            try:
                queued_item = self._queue.get_nowait()
            except Empty:
                break
            if queued_item is None:
                self._queue.put(None)  # for `_gather`
                break
            self._current_items.append(queued_item)
            batch.append(queued_item)
        return batch

    def _commit_batch(self, batch: list[QueuedItem]) -> None:
        """Commit a batch; retry until the last deadline."""
        while batch := self._drop_late_items(batch):
            try:
                has_refusals = any(map(_get_refusal_key, batch))
                commit = self._commit_with_refusals if has_refusals else self._committer.commit
                wake_callers(commit(batch), self._cancel_abandoned_call)
            except UNAVAILABLE_ERRORS as error:
                self._report_trouble(error)
                time.sleep(RETRY_S)
                batch = self._add_waiting_items(batch)
            except ITEM_ERRORS as error:
                self._committer.disconnect()
                self._commit_one_by_one(batch, error)
                return
            else:
                if self._is_unavailable:
                    self._report_trouble(None)
                return

    def _commit_with_refusals(self, batch: list[QueuedItem]) -> list[AnsweredItem]:
        """Commit a batch with refusals: repeated ones are only counted."""
        now = time.monotonic()
        new_items: list[QueuedItem] = []
        first_refusals: dict[RefusalKey, QueuedItem] = {}
        repeats: list[AnsweredItem] = []
        for queued_item in batch:
            key = queued_item.refusal_key
            if key and (window := self._repeated_refusals.find_window(key, now)):
                repeats.append((queued_item, window.row_id))
            elif key and key in first_refusals:
                repeats.append((queued_item, first_refusals[key].item.call_id))
            else:
                new_items.append(queued_item)
                first_refusals |= {key: queued_item} if key else {}
        answered_items = self._committer.commit(new_items) if new_items else []
        for key, queued_item in first_refusals.items():
            for ended_window in self._repeated_refusals.open_window(
                key, queued_item.item.call_id, at=queued_item.queued_at, now=now
            ):
                self._queue.put(_build_repeat_closing(ended_window))
        for queued_item, _ in repeats:
            if queued_item.refusal_key:
                self._repeated_refusals.count_refusal(
                    queued_item.refusal_key, queued_item.queued_at
                )
        return answered_items + repeats

    def _commit_one_by_one(self, batch: list[QueuedItem], error: Exception) -> None:
        """Commit the items of a failed batch one by one, so that only the faulty one fails."""
        if len(batch) > 1:
            logger.warning("A group of %d failed, its items are replayed", len(batch))
            for queued_item in batch:
                self._commit_batch([queued_item])
            return
        wake_callers(
            [(batch[0], self._build_item_refusal(batch[0].item, error))],
            self._cancel_abandoned_call,
        )

    def _build_item_refusal(self, item: Item, error: Exception) -> Refusal:
        """Return the refusal of a faulty item: its row exists, or its content is invalid."""
        try:
            if isinstance(item, OpenItem) and self._committer.has_row(item.call_id):
                return CallAlreadyStarted()
        except (DatabaseError, InterfaceError) as fault:
            self._report_trouble(fault)
        logger.error("The ledger can't hold an entry", exc_info=error)
        return AuditUnavailable("this entry can't be stored")

    def _drop_late_items(self, batch: list[QueuedItem]) -> list[QueuedItem]:
        """Refuse overdue items; return the others, and those that must be written anyway."""
        now = time.monotonic()
        remaining: list[QueuedItem] = []
        late_answers: list[AnsweredItem] = []
        for queued_item in batch:
            if now < min(queued_item.deadline, self._stop_deadline):
                if queued_item.is_sent or not queued_item.is_abandoned:
                    remaining.append(queued_item)
                continue
            late_answers.append((queued_item, AuditUnavailable("the database doesn't respond")))
            # Calls that happened, or may have been opened, are still closed later.
            if now < self._stop_deadline and (
                queued_item.is_sent or isinstance(queued_item.item, CloseItem)
            ):
                remaining.append(
                    QueuedItem(queued_item.item, queued_item.queued_at, is_sent=queued_item.is_sent)
                )
        if late_answers:
            wake_callers(late_answers, self._cancel_abandoned_call)
        return remaining

    def _collect_repeat_closings(self, now: float) -> list[QueuedItem]:
        """Return closings for the refusal windows that have ended."""
        return [
            _build_repeat_closing(window)
            for window in self._repeated_refusals.take_ended_windows(now)
        ]

    def _report_trouble(self, error: Exception | None) -> None:
        """Log once that the database is unreachable, and once that it is back."""
        if error is not None:
            metrics.ledger_failures.inc()
            self._committer.disconnect()
        if bool(error) != self._is_unavailable:
            self._is_unavailable = bool(error)
            if error:
                logger.warning("The audit can't be written: %s", error)
            else:
                logger.info("The audit can be written again")

    def _stop(self) -> None:
        with self._queue_lock:
            self._closed = True
        waiting_items = [
            queued_item for queued_item in self._current_items if queued_item.future is not None
        ]
        while not self._queue.empty():
            queued_item = self._queue.get_nowait()
            if queued_item is not None:
                waiting_items.append(queued_item)
        refusal_class = AuditUnavailable
        wake_callers(
            [
                (queued_item, refusal_class("its writer has stopped"))
                for queued_item in waiting_items
            ],
            self._cancel_abandoned_call,
        )
        self._committer.disconnect()


def _build_repeat_closing(window: RefusalWindow) -> QueuedItem:
    return QueuedItem(build_repeat_item(window), window.last_at)


# -- one per process -----------------------------------------------------------------------------

_creation_lock = Lock()
_current_writer: LedgerWriter | None = None
_parent_writers: list[LedgerWriter | None] = []


def get_writer() -> LedgerWriter:
    """Return this process's writer, started at its first use."""
    global _current_writer
    writer = _current_writer  # never the parent's: `_reset_after_fork`
    if writer is None or writer._closed:
        with _creation_lock:
            writer = _current_writer
            if writer is None or writer._closed:
                writer = _current_writer = LedgerWriter()
    return writer


@atexit.register
def close_writer() -> None:
    """Flush and stop this process's writer; the next use starts another."""
    writer = _current_writer
    if writer is not None and writer.is_usable:
        writer.close()


def _reset_after_fork() -> None:
    """Forget the parent's writer, whose thread and connection belong to the parent."""
    global _creation_lock, _current_writer
    _parent_writers.append(
        _current_writer
    )  # keep a reference, so that nothing of it is closed here
    _creation_lock, _current_writer = Lock(), None


os.register_at_fork(after_in_child=_reset_after_fork)
