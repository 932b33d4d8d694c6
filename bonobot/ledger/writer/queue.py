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

from bonobot.ledger.refusals import AuditUnavailable, Refusal
from bonobot.ledger.writer.batch_plan import Answer, CloseItem, Item, Key


@dataclass(slots=True, eq=False)
class QueuedItem:
    """An item, when it was queued, and until when (monotonic seconds) its caller waits."""

    item: Item
    at: datetime
    deadline: float = inf
    future: "Future[Any] | asyncio.Future[Any] | None" = None
    loop: asyncio.AbstractEventLoop | None = None
    refused: Key | None = None  # set for refusals, which may be repeats
    sent: bool = False  # its commit was sent: without an answer, it may have happened

    @property
    def moot(self) -> bool:
        """Whether it would open a call whose caller is gone."""
        if isinstance(self.item, CloseItem):
            return False
        if self.future is None:
            return True
        return self.item.admission is not None and self.future.done()


Answered = tuple[QueuedItem, Answer]
Unheard = Callable[[QueuedItem, Answer], None]


def wake_callers(answered: Iterable[Answered], unheard: Unheard) -> None:
    """Wake each caller once; `on_abandoned` gets answers that no caller waits for."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answered]] = {}
    for ticket, answer in answered:
        if ticket.loop is None:
            _resolve(ticket, answer, unheard)
        else:
            by_loop.setdefault(ticket.loop, []).append((ticket, answer))
    for loop, those in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_all, those, unheard)
        except RuntimeError:  # the loop was closed meanwhile
            for ticket, answer in those:
                unheard(ticket, answer)


def _resolve_all(answered: Iterable[Answered], unheard: Unheard) -> None:
    for ticket, answer in answered:
        _resolve(ticket, answer, unheard)


def _resolve(ticket: QueuedItem, answer: Answer, unheard: Unheard) -> None:
    future = ticket.future
    if future is None or future.done():
        unheard(ticket, answer)
    elif isinstance(answer, Refusal):
        future.set_exception(answer)
    else:
        future.set_result(answer)


# How long a batch waits for more items, in seconds, and for how many at most.
WAIT_S = 0.001
MOST = 32


class BatchSizeEstimate:
    """Estimates how many items arrive together; `expected` is the batch size to wait for."""

    def __init__(self) -> None:
        """Start with a batch size of one."""
        self.expected = 1

    def learn(self, came: int) -> None:
        """Expect one more if at least the expected number arrived, otherwise one less."""
        if 1 < came >= self.expected:
            self.expected = min(came + 1, MOST)
        else:
            self.expected = max(self.expected - 1, 1)


LOOK_EVERY_S = 0.25
GRACE_S = 2.0  # how much longer than its deadline a caller waits for the writer


class LoopWaiters:
    """The waiting callers of one event loop; used by its thread only."""

    def __init__(
        self,
        put: Callable[[Sequence[QueuedItem]], None],
        unheard: Unheard,
        crowd: BatchSizeEstimate,
    ) -> None:
        """`submit` passes items to the writer or raises if it is closed; `on_abandoned` gets the
        answers whose caller disconnected."""
        self._put = put
        self._unheard = unheard
        self._crowd = crowd
        self._gathered: list[QueuedItem] = []
        self._going: asyncio.TimerHandle | None = None
        self._until: dict[asyncio.Future[Any], float] = {}
        self._looked_at = False

    async def answer(self, ticket: QueuedItem) -> Any:
        """Submit an item of this loop and return its answer, or raise the refusal."""
        loop = ticket.loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        ticket.future = future
        self._hand_in(ticket, loop)
        self._until[future] = ticket.deadline + GRACE_S
        if not self._looked_at:
            self._looked_at = True
            loop.call_later(LOOK_EVERY_S, self._look, loop)
        heard = False
        try:
            answer = await future
            heard = True
            return answer
        finally:
            del self._until[future]
            if not heard:
                self._left(ticket, future)

    def _left(self, ticket: QueuedItem, future: "asyncio.Future[Any]") -> None:
        if not future.done() or future.cancelled():
            # The item is processed without its caller, even if the loop stops now.
            self._hand_over()
        elif not future.exception():
            self._unheard(ticket, future.result())

    def _hand_in(self, ticket: QueuedItem, loop: asyncio.AbstractEventLoop) -> None:
        self._gathered.append(ticket)
        if len(self._gathered) >= self._crowd.expected:
            self._hand_over()
        elif self._going is None:
            self._going = loop.call_later(WAIT_S, self._hand_over)

    def _hand_over(self) -> None:
        if self._going is not None:
            self._going.cancel()
            self._going = None
        gathered, self._gathered = self._gathered, []
        try:
            if gathered:
                self._put(gathered)
        except AuditUnavailable as problem:
            for ticket in gathered:
                if ticket.future is not None and not ticket.future.done():
                    ticket.future.set_exception(problem)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        for future, until in self._until.items():
            if until <= now and not future.done():
                # A later answer is abandoned.
                future.set_exception(AuditUnavailable("the database doesn't answer"))
        self._looked_at = bool(self._until)
        if self._looked_at:
            loop.call_later(LOOK_EVERY_S, self._look, loop)
