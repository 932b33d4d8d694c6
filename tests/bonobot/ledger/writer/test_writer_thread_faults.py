"""The writer when the database, an item, a caller or the process fails."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection

from bonobot.ledger.admission import AuditUnavailable, CallAlreadyStarted
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import Admission, BudgetReservation, Opening, RateCharge, Settlement
from bonobot.ledger.writer import committer, queue
from bonobot.ledger.writer import writer_thread as writers
from bonobot.ledger.writer.sql import DedicatedLedgerDatabase
from bonobot.ledger.writer.writer_thread import LedgerWriter
from tests.bonobot.ledger.factories import in_thread, load_balance
from tests.ledger_chain import verify_whole_chain
from tests.tcp_relay import open_relay
from tests.wait import eventually

WAIT_S = 30.0
OpeningFactory = Callable[..., Opening]
WriterFactory = Callable[..., LedgerWriter]


def build_settlement(call: Opening, *actuals: tuple[str, int, int]) -> Settlement:
    return Settlement(
        call_id=call.call_id,
        organization_id=call.organization_id,
        outcome="ok",
        duration_ms=1,
        actuals=actuals,
    )


@pytest.fixture
def lock_database(transactional_db: None) -> Callable[[], AbstractContextManager[None]]:
    """Return a context in which another connection holds the lock of every batch."""

    @contextmanager
    def hold() -> Iterator[None]:
        other_database = committer.open_database()
        other_database.connection.inc_thread_sharing()  # released in another thread by async tests
        other_database.execute("BEGIN IMMEDIATE" if other_database.is_sqlite else "BEGIN")
        if not other_database.is_sqlite:
            other_database.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            other_database.execute("LOCK TABLE ledger_head IN EXCLUSIVE MODE")
        try:
            yield
        finally:
            other_database.commit()
            other_database.connection.close()

    return hold


@pytest.fixture
def lock_met() -> Iterator[threading.Event]:
    """Return an event that is set when the writer waits for the lock."""
    event = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "can't be written" in record.getMessage():
                event.set()

    listener = Listener()
    writers.logger.addHandler(listener)
    yield event
    writers.logger.removeHandler(listener)


class Commits:
    """Replaces commits: counts them, and can delay them, fail them, or lose their response."""

    def __init__(self) -> None:
        self.count = 0
        self.held: threading.Event | None = None
        self.reached = threading.Event()
        self.lost: set[int] = set()  # committed, but the response is lost
        self.failed: set[int] = set()  # not committed
        self.commit = DedicatedLedgerDatabase.commit

    def __call__(self, database: DedicatedLedgerDatabase) -> None:
        self.count += 1
        self.reached.set()
        if self.held is not None:
            assert self.held.wait(WAIT_S)
        if self.count in self.failed:
            raise OperationalError("the connection is gone")
        self.commit(database)
        if self.count in self.lost:
            raise OperationalError("the connection is gone")


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    commits = Commits()
    monkeypatch.setattr(DedicatedLedgerDatabase, "commit", lambda database: commits(database))
    return commits


def test_a_call_waits_while_the_database_is_locked_briefly(
    writer: LedgerWriter, opening: OpeningFactory, lock_database: Any, lock_met: threading.Event
) -> None:
    with lock_database():
        future = writer.admit_call(Admission(opening()))
        assert lock_met.wait(WAIT_S)
    assert future.result(WAIT_S).seq == 1


def test_calls_are_refused_while_the_database_stays_locked_and_admitted_afterwards(
    start_writer: WriterFactory, opening: OpeningFactory, lock_database: Any, organization_id: UUID
) -> None:
    writer = start_writer(deadline_s=1)
    running = opening()
    writer.admit_call(Admission(running, (BudgetReservation("budget:x", 10, 7),))).result(WAIT_S)
    with lock_database():
        for _ in range(2):  # it is locked for longer than any deadline
            admission = writer.admit_call(
                Admission(opening(), (BudgetReservation("budget:x", 10, 1),))
            )
            with pytest.raises(AuditUnavailable) as raised:
                admission.result(WAIT_S)
            assert raised.value.retry_after == 1
        settled = writer.settle_call(build_settlement(running, ("budget:x", 7, 5)))
        assert isinstance(settled.exception(WAIT_S), AuditUnavailable)
    writer.admit_call(Admission(opening())).result(WAIT_S)
    # The call ran, so its settlement was kept although its caller got an error.
    assert AuditRow.objects.get(pk=running.call_id).outcome == "ok"
    assert load_balance("budget:x") == (5, 0)
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows, report.seq) == (True, 2, 3)


def test_an_item_that_fails_doesnt_fail_its_batch(
    writer: LedgerWriter,
    opening: OpeningFactory,
    lock_database: Any,
    lock_met: threading.Event,
    organization_id: UUID,
) -> None:
    open_call = opening()
    writer.admit_call(Admission(open_call)).result(WAIT_S)
    with lock_database():
        futures: list[Future[Any]] = [writer.admit_call(Admission(opening()))]
        assert lock_met.wait(WAIT_S)  # the following items join this batch
        futures += [writer.admit_call(Admission(opening())) for _ in range(4)]
        charge = RateCharge("rate:x", 1, 10**13, cost=10**13)  # its time doesn't fit into 64 bits
        failing = writer.admit_call(Admission(opening(), charges=(charge,)))
        futures += [
            writer.record_refusal(opening(code="denied")),
            writer.settle_call(build_settlement(open_call)),
        ]
    with pytest.raises(AuditUnavailable, match="entry"):
        failing.result(WAIT_S)
    for future in futures:
        assert future.exception(WAIT_S) is None
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows, report.seq) == (True, 7, 8)


def test_a_call_that_another_writer_opened_isnt_opened_again(
    writer: LedgerWriter, opening: OpeningFactory, caplog: pytest.LogCaptureFixture
) -> None:
    call = opening()
    writer.admit_call(Admission(call)).result(WAIT_S)
    with pytest.raises(CallAlreadyStarted):
        writer.admit_call(Admission(opening(call_id=call.call_id))).result(WAIT_S)
    assert "Traceback" not in caplog.text
    assert writer.settle_call(build_settlement(call)).result(WAIT_S) is True


def test_a_commit_whose_answer_was_lost_isnt_repeated(
    writer: LedgerWriter, opening: OpeningFactory, commits: Commits, organization_id: UUID
) -> None:
    commits.lost = {1, 3, 5}
    call = opening()
    assert (
        writer.admit_call(Admission(call, (BudgetReservation("budget:x", 10, 7),)))
        .result(WAIT_S)
        .seq
        == 1
    )
    assert writer.admit_call(Admission(opening())).result(WAIT_S).seq == 2
    assert writer.settle_call(build_settlement(call, ("budget:x", 7, 5))).result(WAIT_S) is True
    denied_call = opening(decision="deny", code="denied")
    assert writer.admit_call(Admission(opening())).result(WAIT_S).seq == 4
    assert writer.record_refusal(denied_call).result(WAIT_S) == denied_call.call_id
    assert load_balance("budget:x") == (5, 0)
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows, report.seq) == (True, 4, 5)


def test_a_failed_commit_is_retried(
    writer: LedgerWriter, opening: OpeningFactory, commits: Commits, organization_id: UUID
) -> None:
    commits.failed = {1, 2}
    assert writer.admit_call(Admission(opening())).result(WAIT_S).seq == 1
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows, commits.count) == (True, 1, 3)


def test_a_call_that_may_have_been_opened_after_its_deadline_is_closed(
    start_writer: WriterFactory, opening: OpeningFactory, commits: Commits
) -> None:
    writer = start_writer(deadline_s=1)
    commits.lost, commits.held = {1}, threading.Event()
    call, deadline = opening(), time.monotonic() + 1
    future = writer.admit_call(Admission(call, (BudgetReservation("budget:x", 10, 7),)))
    assert commits.reached.wait(WAIT_S)
    eventually(lambda: time.monotonic() > deadline)
    commits.held.set()
    assert isinstance(future.exception(WAIT_S), AuditUnavailable)
    _check_canceled(call)


@pytest.mark.postgres
def test_a_database_that_refuses_connections_doesnt_end_the_writer(
    writer: LedgerWriter,
    opening: OpeningFactory,
    lock_met: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = connection.settings_dict
    with open_relay(str(server["HOST"]), int(server["PORT"] or 5432)) as relay:
        monkeypatch.setitem(server, "HOST", "127.0.0.1")
        monkeypatch.setitem(server, "PORT", relay.port)
        relay.disconnect()
        future = writer.admit_call(Admission(opening()))
        assert lock_met.wait(WAIT_S)  # it has reported the outage
        relay.reconnect()
        assert future.result(WAIT_S).seq == 1


@pytest.mark.postgres
def test_a_cut_connection_is_replaced(writer: LedgerWriter, opening: OpeningFactory) -> None:
    writer.admit_call(Admission(opening())).result(WAIT_S)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = %s",
            [committer.APPLICATION_NAME],
        )
        assert cursor.fetchone()[0] >= 1
    assert writer.admit_call(Admission(opening())).result(WAIT_S).seq == 2


async def test_a_caller_that_leaves_before_the_commit_leaves_no_entry(
    writer: LedgerWriter, opening: OpeningFactory, lock_database: Any, lock_met: threading.Event
) -> None:
    hold = lock_database()
    await asyncio.to_thread(hold.__enter__)
    task = asyncio.create_task(writer.admit_call_async(Admission(opening())))
    assert await asyncio.to_thread(lock_met.wait, WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(hold.__exit__, None, None, None)
    call = opening()
    await writer.admit_call_async(Admission(call))
    rows = await in_thread(lambda: list(AuditRow.objects.values_list("id", flat=True)))
    assert rows == [call.call_id]


async def test_the_call_of_a_caller_that_leaves_during_the_commit_is_closed(
    writer: LedgerWriter, opening: OpeningFactory, commits: Commits
) -> None:
    commits.held = threading.Event()
    call = opening()
    task = asyncio.create_task(
        writer.admit_call_async(Admission(call, (BudgetReservation("budget:x", 10, 7),)))
    )
    assert await asyncio.to_thread(commits.reached.wait, WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    commits.held.set()
    await in_thread(_check_canceled, call)


def test_the_call_of_a_closed_event_loop_is_closed(
    writer: LedgerWriter, opening: OpeningFactory, commits: Commits
) -> None:
    commits.held = threading.Event()
    call = opening()

    async def start_and_cancel() -> None:
        waiting = asyncio.create_task(
            writer.admit_call_async(Admission(call, (BudgetReservation("budget:x", 10, 7),)))
        )
        await asyncio.to_thread(commits.reached.wait, WAIT_S)
        waiting.cancel()

    asyncio.run(start_and_cancel())
    commits.held.set()
    _check_canceled(call)


def _check_canceled(call: Opening) -> None:
    eventually(AuditRow.objects.filter(pk=call.call_id, outcome="cancelled").exists)
    assert load_balance("budget:x") == (0, 0)
    assert verify_whole_chain(call.organization_id).ok


async def test_an_event_loop_waits_for_a_hanging_writer_until_its_deadline(
    start_writer: WriterFactory,
    opening: OpeningFactory,
    commits: Commits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "GRACE_S", 0.1)
    writer = start_writer(deadline_s=0.5)
    commits.held = threading.Event()
    call = opening()
    with pytest.raises(AuditUnavailable):
        await writer.admit_call_async(Admission(call, (BudgetReservation("budget:x", 10, 7),)))
    commits.held.set()
    await in_thread(_check_canceled, call)


def test_a_crash_of_the_writer_fails_its_callers_and_another_writer_takes_over(
    transactional_db: None, opening: OpeningFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", crashes.append)
    with monkeypatch.context() as broken:
        broken.setattr(committer.batch_plan, "decide_batch", None)
        broken.setattr(writers, "ITEM_ERRORS", ())
        future = writers.get_writer().admit_call(Admission(opening()))
        assert isinstance(future.exception(WAIT_S), AuditUnavailable)
    eventually(lambda: crashes)
    assert writers.get_writer().admit_call(Admission(opening())).result(WAIT_S).seq == 1
    writers.close_writer()
