"""The runtime's threads for database work: their number and their connections."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from bonobot.core import runtime as module
from bonobot.core.db.transactions import TransactionBatcher
from bonobot.core.runtime import close_runtime, get_runtime

WAIT_S = 5


@pytest.fixture(autouse=True)
def _close_runtime() -> Iterator[None]:
    close_runtime()
    yield
    close_runtime()


@pytest.mark.django_db(transaction=True)
def test_orm_work_runs_in_a_thread_and_returns_its_connection() -> None:
    """A pooled connection returns to the pool; a SQLite connection stays with its thread."""
    captured: dict[str, Any] = {}
    all_threads = threading.Barrier(module.ORM_THREADS)

    def query(number: int, *, plus: int) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s + %s", [number, plus])
            (total,) = cursor.fetchone()
        captured["thread"] = threading.current_thread().name
        captured["connection"] = connection.connection
        return int(total)

    async def work() -> int:
        return await get_runtime().run_orm(query, 40, plus=2)

    assert get_runtime().call(work) == 42
    assert str(captured["thread"]).startswith("orm")

    def is_open() -> bool:
        all_threads.wait(5)
        return connection.connection is not None

    async def check() -> list[bool]:
        numbers = range(module.ORM_THREADS)
        return await asyncio.gather(*(get_runtime().run_orm(is_open) for _ in numbers))

    is_sqlite = connection.vendor == "sqlite"
    assert sum(get_runtime().call(check)) == is_sqlite
    assert get_runtime().call(work) == 42
    close_runtime()
    if is_sqlite:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            captured["connection"].execute("SELECT 1")


@pytest.mark.django_db(transaction=True)
def test_a_sqlite_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SQLITE_CONNECTION_TTL_S", 0.0)
    opened: list[object] = []

    def connect() -> None:
        connection.ensure_connection()
        opened.append(connection.connection)

    def is_open() -> bool:
        return connection.connection is not None

    async def check() -> bool:
        await get_runtime().run_orm(connect)
        return await get_runtime().run_orm(is_open)

    assert not get_runtime().call(check)
    assert opened != [None]


def test_at_most_eight_orm_functions_run_at_once() -> None:
    lock = threading.Lock()
    running, maximum = 0, 0
    all_running = threading.Barrier(module.ORM_THREADS)

    def work() -> None:
        nonlocal running, maximum
        with lock:
            running += 1
            maximum = max(maximum, running)
        all_running.wait(WAIT_S)
        with lock:
            running -= 1

    async def run_many() -> None:
        await asyncio.gather(*(get_runtime().run_orm(work) for _ in range(3 * module.ORM_THREADS)))

    get_runtime().call(run_many)
    assert maximum == module.ORM_THREADS


def test_run_orm_outside_the_loop_is_refused() -> None:
    runtime = get_runtime()

    async def run() -> None:
        await runtime.run_orm(int)

    with pytest.raises(RuntimeError, match="belongs to the runtime's loop"):
        asyncio.run(run())


@pytest.fixture
def occupied_threads() -> Iterator[threading.Event]:
    """Occupy all ORM threads until the event is set."""
    release, all_threads = threading.Event(), threading.Barrier(module.ORM_THREADS + 1)

    def occupy() -> None:
        all_threads.wait(WAIT_S)
        release.wait(WAIT_S)

    runtime = get_runtime()
    for _ in range(module.ORM_THREADS):
        runtime.spawn(runtime.run_orm(occupy), name="occupy")
    all_threads.wait(WAIT_S)
    yield release
    release.set()


def test_work_that_has_not_started_is_dropped_when_its_caller_is_canceled(
    occupied_threads: threading.Event,
) -> None:
    executed: list[str] = []

    async def cancel_before_start() -> None:
        caller = asyncio.create_task(get_runtime().run_orm(executed.append, "canceled"))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait({caller})
        occupied_threads.set()
        await get_runtime().run_orm(executed.append, "next")

    get_runtime().call(cancel_before_start)
    assert executed == ["next"]


def test_callers_whose_work_has_not_started_are_canceled_when_the_runtime_closes(
    occupied_threads: threading.Event,
) -> None:
    runtime, callers = get_runtime(), list[asyncio.Task[Any]]()

    async def start_callers() -> None:
        callers.append(asyncio.create_task(runtime.run_orm(int)))
        callers.extend(asyncio.create_task(TransactionBatcher().run(int)) for _ in range(2))
        await asyncio.wait(callers, timeout=0)  # until they have started

    async def close_and_wait() -> None:
        closing = asyncio.create_task(runtime.aclose(WAIT_S))
        await asyncio.wait(callers, timeout=WAIT_S)
        occupied_threads.set()
        await closing

    runtime.call(start_callers)
    asyncio.run_coroutine_threadsafe(close_and_wait(), runtime.loop).result(2 * WAIT_S)
    assert [caller.cancelled() for caller in callers] == [True, True, True]
