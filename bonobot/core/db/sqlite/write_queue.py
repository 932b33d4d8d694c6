"""Threads queue for the write lock.

SQLite lets whoever waits ask again now and then, up to a tenth of a second apart: with many threads
the one that is asleep loses again and again, and the ledger's writer, on which all calls wait,
gives up although nothing is wrong. Here the writer goes first, and the others one by one. Other
processes are met at SQLite's own lock, as before.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class WriteQueue:
    """Who may open a transaction that writes: one at a time, the urgent ones first."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._taken = False
        self._urgent = 0

    def take(self, *, within_s: float, urgent: bool = False) -> bool:
        """Wait for the turn; False where it didn't come in time."""
        with self._changed:
            self._urgent += urgent
            try:
                came = self._changed.wait_for(
                    lambda: not self._taken and (urgent or not self._urgent), within_s
                )
            finally:
                self._urgent -= urgent
                self._changed.notify_all()
            self._taken = self._taken or came
            return came

    def give(self) -> None:
        """Let the next one in."""
        with self._changed:
            self._taken = False
            self._changed.notify_all()

    @contextmanager
    def urgently(self, *, within_s: float) -> Iterator[None]:
        """Go before the others; without the turn in time, SQLite's own lock decides."""
        came = self.take(within_s=within_s, urgent=True)
        try:
            yield
        finally:
            if came:
                self.give()


_turns = WriteQueue()


def get_write_queue() -> WriteQueue:
    """Return the process's queue."""
    return _turns


def _reset_after_fork() -> None:
    """Begin anew: who held the turn isn't here."""
    global _turns
    _turns = WriteQueue()


os.register_at_fork(after_in_child=_reset_after_fork)
