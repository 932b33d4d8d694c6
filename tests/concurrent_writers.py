"""Interleave two writers: one pauses after a statement until the other is blocked or done.

PostgreSQL only: SQLite serializes writers from their first statement.
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


class _Pause:
    """Pauses its thread after the first statement that starts with `at`."""

    def __init__(self, at: str) -> None:
        self._at = at
        self.reached = threading.Event()
        self.goes_on = threading.Event()

    def __call__(self, execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        result = execute(sql, *args)
        if sql.startswith(self._at) and not self.reached.is_set():
            self.reached.set()
            assert self.goes_on.wait(WAIT_S)
        return result


def run_crossed(first: Callable[[], Any], second: Callable[[], Any], *, at: str) -> tuple[Any, Any]:
    """Run `first` up to a statement that starts with `at`, then `second`, then the rest of `first`.

    `first` continues when `second` is blocked by it or done. Returns both results; raises the
    exception of either.
    """
    pause = _Pause(at)
    with ThreadPoolExecutor(2) as threads:
        first_result = threads.submit(_run_with_connection, first, pause)
        assert pause.reached.wait(WAIT_S), f"no statement began with {at!r}"
        try:
            second_result = _start_and_wait(threads, second)
        finally:
            pause.goes_on.set()
        return first_result.result(WAIT_S), second_result.result(WAIT_S)


def run_behind(blocking: Callable[[], Any], *operations: Callable[[], Any]) -> list[Any]:
    """Run `blocking` in a transaction that ends when each of `operations` is blocked or done.

    The operations start one after the other. Returns their results; raises their exceptions.
    """
    with ThreadPoolExecutor(len(operations)) as threads:
        with transaction.atomic():
            blocking()
            futures = [_start_and_wait(threads, operation) for operation in operations]
        return [operation.result(WAIT_S) for operation in futures]


def _start_and_wait(threads: ThreadPoolExecutor, work: Callable[[], Any]) -> "Future[Any]":
    """Start work on its own connection; return when it is blocked or done."""
    pid = Future[int]()
    future = threads.submit(_run_with_connection, work, None, pid)
    eventually(lambda: future.done() or _is_blocked(pid.result(WAIT_S)))
    return future


def _run_with_connection(
    work: Callable[[], Any], pause: _Pause | None, pid: Future[int] | None = None
) -> Any:
    try:
        if pid is not None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                pid.set_result(cursor.fetchone()[0])
        if pause is None:
            return work()
        with connection.execute_wrapper(pause):
            return work()
    finally:
        connections.close_all()


def _is_blocked(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
        return bool(cursor.fetchone()[0])
