"""The store: the SQL of the ledger, the same on SQLite and PostgreSQL.

Every function works in the transaction that is open on the database it is given. Locks are taken
in one order, heads, budget cells, rate cells, flow cells, each by key: an `INSERT … ON CONFLICT DO
UPDATE … RETURNING` creates, locks and reads rows in the order of its VALUES (SQLite 3.35).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from bonobot.ledger import sealing
from bonobot.ledger.budgets import Cell
from bonobot.ledger.chain import Tip
from bonobot.ledger.databases import Cursor, Database, Row
from bonobot.ledger.flows import Held
from bonobot.ledger.groups import Needs, Sealed, State, StoreTaint
from bonobot.ledger.permits import Granted
from bonobot.lib.ordered_ids import ordered_id

POSTGRESQL_CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

Key = TypeVar("Key")
Value = TypeVar("Value")


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
_LOCK_FLOWS = """
    INSERT INTO ledger_flowcell ("key", organization_id) VALUES {rows}
    ON CONFLICT ("key") DO UPDATE SET labels = ledger_flowcell.labels
    RETURNING "key", labels, touched
"""
# Permits are only ever changed under the lock of their organization's head.
_PERMITS = """
    SELECT id, organization_id, digest, expires, spent_by FROM ledger_permitrow
    WHERE id IN ({places})
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
OPENING = ("seq", "digest", "opened", *(column.name for column in sealing.OPENING))
# Built from the names of our own columns; values are always parameters.
_OPEN = "INSERT INTO ledger_auditrow ({}) VALUES ({})".format(  # noqa: S608
    _listed(OPENING), _listed(OPENING, "%s")
)
CLOSING = ("closed_seq", "closed_digest", "closed", *(column.name for column in sealing.CLOSING))
_CLOSE = "UPDATE ledger_auditrow SET {} WHERE id = %s AND closed_seq IS NULL".format(  # noqa: S608
    _listed(CLOSING, '"{}" = %s')
)
# Without a code that of the opening stays, and SQLite leaves the index of codes alone.
_CLOSE_WELL = _CLOSE.replace(', "code" = %s', "")
_SET_HEAD = (
    "UPDATE ledger_head SET seq = %s, digest = %s, generation = %s WHERE organization_id = %s"
)
_SET_CELL = 'UPDATE ledger_budgetcell SET spent = %s, reserved = %s WHERE "key" = %s'
_SET_RATES = """
    INSERT INTO ledger_ratecell ("key", tat) VALUES {rows}
    ON CONFLICT ("key") DO UPDATE SET tat = excluded.tat
"""
TAINT = ("id", "key", "organization_id", "labels", "call_id", "session_id", "created")
_TAINT = "INSERT INTO ledger_storelabel ({}) VALUES ({})".format(  # noqa: S608
    _listed(TAINT), _listed(TAINT, "%s")
)
_SET_FLOW = 'UPDATE ledger_flowcell SET labels = %s, touched = %s WHERE "key" = %s'
_SPEND = "UPDATE ledger_permitrow SET spent_by = %s WHERE id = %s AND spent_by IS NULL"
_REMOVE = "DELETE FROM ledger_auditrow WHERE organization_id = %s AND seq <= %s"
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


class Gate(NamedTuple):
    """A condition that an UPDATE has beside its own, and the condition's values."""

    sql: str = ""
    values: Row = ()


OPEN_GATE = Gate()


def lock(database: Database, needs: Needs) -> Callable[[], State]:
    """Lock the rows of a group; return a function that reads them once the answers are there."""
    heads = _lock_heads(database, needs.organizations)
    cells = execute_rows(database, _LOCK_CELLS, _owned(database, needs.cells))
    rates = execute_rows(database, _LOCK_RATES, [(key,) for key in needs.rates])
    flows = execute_rows(database, _LOCK_FLOWS, _owned(database, needs.flows))
    permits = _select(database, _PERMITS, needs.permits)
    closable = _select(database, _CLOSABLE, needs.closing)

    def read() -> State:
        tips, now = _tips(heads)
        return State(
            tips=tips,
            cells={key: Cell(spent, reserved) for key, spent, reserved in _rows(cells)},
            rates=dict(_rows(rates)),
            closable={_id(row): _id(organization) for row, organization in _rows(closable)},
            now=now,
            flows={key: Held(labels, touched) for key, labels, touched in _rows(flows)},
            permits={_id(row): _granted(*facts) for row, *facts in _rows(permits)},
        )

    return read


def lock_heads(database: Database, organizations: Iterable[UUID]) -> dict[UUID, Tip]:
    """Lock the heads of some organizations, creating those that are missing."""
    return _tips(_lock_heads(database, sorted(organizations)))[0]


def write_opened(database: Database, sealed: Sequence[Sealed]) -> None:
    """Insert rows with their first seal."""
    database.execute_each(_OPEN, [opening(database, one) for one in sealed])


def write_closed(database: Database, sealed: Sequence[Sealed], gate: Gate = OPEN_GATE) -> None:
    """Give open rows their second seal."""
    well: list[Row] = []
    others: list[Row] = []
    for one in sealed:
        row, call_id = _closing(database, one), database.uuid(one.item.call_id)
        if row[-1] is None:
            well.append((*row[:-1], call_id, *gate.values))
        else:
            others.append((*row, call_id, *gate.values))
    database.execute_each(_CLOSE_WELL + gate.sql, well)
    database.execute_each(_CLOSE + gate.sql, others)


def write_heads(database: Database, tips: Mapping[UUID, Tip]) -> None:
    """Store where the chains end now."""
    database.execute_each(
        _SET_HEAD,
        [
            (tip.seq, tip.digest, tip.generation, database.uuid(organization))
            for organization, tip in tips.items()
        ],
    )


def write_cells(database: Database, cells: Mapping[str, Cell], gate: Gate = OPEN_GATE) -> None:
    """Store budget cells."""
    rows = [(cell.spent, cell.reserved, key, *gate.values) for key, cell in cells.items()]
    database.execute_each(_SET_CELL + gate.sql, rows)


def write_rates(database: Database, rates: Mapping[str, int]) -> None:
    """Store rate cells."""
    execute_rows(database, _SET_RATES, list(rates.items()))


def write_flows(database: Database, flows: Mapping[str, Held]) -> None:
    """Store what callers hold."""
    rows = [(held.labels, held.touched, key) for key, held in flows.items()]
    database.execute_each(_SET_FLOW, rows)


def write_taints(database: Database, taints: Sequence[StoreTaint]) -> None:
    """Store which calls brought labels to stores."""
    database.execute_each(_TAINT, [taint_row(database, one) for one in taints])


def taint_row(database: Database, taint: StoreTaint) -> Row:
    """Return the values of `TAINT`."""
    session_id = database.uuid(taint.session_id) if taint.session_id else None
    return (
        *(database.uuid(ordered_id()), taint.key, database.uuid(taint.organization_id)),
        *(taint.labels, database.uuid(taint.call_id), session_id, taint.at),
    )


def spend(database: Database, permits: Mapping[UUID, Granted]) -> None:
    """Store by which calls permits were spent."""
    rows = [
        (database.uuid(granted.spent_by), database.uuid(permit_id))
        for permit_id, granted in permits.items()
        if granted.spent_by is not None
    ]
    database.execute_each(_SPEND, rows)


def changed(before: Mapping[Key, Value], after: Mapping[Key, Value]) -> dict[Key, Value]:
    """Return what is to be stored: what nothing was decided about is still the same object."""
    return {key: value for key, value in after.items() if value is not before.get(key)}


def remove(database: Database, organization_id: UUID, *, up_to: int) -> None:
    """Delete an organization's rows from the beginning of its chain up to a position."""
    database.execute(_REMOVE, [database.uuid(organization_id), up_to])


def bump(database: Database, organization_id: UUID) -> None:
    """Raise an organization's generation by one."""
    database.execute(_BUMP, [database.uuid(organization_id)])


def written(database: Database, call_ids: Sequence[UUID]) -> dict[UUID, Written]:
    """Return the rows that exist of these, after a commit whose answer was lost."""
    rows = _rows(_select(database, _WRITTEN, call_ids))
    return {_id(row): Written(*found) for row, *found in rows}


def opening(database: Database, sealed: Sealed) -> Row:
    """Return the values of `OPENING` that open a row."""
    item = sealed.item
    columns = database.written(sealing.OPENING, item.columns)
    return (sealed.seq, sealed.digest, item.text, *columns)


def _closing(database: Database, sealed: Sealed) -> Row:
    item = sealed.item
    columns = database.written(sealing.CLOSING, item.columns)
    return (sealed.seq, sealed.digest, item.text, *columns)


def _lock_heads(database: Database, organizations: Sequence[UUID]) -> Cursor | None:
    # One clock for all hosts, read behind the lock.
    clock = "NULL" if database.is_sqlite else POSTGRESQL_CLOCK
    rows = [(database.uuid(organization),) for organization in organizations]
    return execute_rows(database, _LOCK_HEADS.replace("{clock}", clock), rows)


def _owned(database: Database, keys: Iterable[tuple[str, UUID]]) -> list[Row]:
    return [(key, database.uuid(organization)) for key, organization in keys]


def _granted(
    organization: UUID | str, digest: str, expires: int, spent_by: UUID | str | None
) -> Granted:
    return Granted(_id(organization), digest, expires, _id(spent_by) if spent_by else None)


def execute_rows(database: Database, sql: str, rows: Sequence[Row], *more: object) -> Cursor | None:
    """Execute a statement with the values of some rows, and then `more`, if there are any rows."""
    if not rows:
        return None
    row = "(" + ", ".join(["%s"] * len(rows[0])) + ")"
    places = ", ".join([row] * len(rows))
    return database.execute(sql.replace("{rows}", places), [*chain.from_iterable(rows), *more])


def _select(database: Database, sql: str, ids: Sequence[UUID]) -> Cursor | None:
    if not ids:
        return None
    # Filled up to a power of two: few different statements to prepare.
    filled = [*ids, *[ids[-1]] * ((1 << (len(ids) - 1).bit_length()) - len(ids))]
    places = ", ".join(["%s"] * len(filled))
    return database.execute(sql.replace("{places}", places), [database.uuid(one) for one in filled])


def _rows(cursor: Cursor | None) -> list[tuple[Any, ...]]:
    return cursor.fetchall() if cursor is not None else []


def _tips(cursor: Cursor | None) -> tuple[dict[UUID, Tip], int]:
    now, tips = 0, {}
    for organization, seq, digest, generation, clock in _rows(cursor):
        now = max(now, clock or 0)
        tips[_id(organization)] = Tip(seq, digest, generation)
    return tips, now or time.time_ns() // 1_000


def _id(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)
