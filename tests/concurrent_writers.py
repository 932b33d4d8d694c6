"""Two writers that cross: one stops behind a statement until the other waits for it, or is done.

PostgreSQL only: SQLite's writers are one behind the other from their first statement on.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections, transaction

from tests.wait import eventually

WAIT_S = 10.0

on_postgresql = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="SQLite's writers never wait for single rows"
)


class _Stopping:
    """Stops its thread behind the first statement that begins with `at`."""

    def __init__(self, at: str) -> None:
        self._at = at
        self.reached = threading.Event()
        self.goes_on = threading.Event()

    def __call__(self, execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        answer = execute(sql, *rest)
        if sql.startswith(self._at) and not self.reached.is_set():
            self.reached.set()
            assert self.goes_on.wait(WAIT_S)
        return answer


def cross(first: Callable[[], Any], second: Callable[[], Any], *, at: str) -> tuple[Any, Any]:
    """Do `first` up to a statement that begins with `at`, then `second`, then the rest of `first`.

    `first` goes on when `second` waits for it, or is over. Returns what both returned; raises what
    either raised.
    """
    stopping = _Stopping(at)
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(_done, first, stopping)
        assert stopping.reached.wait(WAIT_S), f"no statement began with {at!r}"
        try:
            other = _waiting(threads, second)
        finally:
            stopping.goes_on.set()
        return one.result(WAIT_S), other.result(WAIT_S)


def behind(blocking: Callable[[], Any], *operations: Callable[[], Any]) -> list[Any]:
    """Do `blocking` in a transaction that ends when all `operations`, begun in turn, wait or end.

    Returns what the operations returned; raises what any of them raised.
    """
    with ThreadPoolExecutor(len(operations)) as threads:
        with transaction.atomic():
            blocking()
            begun = [_waiting(threads, one) for one in operations]
        return [one.result(WAIT_S) for one in begun]


def _waiting(threads: ThreadPoolExecutor, work: Callable[[], Any]) -> "Future[Any]":
    """Begin work on a connection of its own; return when it waits for another one, or is over."""
    pid = Future[int]()
    begun = threads.submit(_done, work, None, pid)
    eventually(lambda: begun.done() or _waits(pid.result(WAIT_S)))
    return begun


def _done(
    work: Callable[[], Any], stopping: _Stopping | None, pid: Future[int] | None = None
) -> Any:
    try:
        if pid is not None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                pid.set_result(cursor.fetchone()[0])
        if stopping is None:
            return work()
        with connection.execute_wrapper(stopping):
            return work()
    finally:
        connections.close_all()


def _waits(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
        return bool(cursor.fetchone()[0])
