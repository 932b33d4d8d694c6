"""Django's SQLite backend with a write queue."""

from sqlite3 import dbapi2 as Database
from typing import Any

from django.db import OperationalError
from django.db.backends.sqlite3 import base

from bonobot.core.db.sqlite.write_queue import WriteQueue, get_write_queue

__all__ = ["Database", "DatabaseWrapper"]

DEFAULT_TIMEOUT_S = 5.0


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection whose `BEGIN IMMEDIATE` first waits in the process's write queue."""

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
