"""A queue of the process's threads for SQLite's write lock.

SQLite waiters poll the lock, up to 0.1 s apart: with many threads one of them may lose repeatedly
until it times out, even the ledger's writer, on which all calls wait. Here urgent writers go first
and the others one at a time. Other processes still compete for SQLite's own lock.
"""

import os
from threading import Condition, Lock


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
