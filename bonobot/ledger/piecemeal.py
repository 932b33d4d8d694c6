"""Piecemeal: rows that take long to work out are kept aside, and written a few at a time.

For SQLite, where one writes and all others wait: what is read here blocks nobody, and each piece is
a short transaction of its own. Rows lie in a table of the connection's own (`temp`) meanwhile.
"""

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from django.db import connection, transaction
from django.db.models import QuerySet

AT_ONCE = 250
_TABLE = "temp.piecemeal"


class Aside:
    """Rows for a table, gathered by statements; they are let go of in the end.

    `check` runs at the beginning of each transaction and raises where it may not go on.
    """

    def __init__(self, table: str, columns: str, check: Callable[[], None]) -> None:
        self._table, self._columns, self._check = table, columns, check

    def __enter__(self) -> Self:
        self._drop()
        with connection.cursor() as cursor:
            # Our own names alone, here and below.
            like = f"SELECT {self._columns} FROM {self._table} WHERE 0"  # noqa: S608
            cursor.execute(f"CREATE TEMP TABLE piecemeal AS {like}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._drop()

    def gather(self, statements: Iterable[tuple[str, Sequence[Any]]]) -> None:
        """Keep what queries for these columns find."""
        for query, values in statements:
            with connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO {_TABLE} ({self._columns}) {query}", values)

    def replace(self, old: QuerySet[Any]) -> None:
        """Write what was gathered in place of other rows of the table."""
        while self._removed(old):
            pass
        written = 0
        while count := self._written(written):
            written += count

    def _removed(self, old: QuerySet[Any]) -> int:
        with transaction.atomic():
            self._check()
            keys = list(old.order_by().values_list("pk", flat=True)[:AT_ONCE])
            rows = old.model._base_manager.filter(pk__in=keys)
            return rows._raw_delete(rows.db) if keys else 0

    def _written(self, behind: int) -> int:
        with transaction.atomic(), connection.cursor() as cursor:
            self._check()
            cursor.execute(
                f"INSERT INTO {self._table} ({self._columns}) SELECT {self._columns}"  # noqa: S608
                f" FROM {_TABLE} WHERE rowid > %s AND rowid <= %s",
                [behind, behind + AT_ONCE],
            )
            return int(cursor.rowcount)

    def _drop(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {_TABLE}")
