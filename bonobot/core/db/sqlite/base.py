"""Django's SQLite backend with a queue of the process's threads for the write lock.

SQLite waiters poll the lock, up to 0.1 s apart: with many threads one of them may lose repeatedly
until it times out, even the ledger's writer, on which all calls wait. Here urgent writers go first
and the others one at a time. Other processes still compete for SQLite's own lock.
"""

import os
from sqlite3 import dbapi2 as Database
from threading import Condition, Lock
from typing import Any

from django.db import OperationalError
from django.db.backends.sqlite3 import base, operations

__all__ = ["Database", "DatabaseWrapper", "WriteQueue", "get_write_queue"]
DEFAULT_TIMEOUT_S = 5.0


class WriteQueue:
    """Admits one write transaction at a time, urgent ones first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._condition = Condition(self._lock)
        self._is_held = False
        self._waiters = 0
        self._urgent_waiters = 0

    def acquire(self, *, timeout_s: float, urgent: bool = False) -> bool:
        """Wait for the turn; return False on timeout."""
        with self._lock:
            if not self._is_held and (urgent or not self._urgent_waiters):
                self._is_held = True
                return True
            self._waiters += 1
            self._urgent_waiters += urgent
            try:
                acquired = self._condition.wait_for(
                    lambda: not self._is_held and (urgent or not self._urgent_waiters), timeout_s
                )
            finally:
                self._waiters -= 1
                self._urgent_waiters -= urgent
                self._condition.notify_all()
            self._is_held = self._is_held or acquired
            return acquired

    def release(self) -> None:
        """End the turn and admit the next writer."""
        with self._lock:
            self._is_held = False
            if self._waiters:
                self._condition.notify_all()


_turns = WriteQueue()


def get_write_queue() -> WriteQueue:
    return _turns


def _reset_after_fork() -> None:
    """Replace the queue: its holder doesn't exist in the child."""
    global _turns
    _turns = WriteQueue()


os.register_at_fork(after_in_child=_reset_after_fork)


class DatabaseOperations(operations.DatabaseOperations):
    """SQLite's operations with a compiler that keeps what it has compiled."""

    compiler_module = "bonobot.core.db.compiler"


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection whose `BEGIN IMMEDIATE` first waits in the process's write queue."""

    ops_class = DatabaseOperations
    _held_queue: WriteQueue | None = None

    def _start_transaction_under_autocommit(self) -> None:
        timeout_s = self.settings_dict["OPTIONS"].get("timeout", DEFAULT_TIMEOUT_S)
        queue = get_write_queue()
        if not queue.acquire(timeout_s=timeout_s):
            raise OperationalError("database is locked by another thread of this process")
        self._held_queue = queue
        try:
            super()._start_transaction_under_autocommit()  # type: ignore[misc]  # Django's stubs leave it out
        except BaseException:
            self._release_queue()
            raise

    def _commit(self) -> Any:
        try:
            return super()._commit()  # type: ignore[misc]  # Django's stubs leave it out
        finally:
            self._release_queue()

    def _rollback(self) -> Any:
        try:
            return super()._rollback()  # type: ignore[misc]  # Django's stubs leave it out
        finally:
            self._release_queue()

    def _close(self) -> Any:
        try:
            return super()._close()  # type: ignore[misc]  # Django's stubs leave it out
        finally:
            self._release_queue()

    def _release_queue(self) -> None:
        queue, self._held_queue = self._held_queue, None
        if queue is not None:
            queue.release()
