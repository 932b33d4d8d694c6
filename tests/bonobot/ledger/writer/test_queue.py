"""Callers on a loop: handed over together, let go in the end, and never forgotten."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from bonobot.ledger.refusals import AuditUnavailable
from bonobot.ledger.writer import queue
from bonobot.ledger.writer.batch_plan import Answer, build_open_item
from bonobot.ledger.writer.queue import BatchSizeEstimate, LoopWaiters, QueuedItem
from tests.bonobot.ledger.factories import opening_of

BOUND_S = 10.0


class Desk:
    """Takes what is handed over, and remembers in which parts it came."""

    def __init__(self, *, expected: int = 1, closed: bool = False) -> None:
        self.crowd = BatchSizeEstimate()
        self.crowd.expected = expected
        self.closed = closed
        self.parts: list[list[QueuedItem]] = []
        self.unheard: list[Answer] = []
        self.came = asyncio.Event()
        self.waiting = LoopWaiters(
            self.put, lambda _ticket, answer: self.unheard.append(answer), self.crowd
        )

    def put(self, tickets: Sequence[QueuedItem]) -> None:
        if self.closed:
            raise AuditUnavailable("this process is shutting down")
        self.parts.append(list(tickets))
        self.came.set()

    def caller(self, *, deadline: float = float("inf")) -> "asyncio.Task[object]":
        at = datetime.now(UTC)
        ticket = QueuedItem(build_open_item(opening_of(uuid4()), at), at, deadline=deadline)
        return asyncio.ensure_future(self.waiting.wait_for_answer(ticket))

    def answer(self) -> None:
        for ticket in (ticket for part in self.parts for ticket in part):
            assert ticket.future is not None
            ticket.future.set_result(ticket.item.call_id)


async def test_a_single_caller_is_delivered_immediately() -> None:
    desk = Desk()
    caller = desk.caller()
    await asyncio.sleep(0)
    assert [len(part) for part in desk.parts] == [1]
    desk.answer()
    assert await caller == desk.parts[0][0].item.call_id


async def test_as_many_items_as_expected_are_delivered_together() -> None:
    desk = Desk(expected=3)
    callers = [desk.caller() for _ in range(3)]
    await asyncio.sleep(0)
    assert [len(part) for part in desk.parts] == [3]
    desk.answer()
    await asyncio.gather(*callers)


async def test_fewer_items_than_expected_are_delivered_after_a_short_wait() -> None:
    desk = Desk(expected=9)
    callers = [desk.caller() for _ in range(2)]
    await asyncio.wait_for(desk.came.wait(), BOUND_S)
    assert [len(part) for part in desk.parts] == [2]
    desk.answer()
    await asyncio.gather(*callers)


async def test_an_item_is_processed_after_its_caller_left() -> None:
    desk = Desk(expected=9)
    caller = desk.caller()
    await asyncio.sleep(0)
    assert desk.parts == []
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert [len(part) for part in desk.parts] == [1]


async def test_an_answer_to_a_canceled_caller_is_reported_as_undelivered() -> None:
    desk = Desk()
    caller = desk.caller()
    await asyncio.sleep(0)
    desk.answer()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert desk.unheard == [desk.parts[0][0].item.call_id]


async def test_a_writer_that_stops_refuses_all_queued_items() -> None:
    desk = Desk(expected=2, closed=True)
    for refused in await asyncio.gather(desk.caller(), desk.caller(), return_exceptions=True):
        assert isinstance(refused, AuditUnavailable)


async def test_a_caller_that_gets_no_answer_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "CHECK_INTERVAL_S", 0.0)
    desk = Desk()
    late, patient = desk.caller(deadline=-queue.GRACE_S), desk.caller()
    with pytest.raises(AuditUnavailable):
        await asyncio.wait_for(late, BOUND_S)
    assert not patient.done()
    desk.parts[1][0].future.set_result("heard")  # type: ignore[union-attr]
    assert await patient == "heard"
