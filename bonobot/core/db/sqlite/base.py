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

    _turn: WriteQueue | None = None

    def _start_transaction_under_autocommit(self) -> None:
        within_s = self.settings_dict["OPTIONS"].get("timeout", DEFAULT_TIMEOUT_S)
        queue = get_write_queue()
        if not queue.take(within_s=within_s):
            raise OperationalError("database is locked by another thread of this process")
        self._turn = queue
        try:
            super()._start_transaction_under_autocommit()  # type: ignore[misc]  # Django's stubs leave it out
        except BaseException:
            self._leave()
            raise

    def _commit(self) -> Any:
        try:
            return super()._commit()  # type: ignore[misc]  # Django's stubs leave it out
        finally:
            self._leave()

    def _rollback(self) -> Any:
        try:
            return super()._rollback()  # type: ignore[misc]  # Django's stubs leave it out
        finally:
            self._leave()

    def _close(self) -> Any:
        try:
            return super()._close()  # type: ignore[misc]  # Django's stubs leave it out
        finally:
            self._leave()

    def _leave(self) -> None:
        queue, self._turn = self._turn, None
        if queue is not None:
            queue.give()
