"""The store: the SQL of the ledger, the same on SQLite and PostgreSQL.

Every function works on the Django connection that it is given, in the transaction that is open on
it. Locks are taken in one order, heads, budget cells, rate cells, each by key: an
`INSERT … ON CONFLICT DO UPDATE … RETURNING` creates, locks and reads rows in the order of its
VALUES (SQLite 3.35). Values go to PostgreSQL as text, which the columns' types turn into what they
are: a statement is then prepared once, not once for each size of its numbers.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from bonobot.ledger import sealing
from bonobot.ledger.budgets import Cell
from bonobot.ledger.chain import Tip
from bonobot.ledger.groups import Item, Needs, Sealed, State

Connection = BaseDatabaseWrapper


def _listed(names: Iterable[str], form: str = '"{}"') -> str:
    return ", ".join(form.format(name) for name in names)


_LOCK_HEADS = """
    INSERT INTO ledger_head (organization_id) VALUES {rows}
    ON CONFLICT (organization_id) DO UPDATE SET seq = ledger_head.seq
    RETURNING organization_id, seq, digest, generation, {clock}
"""
_LOCK_CELLS = """
    INSERT INTO ledger_budgetcell ("key", organization_id) VALUES {rows}
    ON CONFLICT ("key") DO UPDATE SET spent = ledger_budgetcell.spent
    RETURNING "key", spent, reserved
"""
_LOCK_RATES = """
    INSERT INTO ledger_ratecell ("key") VALUES {rows}
    ON CONFLICT ("key") DO UPDATE SET tat = ledger_ratecell.tat
    RETURNING "key", tat
"""
_CLOSABLE = """
    SELECT id, organization_id FROM ledger_auditrow
    WHERE closed_seq IS NULL AND id IN ({places})
"""
_WRITTEN = """
    SELECT id, ledger_auditrow.seq, opened, closed, generation
    FROM ledger_auditrow JOIN ledger_head USING (organization_id)
    WHERE id IN ({places})
"""
_OPENING = ("seq", "digest", "opened", *(column.name for column in sealing.OPENING))
# Built from the names of our own columns; values are always parameters.
_OPEN = "INSERT INTO ledger_auditrow ({}) VALUES ({})".format(  # noqa: S608
    _listed(_OPENING), _listed(_OPENING, "%s")
)
_CLOSING = ("closed_seq", "closed_digest", "closed", *(column.name for column in sealing.CLOSED))
_CLOSE = "UPDATE ledger_auditrow SET {} WHERE id = %s AND closed_seq IS NULL".format(  # noqa: S608
    _listed(_CLOSING, '"{}" = %s')
)
_SET_HEAD = (
    "UPDATE ledger_head SET seq = %s, digest = %s, generation = %s WHERE organization_id = %s"
)
_SET_CELL = 'UPDATE ledger_budgetcell SET spent = %s, reserved = %s WHERE "key" = %s'
_SET_RATE = 'UPDATE ledger_ratecell SET tat = %s WHERE "key" = %s'
_BUMP = """
    INSERT INTO ledger_head (organization_id, generation) VALUES (%s, 1)
    ON CONFLICT (organization_id) DO UPDATE SET generation = ledger_head.generation + 1
"""


class Written(NamedTuple):
    """A row as it was found: its place, its sealed texts, and its organization's generation."""

    seq: int
    opened: str
    closed: str
    generation: int


def begin(connection: Connection) -> None:
    """Open a transaction; on SQLite it takes the one write lock at once."""
    sql = "BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "BEGIN"
    connection.cursor().execute(sql)


def commit(connection: Connection) -> None:
    """Commit what `begin` opened."""
    connection.cursor().execute("COMMIT")


@contextmanager
def pipelined(connection: Connection) -> Iterator[None]:
    """Send the statements of the block without waiting for each answer, where that is possible."""
    if connection.vendor != "postgresql":
        yield
        return
    with connection.wrap_database_errors, connection.connection.pipeline():
        yield


def lock(connection: Connection, needs: Needs) -> Callable[[], State]:
    """Lock the rows of a group; return a function that reads them once the answers are there."""
    heads = _lock_heads(connection, needs.organizations)
    cells = _lock_rows(
        connection,
        _LOCK_CELLS,
        [(key, _uuid(connection, organization)) for key, organization in needs.cells],
    )
    rates = _lock_rows(connection, _LOCK_RATES, [(key,) for key in needs.rates])
    closable = _select(connection, _CLOSABLE, needs.closing)

    def read() -> State:
        tips, now = _tips(heads)
        return State(
            tips=tips,
            cells={key: Cell(spent, reserved) for key, spent, reserved in _fetched(cells)},
            rates=dict(_fetched(rates)),
            closable={_id(row): _id(organization) for row, organization in _fetched(closable)},
            now=now,
        )

    return read


def lock_heads(connection: Connection, organizations: Iterable[UUID]) -> dict[UUID, Tip]:
    """Lock the heads of some organizations, creating those that are missing."""
    return _tips(_lock_heads(connection, sorted(organizations)))[0]


def write_opened(connection: Connection, sealed: Sequence[Sealed]) -> None:
    """Insert rows with their first seal."""
    _many(
        connection,
        _OPEN,
        [(one.seq, one.digest, one.item.text, *_opening(connection, one.item)) for one in sealed],
    )


def write_closed(connection: Connection, sealed: Sequence[Sealed]) -> None:
    """Give open rows their second seal."""
    _many(
        connection,
        _CLOSE,
        [(one.seq, one.digest, one.item.text, *_closing(connection, one.item)) for one in sealed],
    )


def write_heads(connection: Connection, tips: Mapping[UUID, Tip]) -> None:
    """Store where the chains end now."""
    _many(
        connection,
        _SET_HEAD,
        [
            (tip.seq, tip.digest, tip.generation, _uuid(connection, organization))
            for organization, tip in tips.items()
        ],
    )


def write_cells(connection: Connection, cells: Mapping[str, Cell]) -> None:
    """Store budget cells."""
    _many(connection, _SET_CELL, [(cell.spent, cell.reserved, key) for key, cell in cells.items()])


def write_rates(connection: Connection, rates: Mapping[str, int]) -> None:
    """Store rate cells."""
    _many(connection, _SET_RATE, [(tat, key) for key, tat in rates.items()])


def bump(connection: Connection, organization_id: UUID) -> None:
    """Raise an organization's generation by one."""
    connection.cursor().execute(_BUMP, [_uuid(connection, organization_id)])


def written(connection: Connection, call_ids: Sequence[UUID]) -> dict[UUID, Written]:
    """Return the rows that exist of these, after a commit whose answer was lost."""
    rows = _fetched(_select(connection, _WRITTEN, call_ids))
    return {_id(row): Written(*found) for row, *found in rows}


# -- values and cursors of the two databases -----------------------------------------------------


def _uuid(connection: Connection, value: UUID) -> str:
    return value.hex if connection.vendor == "sqlite" else str(value)


def _id(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)


def _values(
    connection: Connection, columns: Sequence[sealing.Column], values: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Turn sealed values into column values; SQLite's are written as Django reads them there."""
    if connection.vendor != "sqlite":
        return values
    converted = list(values)
    for place, column in enumerate(columns):
        value = values[place]
        if value is None:
            continue
        if column.kind == "uuid":
            converted[place] = value.replace("-", "")
        elif column.kind == "time":
            converted[place] = value[:26].replace("T", " ")
    return tuple(converted)


def _opening(connection: Connection, item: Item) -> tuple[Any, ...]:
    return _values(connection, sealing.OPENING, item.columns)


def _closing(connection: Connection, item: Item) -> tuple[Any, ...]:
    columns = _values(connection, sealing.CLOSED, item.columns)
    return (*columns, _uuid(connection, item.call_id))


def _many(connection: Connection, sql: str, rows: list[tuple[Any, ...]]) -> None:
    if not rows:
        return
    if connection.vendor == "postgresql":
        rows = [tuple(None if value is None else str(value) for value in row) for row in rows]
    connection.cursor().executemany(sql, rows)


def _lock_heads(connection: Connection, organizations: Sequence[UUID]) -> CursorWrapper | None:
    # One clock for all hosts, read behind the lock.
    clock = "NULL"
    if connection.vendor == "postgresql":
        clock = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    rows = [(_uuid(connection, organization),) for organization in organizations]
    return _lock_rows(connection, _LOCK_HEADS.replace("{clock}", clock), rows)


def _lock_rows(
    connection: Connection, sql: str, rows: Sequence[tuple[str, ...]]
) -> CursorWrapper | None:
    if not rows:
        return None
    places = ", ".join([f"({', '.join(['%s'] * len(rows[0]))})"] * len(rows))
    cursor = connection.cursor()
    cursor.execute(sql.replace("{rows}", places), [value for row in rows for value in row])
    return cursor


def _select(connection: Connection, sql: str, ids: Sequence[UUID]) -> CursorWrapper | None:
    if not ids:
        return None
    # Filled up to a power of two: few different statements to prepare.
    filled = [*ids, *[ids[-1]] * ((1 << (len(ids) - 1).bit_length()) - len(ids))]
    cursor = connection.cursor()
    cursor.execute(
        sql.replace("{places}", ", ".join(["%s"] * len(filled))),
        [_uuid(connection, one) for one in filled],
    )
    return cursor


def _fetched(cursor: CursorWrapper | None) -> list[tuple[Any, ...]]:
    return cursor.fetchall() if cursor is not None else []


def _tips(cursor: CursorWrapper | None) -> tuple[dict[UUID, Tip], int]:
    now, tips = 0, {}
    for organization, seq, digest, generation, clock in _fetched(cursor):
        now = max(now, clock or 0)
        tips[_id(organization)] = Tip(seq, digest, generation)
    return tips, now or time.time_ns() // 1_000
