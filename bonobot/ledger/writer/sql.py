"""SQL statements of the ledger for SQLite and PostgreSQL.

Every function uses the open transaction of its database. Locks are taken in one order: heads,
budget cells, rate cells, flow cells, each by key. `INSERT … ON CONFLICT DO UPDATE … RETURNING`
creates, locks and reads rows in the order of its VALUES (SQLite 3.35).

Values are sent to PostgreSQL as text and converted by the column types, so that a statement is
prepared once, not once for each integer size. On SQLite they are written in Django's format.

`write_if_unchanged` first moves the head, if it and all other cached rows are unchanged; each later
statement writes only if the head was moved. So all of them write, or none does. The head is locked
from then on, and every change of these rows moves it, too, so the compared rows can't change
meanwhile. Long unused ones may be deleted, and are then inserted again.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from bonobot.core.db.fields import generate_uuid7
from bonobot.ledger.admission import CallerFlowLabels, StoredApproval
from bonobot.ledger.audit import entry_encoding
from bonobot.ledger.audit.entry_encoding import ColumnLayout
from bonobot.ledger.audit.hash_chain import ChainTip
from bonobot.ledger.budgets import BudgetBalance
from bonobot.ledger.writer.batch_plan import (
    BatchPlan,
    BatchRowKeys,
    BatchState,
    CloseItem,
    SealedItem,
    StoreTaint,
)

if TYPE_CHECKING:
    from bonobot.core.db.postgres_pipeline import StatementPipeline

Row = Sequence[Any]


class SqlCursor(Protocol):
    """The cursor of an executed statement."""

    def fetchall(self) -> list[tuple[Any, ...]]: ...


class LedgerDatabase:
    """A Django connection, used in a transaction of the application."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.is_sqlite = connection.vendor == "sqlite"

    def execute(self, sql: str, values: Row = ()) -> SqlCursor:
        cursor = self.connection.cursor()
        cursor.execute(sql, values)
        return cursor

    def execute_each(self, sql: str, rows: Sequence[Row]) -> None:
        """Execute a statement for each row of values, if there are any."""
        if rows:
            self.connection.cursor().executemany(sql, rows if self.is_sqlite else _to_text(rows))

    def encode_uuid(self, value: UUID) -> str:
        return value.hex if self.is_sqlite else str(value)

    def encode_row(self, columns: ColumnLayout, values: Row) -> Row:
        """Return the values of these columns in the database's format."""
        if not self.is_sqlite:
            return values
        row = list(values)
        for index in columns.id_positions:
            row[index] = row[index] and row[index].replace("-", "")
        for index in columns.time_positions:
            row[index] = row[index] and row[index][:26].replace("T", " ")
        return row


class DedicatedLedgerDatabase(LedgerDatabase):
    """A dedicated connection that bypasses Django's cursors, for the hot path.

    Raises the driver's errors unless used within `connection.wrap_database_errors`.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        super().__init__(connection)
        self._pipeline: StatementPipeline | None = None

    def execute(self, sql: str, values: Row = ()) -> SqlCursor:
        """Execute one statement; within a pipeline, the cursor can be read after it."""
        if self._pipeline is not None and self._pipeline.is_open:
            return self._pipeline.execute(sql, values)
        if self.is_sqlite:
            sql = _convert_placeholders(sql)
        cursor: SqlCursor = self.connection.connection.execute(sql, values)
        return cursor

    def execute_each(self, sql: str, rows: Sequence[Row]) -> None:
        """Execute a statement for each row of values, if there are any."""
        if not rows:
            return
        if self.is_sqlite:
            self.connection.connection.executemany(_convert_placeholders(sql), rows)
        else:
            for row in rows:
                self.execute(sql, row)

    def commit(self) -> None:
        self.execute("COMMIT")

    def open_pipeline(self) -> AbstractContextManager[Any]:
        """Pipeline the block's statements if the database supports it.

        Without `begin`, they are one transaction.
        """
        if self.is_sqlite:
            return nullcontext()
        if self._pipeline is None:
            from bonobot.core.db.postgres_pipeline import StatementPipeline  # needs psycopg

            self._pipeline = StatementPipeline(self.connection.connection)
        return self._pipeline


def _to_text(rows: Iterable[Row]) -> list[Row]:
    """Return rows with their values as text, as PostgreSQL gets them."""
    return [[None if value is None else str(value) for value in row] for row in rows]


@lru_cache(maxsize=512)
def _convert_placeholders(sql: str) -> str:
    return sql.replace("%s", "?")


POSTGRESQL_CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

Key = TypeVar("Key")
Value = TypeVar("Value")


def _join_names(names: Iterable[str], form: str = '"{}"') -> str:
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
# Approvals are only changed under the lock of their organization's head.
_SELECT_APPROVALS = """
    SELECT id, organization_id, digest, expires, spent_by FROM ledger_permitrow
    WHERE id IN ({places})
"""
_SELECT_OPEN_CALLS = """
    SELECT id, organization_id FROM ledger_auditrow
    WHERE closed_seq IS NULL AND id IN ({places})
"""
_SELECT_WRITTEN_ROWS = """
    SELECT id, ledger_auditrow.seq, opened, closed, generation
    FROM ledger_auditrow JOIN ledger_head USING (organization_id)
    WHERE id IN ({places})
"""
OPENING_NAMES = (
    "seq",
    "digest",
    "opened",
    *(column.name for column in entry_encoding.OPENING_COLUMNS),
)
# Built from the names of our own columns; values are always parameters.
_INSERT_ROW = "INSERT INTO ledger_auditrow ({}) VALUES ({})".format(  # noqa: S608
    _join_names(OPENING_NAMES), _join_names(OPENING_NAMES, "%s")
)
CLOSING_NAMES = (
    "closed_seq",
    "closed_digest",
    "closed",
    *(column.name for column in entry_encoding.CLOSING_COLUMNS),
)
_CLOSE_ROW = "UPDATE ledger_auditrow SET {} WHERE id = %s AND closed_seq IS NULL".format(  # noqa: S608
    _join_names(CLOSING_NAMES, '"{}" = %s')
)
# Without a code, the opening's code is kept, and SQLite doesn't update the index of codes.
_CLOSE_ROW_WITHOUT_CODE = _CLOSE_ROW.replace(', "code" = %s', "")
_SET_HEAD = (
    "UPDATE ledger_head SET seq = %s, digest = %s, generation = %s WHERE organization_id = %s"
)
_SET_CELL = 'UPDATE ledger_budgetcell SET spent = %s, reserved = %s WHERE "key" = %s'
_SET_RATES = """
    INSERT INTO ledger_ratecell ("key", tat) VALUES {rows}
    ON CONFLICT ("key") DO UPDATE SET tat = excluded.tat
"""
TAINT_NAMES = ("id", "key", "organization_id", "labels", "call_id", "session_id", "created")
_INSERT_TAINT = "INSERT INTO ledger_storelabel ({}) VALUES ({})".format(  # noqa: S608
    _join_names(TAINT_NAMES), _join_names(TAINT_NAMES, "%s")
)
_SET_FLOW = 'UPDATE ledger_flowcell SET labels = %s, touched = %s WHERE "key" = %s'
_SPEND_APPROVAL = "UPDATE ledger_permitrow SET spent_by = %s WHERE id = %s AND spent_by IS NULL"
_DELETE_ROWS = "DELETE FROM ledger_auditrow WHERE organization_id = %s AND seq <= %s"
_INCREMENT_GENERATION = """
    INSERT INTO ledger_head (organization_id, generation) VALUES (%s, 1)
    ON CONFLICT (organization_id) DO UPDATE SET generation = ledger_head.generation + 1
"""


class WrittenRow(NamedTuple):
    """A stored row: its position, its sealed texts, and its organization's generation."""

    seq: int
    opened: str
    closed: str
    generation: int


class UpdateCondition(NamedTuple):
    """An additional condition of an UPDATE, and its values."""

    sql: str = ""
    values: Row = ()


NO_CONDITION = UpdateCondition()


def lock_rows(database: LedgerDatabase, row_keys: BatchRowKeys) -> Callable[[], BatchState]:
    """Lock the rows of a batch; return a function that reads the results."""
    heads = _lock_heads(database, row_keys.organizations)
    cells = execute_rows(database, _LOCK_CELLS, _build_owned_keys(database, row_keys.cells))
    rates = execute_rows(database, _LOCK_RATES, [(key,) for key in row_keys.rates])
    flows = execute_rows(database, _LOCK_FLOWS, _build_owned_keys(database, row_keys.flows))
    approvals = _select_by_id(database, _SELECT_APPROVALS, row_keys.approvals)
    open_calls = _select_by_id(database, _SELECT_OPEN_CALLS, row_keys.closing_calls)

    def load_state() -> BatchState:
        tips, now = _load_tips(heads)
        return BatchState(
            tips=tips,
            cells={
                key: BudgetBalance(spent, reserved) for key, spent, reserved in _load_rows(cells)
            },
            rates=dict(_load_rows(rates)),
            open_calls={
                _parse_uuid(row): _parse_uuid(organization)
                for row, organization in _load_rows(open_calls)
            },
            now=now,
            flows={
                key: CallerFlowLabels(labels, touched) for key, labels, touched in _load_rows(flows)
            },
            approvals={
                _parse_uuid(row): _build_stored_approval(*facts)
                for row, *facts in _load_rows(approvals)
            },
        )

    return load_state


def lock_heads(database: LedgerDatabase, organizations: Iterable[UUID]) -> dict[UUID, ChainTip]:
    """Lock the heads of organizations, creating missing ones."""
    return _load_tips(_lock_heads(database, sorted(organizations)))[0]


def store_plan(database: LedgerDatabase, before: BatchState, plan: BatchPlan) -> None:
    """Write what a plan changes: the rows and, unless they are unchanged, the locked ones."""
    after, encode_uuid = plan.state, database.encode_uuid
    if plan.opened:
        write_opened(database, plan.opened)
    if plan.closed:
        write_closed(database, plan.closed)
    write_heads(database, filter_changed(before.tips, after.tips))
    write_cells(database, filter_changed(before.cells, after.cells))
    if after.rates and (rates := filter_changed(before.rates, after.rates)):
        execute_rows(database, _SET_RATES, list(rates.items()))
    if after.flows and (flows := filter_changed(before.flows, after.flows)):
        flow_rows = [(flow.labels, flow.last_used_us, key) for key, flow in flows.items()]
        database.execute_each(_SET_FLOW, flow_rows)
    if plan.taints:
        taint_rows = [build_taint_row(database, taint) for taint in plan.taints]
        database.execute_each(_INSERT_TAINT, taint_rows)
    if after.approvals and (approvals := filter_changed(before.approvals, after.approvals)):
        spent_rows = [
            (encode_uuid(approval.spent_by), encode_uuid(approval_id))
            for approval_id, approval in approvals.items()
            if approval.spent_by is not None
        ]
        database.execute_each(_SPEND_APPROVAL, spent_rows)


def write_opened(database: LedgerDatabase, sealed_items: Sequence[SealedItem]) -> None:
    """Insert rows with their opening entry."""
    database.execute_each(_INSERT_ROW, [build_entry_row(database, item) for item in sealed_items])


def write_closed(
    database: LedgerDatabase,
    sealed_items: Sequence[SealedItem],
    condition: UpdateCondition = NO_CONDITION,
) -> None:
    """Update open rows with their closing entry."""
    rows_without_code: list[Row] = []
    rows_with_code: list[Row] = []
    for sealed_item in sealed_items:
        row = build_entry_row(database, sealed_item)
        call_id = database.encode_uuid(sealed_item.item.call_id)
        if row[-1] is None:
            rows_without_code.append((*row[:-1], call_id, *condition.values))
        else:
            rows_with_code.append((*row, call_id, *condition.values))
    database.execute_each(_CLOSE_ROW_WITHOUT_CODE + condition.sql, rows_without_code)
    if rows_with_code:
        database.execute_each(_CLOSE_ROW + condition.sql, rows_with_code)


def write_heads(database: LedgerDatabase, tips: Mapping[UUID, ChainTip]) -> None:
    """Update the ends of chains."""
    database.execute_each(
        _SET_HEAD,
        [
            (tip.seq, tip.digest, tip.generation, database.encode_uuid(organization))
            for organization, tip in tips.items()
        ],
    )


def write_cells(
    database: LedgerDatabase,
    cells: Mapping[str, BudgetBalance],
    condition: UpdateCondition = NO_CONDITION,
) -> None:
    rows = [(cell.spent, cell.reserved, key, *condition.values) for key, cell in cells.items()]
    database.execute_each(_SET_CELL + condition.sql, rows)


def build_taint_row(database: LedgerDatabase, taint: StoreTaint) -> Row:
    """Return the values of `TAINT_NAMES`."""
    session_id = database.encode_uuid(taint.session_id) if taint.session_id else None
    return (
        *(
            database.encode_uuid(generate_uuid7()),
            taint.key,
            database.encode_uuid(taint.organization_id),
        ),
        *(taint.labels, database.encode_uuid(taint.call_id), session_id, taint.at),
    )


def filter_changed(before: Mapping[Key, Value], after: Mapping[Key, Value]) -> dict[Key, Value]:
    """Return the changed values: unchanged ones are the same object."""
    return {key: value for key, value in after.items() if value is not before.get(key)}


def delete_rows(database: LedgerDatabase, organization_id: UUID, *, up_to: int) -> None:
    """Delete an organization's rows from the start of its chain up to a position."""
    database.execute(_DELETE_ROWS, [database.encode_uuid(organization_id), up_to])


def increment_generation(database: LedgerDatabase, organization_id: UUID) -> None:
    database.execute(_INCREMENT_GENERATION, [database.encode_uuid(organization_id)])


def load_written_rows(database: LedgerDatabase, call_ids: Sequence[UUID]) -> dict[UUID, WrittenRow]:
    """Return the existing rows of these calls, after a commit whose response was lost."""
    rows = _load_rows(_select_by_id(database, _SELECT_WRITTEN_ROWS, call_ids))
    return {_parse_uuid(row): WrittenRow(*values) for row, *values in rows}


def build_entry_row(database: LedgerDatabase, sealed_item: SealedItem) -> Row:
    """Return the values of `OPENING_NAMES`, or of `CLOSING_NAMES` for a closing entry."""
    item, columns = sealed_item.item, entry_encoding.OPENING_COLUMNS
    if isinstance(item, CloseItem):
        columns = entry_encoding.CLOSING_COLUMNS
    return (
        *(sealed_item.seq, sealed_item.digest, item.text),
        *database.encode_row(columns, item.columns),
    )


def _lock_heads(database: LedgerDatabase, organizations: Sequence[UUID]) -> SqlCursor | None:
    # One clock for all hosts, read after the lock is acquired.
    clock = "NULL" if database.is_sqlite else POSTGRESQL_CLOCK
    rows = [(database.encode_uuid(organization),) for organization in organizations]
    return execute_rows(database, _LOCK_HEADS.replace("{clock}", clock), rows)


def _build_owned_keys(database: LedgerDatabase, keys: Iterable[tuple[str, UUID]]) -> list[Row]:
    return [(key, database.encode_uuid(organization)) for key, organization in keys]


def _build_stored_approval(
    organization: UUID | str, digest: str, expires: int, spent_by: UUID | str | None
) -> StoredApproval:
    return StoredApproval(
        _parse_uuid(organization), digest, expires, _parse_uuid(spent_by) if spent_by else None
    )


def execute_rows(
    database: LedgerDatabase, sql: str, rows: Sequence[Row], *extra_values: object
) -> SqlCursor | None:
    """Execute a statement with the values of rows and `extra_values`; None without rows."""
    if not rows:
        return None
    row = "(" + ", ".join(["%s"] * len(rows[0])) + ")"
    placeholders = ", ".join([row] * len(rows))
    return database.execute(
        sql.replace("{rows}", placeholders), [*chain.from_iterable(rows), *extra_values]
    )


def _select_by_id(database: LedgerDatabase, sql: str, ids: Sequence[UUID]) -> SqlCursor | None:
    if not ids:
        return None
    # Padded to a power of two, to prepare few different statements.
    padded_ids = [*ids, *[ids[-1]] * ((1 << (len(ids) - 1).bit_length()) - len(ids))]
    placeholders = ", ".join(["%s"] * len(padded_ids))
    return database.execute(
        sql.replace("{places}", placeholders),
        [database.encode_uuid(row_id) for row_id in padded_ids],
    )


def _load_rows(cursor: SqlCursor | None) -> list[tuple[Any, ...]]:
    return cursor.fetchall() if cursor is not None else []


def _load_tips(cursor: SqlCursor | None) -> tuple[dict[UUID, ChainTip], int]:
    now, tips = 0, {}
    for organization, seq, digest, generation, clock in _load_rows(cursor):
        now = max(now, clock or 0)
        tips[_parse_uuid(organization)] = ChainTip(seq, digest, generation)
    return tips, now or time.time_ns() // 1_000


def _parse_uuid(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)


_MOVE_HEAD = """
    UPDATE ledger_head SET seq = %s, digest = %s
    WHERE organization_id = %s AND seq = %s AND digest = %s AND generation = %s {same}
    RETURNING {clock}
"""
_SAME_CELL = """
    AND EXISTS (SELECT FROM ledger_budgetcell WHERE "key" = %s AND spent = %s AND reserved = %s)
"""
_SAME_RATE = """
    AND EXISTS (SELECT FROM ledger_ratecell WHERE "key" = %s AND tat = %s)
"""
_SAME_FLOW = """
    AND EXISTS (SELECT FROM ledger_flowcell WHERE "key" = %s AND labels = %s AND touched = %s)
"""
_MOVED = "EXISTS (SELECT FROM ledger_head WHERE organization_id = %s AND digest = %s)"

# Without a target column, PostgreSQL needs explicit casts.
_CASTS = {"text": "%s", "uuid": "%s::uuid", "time": "%s::timestamptz", "integer": "%s::bigint"}
_OPENING_CASTS = (
    "%s::bigint",
    "%s",
    "%s",
    *(_CASTS[column.kind] for column in entry_encoding.OPENING_COLUMNS),
)
# Built from the names of our own columns; values are always parameters.
_OPEN_IF_ADMITTED = "INSERT INTO ledger_auditrow ({}) SELECT {} WHERE {}".format(
    ", ".join(OPENING_NAMES), ", ".join(_OPENING_CASTS), _MOVED
)
_SET_RATES_PIPELINED = f"""
    INSERT INTO ledger_ratecell ("key", tat)
    SELECT "key", tat::bigint FROM (VALUES {{rows}}) AS one ("key", tat) WHERE {_MOVED}
    ON CONFLICT ("key") DO UPDATE SET tat = excluded.tat
"""  # noqa: S608
_SET_FLOW_PIPELINED = f"""
    INSERT INTO ledger_flowcell ("key", organization_id, labels, touched)
    SELECT %s, %s::uuid, %s::bigint, %s::bigint WHERE {_MOVED}
    ON CONFLICT ("key") DO UPDATE SET labels = excluded.labels, touched = excluded.touched
"""
_TAINT_PIPELINED = "INSERT INTO ledger_storelabel ({}) SELECT {} WHERE {}".format(
    ", ".join(TAINT_NAMES),
    "%s::uuid, %s, %s::uuid, %s::bigint, %s::uuid, %s::uuid, %s::bigint",
    _MOVED,
)


def write_if_unchanged(
    database: DedicatedLedgerDatabase, before: BatchState, plan: BatchPlan
) -> int | None:
    """Write and commit a plan for one organization if `before` matches the stored rows.

    Return the database's time in microseconds since 1970, or None if a row differs and nothing
    was written.
    """
    after = plan.state
    ((organization_id, tip),) = after.tips.items()
    owner = database.encode_uuid(organization_id)
    head_values = (owner, tip.digest)
    condition = UpdateCondition(f" AND {_MOVED}", head_values)
    rates = list(filter_changed(before.rates, after.rates).items())
    flows = filter_changed(before.flows, after.flows)
    with database.open_pipeline():
        clock = _move_head(database, before, owner, tip)
        opening_rows = [(*build_entry_row(database, item), *head_values) for item in plan.opened]
        database.execute_each(_OPEN_IF_ADMITTED, opening_rows)
        write_closed(database, plan.closed, condition)
        write_cells(database, filter_changed(before.cells, after.cells), condition)
        execute_rows(database, _SET_RATES_PIPELINED, rates, *head_values)
        database.execute_each(
            _SET_FLOW_PIPELINED,
            [
                (key, owner, item.labels, item.last_used_us, *head_values)
                for key, item in flows.items()
            ],
        )
        taints = [(*build_taint_row(database, item), *head_values) for item in plan.taints]
        database.execute_each(_TAINT_PIPELINED, taints)
    rows = clock.fetchall()
    return int(rows[0][0]) if rows else None


def _move_head(
    database: DedicatedLedgerDatabase, before: BatchState, owner: str, tip: ChainTip
) -> SqlCursor:
    """Move the head to `tip` if no row has changed; the cursor returns the time."""
    (previous_tip,) = before.tips.values()
    values: list[Row] = [
        (tip.seq, tip.digest, owner, previous_tip.seq, previous_tip.digest, previous_tip.generation)
    ]
    values += [(key, cell.spent, cell.reserved) for key, cell in before.cells.items()]
    values += before.rates.items()
    values += [
        (key, caller_labels.labels, caller_labels.last_used_us)
        for key, caller_labels in before.flows.items()
    ]
    same = "".join(
        [
            *[_SAME_CELL] * len(before.cells),
            *[_SAME_RATE] * len(before.rates),
            *[_SAME_FLOW] * len(before.flows),
        ]
    )
    statement = _MOVE_HEAD.format(same=same, clock=POSTGRESQL_CLOCK)
    return database.execute(statement, list(chain.from_iterable(values)))
