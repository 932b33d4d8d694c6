"""Callers on an event loop: delivered in batches, answered or released."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from bonobot.ledger.admission import AuditUnavailable
from bonobot.ledger.writer import queue
from bonobot.ledger.writer.batch_plan import Answer, build_open_item
from bonobot.ledger.writer.queue import BatchSizeEstimate, LoopWaiters, QueuedItem
from tests.bonobot.ledger.factories import opening_of

TIMEOUT_S = 10.0


class FakeQueue:
    """Records the batches that are delivered."""

    def __init__(self, *, expected: int = 1, closed: bool = False) -> None:
        self.estimate = BatchSizeEstimate()
        self.estimate.expected = expected
        self.closed = closed
        self.batches: list[list[QueuedItem]] = []
        self.undelivered: list[Answer] = []
        self.delivered = asyncio.Event()
        self.waiters = LoopWaiters(
            self.put, lambda _queued, answer: self.undelivered.append(answer), self.estimate
        )

    def put(self, tickets: Sequence[QueuedItem]) -> None:
        if self.closed:
            raise AuditUnavailable("this process is shutting down")
        self.batches.append(list(tickets))
        self.delivered.set()

    def call(self, *, deadline: float = float("inf")) -> "asyncio.Task[object]":
        at = datetime.now(UTC)
        queued = QueuedItem(build_open_item(opening_of(uuid4()), at), at, deadline=deadline)
        return asyncio.ensure_future(self.waiters.wait_for_answer(queued))

    def answer_all(self) -> None:
        for queued in (queued for batch in self.batches for queued in batch):
            assert queued.future is not None
            queued.future.set_result(queued.item.call_id)


async def test_a_single_caller_is_delivered_immediately() -> None:
    fake = FakeQueue()
    caller = fake.call()
    await asyncio.sleep(0)
    assert [len(batch) for batch in fake.batches] == [1]
    fake.answer_all()
    assert await caller == fake.batches[0][0].item.call_id


async def test_as_many_items_as_expected_are_delivered_together() -> None:
    fake = FakeQueue(expected=3)
    callers = [fake.call() for _ in range(3)]
    await asyncio.sleep(0)
    assert [len(batch) for batch in fake.batches] == [3]
    fake.answer_all()
    await asyncio.gather(*callers)


async def test_fewer_items_than_expected_are_delivered_after_a_short_wait() -> None:
    fake = FakeQueue(expected=9)
    callers = [fake.call() for _ in range(2)]
    await asyncio.wait_for(fake.delivered.wait(), TIMEOUT_S)
    assert [len(batch) for batch in fake.batches] == [2]
    fake.answer_all()
    await asyncio.gather(*callers)


async def test_an_item_is_processed_after_its_caller_left() -> None:
    fake = FakeQueue(expected=9)
    caller = fake.call()
    await asyncio.sleep(0)
    assert fake.batches == []
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert [len(batch) for batch in fake.batches] == [1]


async def test_an_answer_to_a_canceled_caller_is_reported_as_undelivered() -> None:
    fake = FakeQueue()
    caller = fake.call()
    await asyncio.sleep(0)
    fake.answer_all()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert fake.undelivered == [fake.batches[0][0].item.call_id]


async def test_a_writer_that_stops_refuses_all_queued_items() -> None:
    fake = FakeQueue(expected=2, closed=True)
    for result in await asyncio.gather(fake.call(), fake.call(), return_exceptions=True):
        assert isinstance(result, AuditUnavailable)


async def test_a_caller_that_gets_no_answer_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "CHECK_INTERVAL_S", 0.0)
    fake = FakeQueue()
    late, patient = fake.call(deadline=-queue.GRACE_S), fake.call()
    with pytest.raises(AuditUnavailable):
        await asyncio.wait_for(late, TIMEOUT_S)
    assert not patient.done()
    fake.batches[1][0].future.set_result("heard")  # type: ignore[union-attr]
    assert await patient == "heard"
