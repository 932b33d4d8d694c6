"""Calls that wait to be admitted: for their rate limit, or for budgets that others have reserved.

First come, first served: a call isn't admitted before an earlier one of this process that waits for
the same budget or rate limit. Only the first of them tries again: when its rate limit allows it,
when a reservation of this process is settled, and after `POLL_INTERVAL_S`, because reservations of
other processes are settled there.
"""

import asyncio
import itertools
import threading
from bisect import insort
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from time import monotonic

from bonobot.core.records import record
from bonobot.core.runtime import get_runtime
from bonobot.ledger.admission import BudgetReserved, RateLimited
from bonobot.ledger.types import Admission, BudgetReservation
from bonobot.ledger.writer.writer_thread import get_writer

POLL_INTERVAL_S = 0.5
_creation_lock = threading.Lock()


@record()
class AdmissionTimeouts:
    """How long a call waits, in seconds: for its rate limits, and for reserved budgets."""

    rate_s: float
    budget_s: float


@dataclass(eq=False, slots=True)
class AdmissionTicket:
    """A call's place in the queue; `waits_for` is the key of a budget or rate limit."""

    timeouts: AdmissionTimeouts
    number: int = field(default_factory=itertools.count().__next__)
    opened_at: float = field(default_factory=monotonic)
    waits_for: str = ""
    # Set for the ticket's turn to try again; only a ticket that waits has it.
    woken: asyncio.Event | None = None

    def calculate_remaining_s(self, timeout_s: float) -> float:
        """Return how many seconds are left of a time since the ticket was opened."""
        return self.opened_at + timeout_s - monotonic()


class AdmissionQueue:
    """The calls of one event loop that wait to be admitted, by what they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[AdmissionTicket]] = {}

    def close_ticket(self, ticket: AdmissionTicket) -> None:
        """Remove a ticket from the queue."""
        if ticket.waits_for:
            self._leave(ticket)

    async def admit_call(self, ticket: AdmissionTicket, admission: Admission) -> None:
        """Admit a call; wait while it is refused only for now.

        Raises `Refusal`: `RateLimited` or `BudgetReserved` if the ticket's time isn't enough.
        """
        while True:
            if self._waiting:
                keys = {reservation.key for reservation in admission.reservations}
                if ticket.timeouts.rate_s:
                    keys |= {charge.key for charge in admission.charges}
                await self._wait_for_earlier(ticket, keys)
                if ticket.woken is not None:
                    ticket.woken.clear()
            try:
                await get_writer().admit_call_async(admission)
            except RateLimited as refusal:
                if refusal.wait_s > ticket.calculate_remaining_s(ticket.timeouts.rate_s):
                    raise
                await _wait_for_event(self._join(ticket, refusal.rule), refusal.wait_s)
            except BudgetReserved as refusal:
                remaining_s = ticket.calculate_remaining_s(ticket.timeouts.budget_s)
                if remaining_s <= 0:
                    raise
                woken = self._join(ticket, refusal.rule)
                await _wait_for_event(woken, min(POLL_INTERVAL_S, remaining_s))
            else:
                return

    def notify_settled(self, reservations: Iterable[BudgetReservation]) -> None:
        """Have waiting calls of this process try again, because reservations were settled."""
        if self._waiting:
            for reservation in reservations:
                if tickets := self._waiting.get(reservation.key):
                    _wake(tickets[0])

    async def _wait_for_earlier(self, ticket: AdmissionTicket, keys: set[str]) -> None:
        """Wait while earlier calls wait for one of these keys, at most as long as for a budget."""
        while (key := self._find_blocked_key(ticket, keys)) is not None:
            remaining_s = ticket.calculate_remaining_s(ticket.timeouts.budget_s)
            if remaining_s <= 0:
                return
            woken = self._join(ticket, key)
            woken.clear()
            await _wait_for_event(woken, min(POLL_INTERVAL_S, remaining_s))

    def _find_blocked_key(self, ticket: AdmissionTicket, keys: set[str]) -> str | None:
        """Return one of the keys that an earlier call waits for."""
        for key in keys & self._waiting.keys():
            if self._waiting[key][0].number < ticket.number:
                return key
        return None

    def _join(self, ticket: AdmissionTicket, key: str) -> asyncio.Event:
        """Have a ticket wait for a key, behind earlier ones; return its event."""
        ticket.woken = ticket.woken or asyncio.Event()
        if ticket.waits_for != key:
            if ticket.waits_for:
                self._leave(ticket)
            insort(self._waiting.setdefault(key, []), ticket, key=attrgetter("number"))
            ticket.waits_for = key
        return ticket.woken

    def _leave(self, ticket: AdmissionTicket) -> None:
        """Take a ticket out of its queue, and have the next one try."""
        tickets = self._waiting[ticket.waits_for]
        tickets.remove(ticket)
        if tickets:
            _wake(tickets[0])
        else:
            del self._waiting[ticket.waits_for]
        ticket.waits_for = ""


def _wake(ticket: AdmissionTicket) -> None:
    if ticket.woken is not None:
        ticket.woken.set()


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def get_admission_queue() -> AdmissionQueue:
    """Return the queue of this process's runtime."""
    services = get_runtime().services
    queue: AdmissionQueue | None = services.get(AdmissionQueue)
    if queue is None:
        with _creation_lock:
            queue = services.setdefault(AdmissionQueue, AdmissionQueue())
    return queue
