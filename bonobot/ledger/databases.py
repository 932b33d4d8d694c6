"""Databases: how the ledger's statements reach SQLite and PostgreSQL.

The statements are the same; what differs is here. Values go to PostgreSQL as text, which the
columns' types turn into what they are: a statement is then prepared once, not once for each size
of its numbers. On SQLite they are written as Django reads them there.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, Protocol
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from bonobot.ledger.sealing import Column
from bonobot.lib.sqlite.turns import turns

Row = Sequence[Any]


class Cursor(Protocol):
    """A cursor with the rows of a statement that was executed."""

    def fetchall(self) -> list[tuple[Any, ...]]: ...


class Database:
    """A Django connection, used through its own cursors: in a transaction of the application."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.is_sqlite = connection.vendor == "sqlite"

    def execute(self, sql: str, values: Row = ()) -> Cursor:
        """Execute one statement."""
        cursor = self.connection.cursor()
        cursor.execute(sql, values)
        return cursor

    def execute_each(self, sql: str, rows: Iterable[Row]) -> None:
        """Execute a statement for each row of values, if there are any."""
        if rows := self._sent(rows):
            self.connection.cursor().executemany(sql, rows)

    def uuid(self, value: UUID) -> str:
        """Return how a UUID is written."""
        return value.hex if self.is_sqlite else str(value)

    def written(self, columns: Sequence[Column], values: Row) -> Row:
        """Return sealed values as their columns are written."""
        if not self.is_sqlite:
            return values
        row = list(values)
        for index, converted in _converted(tuple(columns)):
            if row[index] is not None:
                row[index] = converted(row[index])
        return row

    def _sent(self, rows: Iterable[Row]) -> list[Row]:
        if self.is_sqlite:
            return list(rows)
        return [[None if value is None else str(value) for value in row] for row in rows]


class OwnDatabase(Database):
    """A connection of our own, without Django's care around each statement: for the hot path.

    Errors are the driver's own unless the caller is within `connection.wrap_database_errors`.
    """

    def execute(self, sql: str, values: Row = ()) -> Cursor:
        """Execute one statement."""
        cursor = self.connection.connection.cursor()
        cursor.execute(_qmark(sql) if self.is_sqlite else sql, values)
        return cursor

    def execute_each(self, sql: str, rows: Iterable[Row]) -> None:
        """Execute a statement for each row of values, if there are any."""
        if rows := self._sent(rows):
            cursor = self.connection.connection.cursor()
            cursor.executemany(_qmark(sql) if self.is_sqlite else sql, rows)

    def begin(self) -> None:
        """Open a transaction; on SQLite it takes the one write lock at once."""
        self.execute("BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN")

    def commit(self) -> None:
        """Commit what `begin` opened."""
        self.execute("COMMIT")

    def version(self) -> int:
        """Return a number that is another one once any other connection has committed (SQLite)."""
        found: int = self.execute("PRAGMA data_version").fetchall()[0][0]
        return found

    def turn(self, *, within_s: float) -> AbstractContextManager[None]:
        """Go before the other threads of this process that write, where only one can."""
        return turns().urgently(within_s=within_s) if self.is_sqlite else nullcontext()

    def pipelined(self) -> AbstractContextManager[Any]:
        """Send the block's statements without waiting for each answer, where that is possible."""
        if self.is_sqlite:
            return nullcontext()
        pipeline: AbstractContextManager[Any] = self.connection.connection.pipeline()
        return pipeline


@lru_cache(maxsize=16)
def _converted(columns: tuple[Column, ...]) -> tuple[tuple[int, Callable[[str], str]], ...]:
    """Return which values SQLite has in a form of its own, and how they come into it."""
    return tuple(
        (index, _AS_SQLITE[column.kind])
        for index, column in enumerate(columns)
        if column.kind in _AS_SQLITE
    )


_AS_SQLITE: dict[str, Callable[[str], str]] = {
    "uuid": lambda value: value.replace("-", ""),
    "time": lambda value: value[:26].replace("T", " "),
}


@lru_cache(maxsize=512)
def _qmark(sql: str) -> str:
    return sql.replace("%s", "?")
