"""Tickets: one item on its way through the writer, and who waits for its answer.

A caller waits in a thread (a `concurrent.futures.Future`) or on an event loop (an asyncio future;
all answers of a group reach a loop in one wake-up). A ticket without a waiter is the writer's own
work: the count of a flood, or the closing of a call whose caller went away.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any

from bonobot.ledger.floods import Key
from bonobot.ledger.groups import Answer, Close, Item
from bonobot.ledger.refusals import Refusal


@dataclass(slots=True, eq=False)
class Ticket:
    """An item, when it was handed in, and until when (monotonic seconds) its caller waits."""

    item: Item
    at: datetime
    deadline: float = inf
    future: "Future[Any] | asyncio.Future[Any] | None" = None
    loop: asyncio.AbstractEventLoop | None = None
    refused: Key | None = None  # set for refusals, which may be one of a flood
    sent: bool = False  # its commit went out: without an answer, it may have happened

    @property
    def moot(self) -> bool:
        """Tell whether it would open a call that nobody is there to make."""
        if isinstance(self.item, Close):
            return False
        if self.future is None:
            return True
        return self.item.admission is not None and self.future.done()


Answered = tuple[Ticket, Answer]
Unheard = Callable[[Ticket, Answer], None]


def deliver(answered: Iterable[Answered], unheard: Unheard) -> None:
    """Wake each caller once; `unheard` gets the answers that nobody waits for any more."""
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


def _resolve(ticket: Ticket, answer: Answer, unheard: Unheard) -> None:
    future = ticket.future
    if future is None or future.done():
        unheard(ticket, answer)
    elif isinstance(answer, Refusal):
        future.set_exception(answer)
    else:
        future.set_result(answer)
