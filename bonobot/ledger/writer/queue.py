"""Queued items and the callers that wait for them.

A caller waits in a thread (`concurrent.futures.Future`) or on an event loop (asyncio future; a
loop gets all answers of a batch in one wake-up). An item without a waiter is the writer's own: a
repeat count, or the closing of a call whose caller disconnected.

A commit costs about the same for one item as for many, so items of a loop are submitted together,
shortly after the first if more are expected. A single caller never waits. One timer per loop
checks all deadlines, instead of one timer per call.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any

from bonobot.core.runtime import DirectFuture
from bonobot.ledger.admission import AuditUnavailable, Refusal
from bonobot.ledger.writer.batch_plan import Answer, CloseItem, Item
from bonobot.ledger.writer.repeated_refusals import RefusalKey


@dataclass(slots=True, eq=False)
class QueuedItem:
    """An item, when it was queued, and until when (monotonic seconds) its caller waits."""

    item: Item
    queued_at: datetime
    deadline: float = inf
    future: "Future[Any] | asyncio.Future[Any] | None" = None
    loop: asyncio.AbstractEventLoop | None = None
    refusal_key: RefusalKey | None = None  # set for refusals, which may be repeats
    is_sent: bool = False  # its commit was sent: without an answer, it may have happened

    @property
    def is_abandoned(self) -> bool:
        """Whether it would open a call whose caller is gone."""
        if isinstance(self.item, CloseItem):
            return False
        if self.future is None:
            return True
        return self.item.admission is not None and self.future.done()


AnsweredItem = tuple[QueuedItem, Answer]
OnAbandoned = Callable[[QueuedItem, Answer], None]


def wake_callers(answered_items: Iterable[AnsweredItem], on_abandoned: OnAbandoned) -> None:
    """Wake each caller once; `on_abandoned` gets answers that no caller waits for."""
    by_loop: dict[asyncio.AbstractEventLoop, list[AnsweredItem]] = {}
    for queued_item, answer in answered_items:
        if queued_item.loop is None:
            _resolve_answers([(queued_item, answer)], on_abandoned)
        else:
            by_loop.setdefault(queued_item.loop, []).append((queued_item, answer))
    for loop, loop_answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_answers, loop_answers, on_abandoned)
        except RuntimeError:  # the loop was closed meanwhile
            for queued_item, answer in loop_answers:
                on_abandoned(queued_item, answer)


def _resolve_answers(answered_items: Iterable[AnsweredItem], on_abandoned: OnAbandoned) -> None:
    for queued_item, answer in answered_items:
        future = queued_item.future
        if future is None or future.done():
            on_abandoned(queued_item, answer)
        elif isinstance(answer, Refusal):
            future.set_exception(answer)
        elif isinstance(future, DirectFuture):
            future.resume_with(answer)
        else:
            future.set_result(answer)


# How long a batch waits for more items, in seconds, and for how many at most.
GATHER_S = 0.001
MAX_EXPECTED = 32


class BatchSizeEstimate:
    """Estimates how many items arrive together; `expected` is the batch size to wait for."""

    def __init__(self) -> None:
        self.expected = 1

    def update(self, size: int) -> None:
        """Expect as many as arrived if those were more, and one less if they were fewer.

        Items that arrive during a commit are one batch, so the estimate grows with the callers.
        Expecting one more than that would make every second batch of a steady load wait for
        nothing.
        """
        if size > self.expected:
            self.expected = min(size, MAX_EXPECTED)
        elif size < self.expected:
            self.expected -= 1


CHECK_INTERVAL_S = 0.25
GRACE_S = 2.0  # how much longer than its deadline a caller waits for the writer


class LoopWaiters:
    """The waiting callers of one event loop; used by its thread only."""

    def __init__(
        self,
        submit: Callable[[Sequence[QueuedItem]], None],
        on_abandoned: OnAbandoned,
        batch_size: BatchSizeEstimate,
    ) -> None:
        """`submit` passes items to the writer or raises if it is closed; `on_abandoned` gets the
        answers whose caller disconnected."""
        self._submit = submit
        self._on_abandoned = on_abandoned
        self._batch_size = batch_size
        self._gathered: list[QueuedItem] = []
        self._timer: asyncio.TimerHandle | None = None
        self._deadlines: dict[asyncio.Future[Any], float] = {}
        self._is_checking = False

    async def wait_for_answer(self, queued_item: QueuedItem) -> Any:
        """Submit an item of this loop and return its answer, or raise the refusal."""
        loop = queued_item.loop = asyncio.get_running_loop()
        future: DirectFuture[Any] = DirectFuture(loop=loop)
        queued_item.future = future
        self._gathered.append(queued_item)
        if len(self._gathered) >= self._batch_size.expected:
            self._submit_items()
        elif self._timer is None:
            self._timer = loop.call_later(GATHER_S, self._submit_items)
        self._deadlines[future] = queued_item.deadline + GRACE_S
        if not self._is_checking:
            self._is_checking = True
            loop.call_later(CHECK_INTERVAL_S, self._expire_overdue, loop)
        is_received = False
        try:
            answer = await future
            is_received = True
            return answer
        finally:
            del self._deadlines[future]
            if not is_received:
                self._handle_caller_left(queued_item, future)

    def _handle_caller_left(self, queued_item: QueuedItem, future: "asyncio.Future[Any]") -> None:
        if not future.done() or future.cancelled():
            # The item is processed without its caller, even if the loop stops now.
            self._submit_items()
        elif not future.exception():
            self._on_abandoned(queued_item, future.result())

    def _submit_items(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered = self._gathered, []
        try:
            if gathered:
                self._submit(gathered)
        except AuditUnavailable as problem:
            for queued_item in gathered:
                if queued_item.future is not None and not queued_item.future.done():
                    queued_item.future.set_exception(problem)

    def _expire_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        for future, deadline in self._deadlines.items():
            if deadline <= now and not future.done():
                # A later answer is abandoned.
                future.set_exception(AuditUnavailable("the database doesn't respond"))
        self._is_checking = bool(self._deadlines)
        if self._is_checking:
            loop.call_later(CHECK_INTERVAL_S, self._expire_overdue, loop)
