"""Waiting: the callers of one loop, from handing in until they are answered or let go.

What several of them hand in goes to the writer together, a moment after the first where others are
expected: its thread is woken once for all. And one timer looks at all who wait, so that a call,
whose answer comes within milliseconds, doesn't set and take back timers of its own.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from bonobot.ledger.gathering import WAIT_S, Crowd
from bonobot.ledger.refusals import AuditUnavailable
from bonobot.ledger.tickets import Ticket, Unheard

LOOK_EVERY_S = 0.25
GRACE_S = 2.0  # how much longer than its deadline a caller waits for the writer's word


class Waiting:
    """Who waits on one loop; used by its thread only."""

    def __init__(
        self, put: Callable[[Sequence[Ticket]], None], unheard: Unheard, crowd: Crowd
    ) -> None:
        """`put` gives tickets to the writer, and raises where it takes none; `unheard` gets the
        answers whose caller went away."""
        self._put = put
        self._unheard = unheard
        self._crowd = crowd
        self._gathered: list[Ticket] = []
        self._going: asyncio.TimerHandle | None = None
        self._until: dict[asyncio.Future[Any], float] = {}
        self._looked_at = False

    async def answer(self, ticket: Ticket) -> Any:
        """Hand in a ticket of this loop and return its answer, or raise the refusal."""
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

    def _left(self, ticket: Ticket, future: "asyncio.Future[Any]") -> None:
        if not future.done() or future.cancelled():
            # What a caller handed in goes on without it, even if its loop ends now.
            self._hand_over()
        elif not future.exception():
            self._unheard(ticket, future.result())

    def _hand_in(self, ticket: Ticket, loop: asyncio.AbstractEventLoop) -> None:
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
                # What comes later finds nobody.
                future.set_exception(AuditUnavailable("the database doesn't answer"))
        self._looked_at = bool(self._until)
        if self._looked_at:
            loop.call_later(LOOK_EVERY_S, self._look, loop)
