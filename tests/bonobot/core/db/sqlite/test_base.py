"""Threads of a process write to SQLite one at a time, the ledger writer first."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import OperationalError, connection

from bonobot.core.db.database_url import build_database_settings as sqlite
from bonobot.core.db.sqlite import base
from bonobot.core.db.sqlite.base import DatabaseWrapper, WriteQueue, get_write_queue
from tests.wait import eventually

WAIT_S = 20.0


@pytest.fixture
def queue() -> WriteQueue:
    return WriteQueue()


def start_waiting(
    queue: WriteQueue, order: list[str], name: str, *, urgent: bool
) -> threading.Thread:
    def wait() -> None:
        assert queue.acquire(timeout_s=WAIT_S, urgent=urgent)
        order.append(name)
        queue.release()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def list_waiters(queue: WriteQueue) -> list[object]:
    return list(queue._condition._waiters)  # type: ignore[attr-defined]


def test_an_urgent_writer_goes_before_earlier_ones(queue: WriteQueue) -> None:
    order: list[str] = []
    assert queue.acquire(timeout_s=0)
    threads = []
    for name in ("first", "second", "writer"):
        threads.append(start_waiting(queue, order, name, urgent=name == "writer"))
        eventually(lambda: len(list_waiters(queue)) == len(threads))
    queue.release()
    for thread in threads:
        thread.join(WAIT_S)
    assert order[0] == "writer"
    assert sorted(order) == ["first", "second", "writer"]


def test_a_writer_that_waits_too_long_fails_and_leaves_the_queue(queue: WriteQueue) -> None:
    assert queue.acquire(timeout_s=0)
    assert not queue.acquire(timeout_s=0.01, urgent=True)
    assert not queue.acquire(timeout_s=0.01)
    queue.release()
    assert queue.acquire(timeout_s=0)


def test_a_forked_process_has_its_own_queue() -> None:
    before = get_write_queue()
    try:
        base._reset_after_fork()
        assert get_write_queue() is not before
        assert get_write_queue().acquire(timeout_s=0)
    finally:
        base._turns = before


@pytest.fixture
def database(tmp_path: Path, transactional_db: None) -> Iterator[DatabaseWrapper]:
    """A SQLite database of its own, whichever database the tests use."""
    overrides = sqlite(f"sqlite:///{tmp_path}/turns.sqlite3", var=tmp_path, pool_size=1)
    wrapper = DatabaseWrapper({**connection.settings_dict, **overrides}, "beside")
    with wrapper.cursor() as cursor:
        cursor.execute("CREATE TABLE told (word TEXT PRIMARY KEY)")
    yield wrapper
    wrapper.close()


def begin(database: DatabaseWrapper) -> None:
    database.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_a_transaction_always_releases_its_turn(database: DatabaseWrapper, end: str) -> None:
    begin(database)
    assert not get_write_queue().acquire(timeout_s=0)
    getattr(database, end)()
    assert get_write_queue().acquire(timeout_s=0)
    get_write_queue().release()


def test_a_transaction_waits_for_its_turn_as_long_as_for_the_lock(
    database: DatabaseWrapper,
) -> None:
    database.settings_dict["OPTIONS"]["timeout"] = 0.05
    assert get_write_queue().acquire(timeout_s=0)
    try:
        with pytest.raises(OperationalError, match="locked"):
            begin(database)
    finally:
        get_write_queue().release()
    begin(database)
    database.commit()


def test_a_transaction_that_cant_begin_releases_its_turn(database: DatabaseWrapper) -> None:
    other_database = DatabaseWrapper(database.settings_dict, "other")
    with database.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 50")
    with other_database.cursor() as cursor:
        cursor.execute("BEGIN IMMEDIATE")  # as another process would
    with pytest.raises(OperationalError, match="locked"):
        begin(database)
    other_database.close()
    assert get_write_queue().acquire(timeout_s=0)
    get_write_queue().release()
