"""The runtime's threads for database work: how many, and what becomes of their connections."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from bonobot.core import runtime as module
from bonobot.core.runtime import close_runtime, get_runtime

WAIT_S = 5


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    close_runtime()
    yield
    close_runtime()


@pytest.mark.django_db(transaction=True)
def test_orm_work_runs_in_a_thread_and_returns_its_connection() -> None:
    """One of a pool goes back to it; one to SQLite's file stays with its thread until the end."""
    seen: dict[str, Any] = {}
    beside_each_other = threading.Barrier(module.ORM_THREADS)

    def query(number: int, *, plus: int) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s + %s", [number, plus])
            (found,) = cursor.fetchone()
        seen["thread"] = threading.current_thread().name
        seen["connection"] = connection.connection
        return int(found)

    async def work() -> int:
        return await get_runtime().run_orm(query, 40, plus=2)

    assert get_runtime().call(work) == 42
    assert str(seen["thread"]).startswith("orm")

    def is_open() -> bool:
        beside_each_other.wait(5)
        return connection.connection is not None

    async def look() -> list[bool]:
        each = range(module.ORM_THREADS)
        return await asyncio.gather(*(get_runtime().run_orm(is_open) for _ in each))

    on_file = connection.vendor == "sqlite"
    assert sum(get_runtime().call(look)) == on_file
    assert get_runtime().call(work) == 42
    close_runtime()
    if on_file:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            seen["connection"].execute("SELECT 1")


@pytest.mark.django_db(transaction=True)
def test_a_sqlite_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SQLITE_CONNECTION_TTL_S", 0.0)
    seen: list[object] = []

    def ask() -> None:
        connection.ensure_connection()
        seen.append(connection.connection)

    def is_open() -> bool:
        return connection.connection is not None

    async def look() -> bool:
        await get_runtime().run_orm(ask)
        return await get_runtime().run_orm(is_open)

    assert not get_runtime().call(look)
    assert seen != [None]


def test_at_most_eight_orm_functions_run_at_once() -> None:
    lock = threading.Lock()
    running, most = 0, 0
    full = threading.Barrier(module.ORM_THREADS)

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        full.wait(WAIT_S)
        with lock:
            running -= 1

    async def crowd() -> None:
        await asyncio.gather(*(get_runtime().run_orm(work) for _ in range(3 * module.ORM_THREADS)))

    get_runtime().call(crowd)
    assert most == module.ORM_THREADS


def test_run_orm_outside_the_loop_is_refused() -> None:
    found = get_runtime()

    async def elsewhere() -> None:
        await found.run_orm(int)

    with pytest.raises(RuntimeError, match="belongs to the runtime's loop"):
        asyncio.run(elsewhere())
