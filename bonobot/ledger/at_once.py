"""At once: a group in one round trip, where what it was decided on is still so (PostgreSQL).

The first statement moves the head, if that and all else that is remembered is what is stored; each
of the others writes only where the head is as the first one has left it. So all of them write, or
none does. The head is locked from the first one on, and whoever changes any of these rows moves it
too: of what was compared nothing changes meanwhile, but that what was long unused may be removed,
and is then written anew.
"""

from bonobot.ledger import sealing, store
from bonobot.ledger.chain import Tip
from bonobot.ledger.databases import Cursor, OwnDatabase, Row
from bonobot.ledger.groups import Plan, State
from bonobot.ledger.store import Gate

_MOVE = """
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

# What has no target yet is a text to PostgreSQL.
_CASTS = {"text": "%s", "uuid": "%s::uuid", "time": "%s::timestamptz", "integer": "%s::bigint"}
_OPENED = ("%s::bigint", "%s", "%s", *(_CASTS[column.kind] for column in sealing.OPENING))
# Built from the names of our own columns; values are always parameters.
_OPEN = "INSERT INTO ledger_auditrow ({}) SELECT {} WHERE {}".format(
    ", ".join(store.OPENING), ", ".join(_OPENED), _MOVED
)
_SET_RATES = f"""
    INSERT INTO ledger_ratecell ("key", tat)
    SELECT "key", tat::bigint FROM (VALUES {{rows}}) AS one ("key", tat) WHERE {_MOVED}
    ON CONFLICT ("key") DO UPDATE SET tat = excluded.tat
"""  # noqa: S608
_SET_FLOW = f"""
    INSERT INTO ledger_flowcell ("key", organization_id, labels, touched)
    SELECT %s, %s::uuid, %s::bigint, %s::bigint WHERE {_MOVED}
    ON CONFLICT ("key") DO UPDATE SET labels = excluded.labels, touched = excluded.touched
"""
_TAINT = "INSERT INTO ledger_storelabel ({}) SELECT {} WHERE {}".format(
    ", ".join(store.TAINT),
    "%s::uuid, %s, %s::uuid, %s::bigint, %s::uuid, %s::uuid, %s::bigint",
    _MOVED,
)


def write(database: OwnDatabase, before: State, plan: Plan) -> int | None:
    """Write and commit what becomes of a group of one organization, if `before` is what is stored.

    Return the database's time in microseconds since 1970; None: something is another, and nothing
    was written.
    """
    after = plan.state
    ((organization_id, tip),) = after.tips.items()
    owner = database.uuid(organization_id)
    moved = (owner, tip.digest)
    gate = Gate(f" AND {_MOVED}", moved)
    rates = [(key, str(tat)) for key, tat in store.changed(before.rates, after.rates).items()]
    flows = store.changed(before.flows, after.flows)
    with database.pipelined():
        database.begin()
        clock = _move(database, before, owner, tip)
        opened = [(*store.opening(database, one), *moved) for one in plan.opened]
        database.execute_each(_OPEN, opened)
        store.write_closed(database, plan.closed, gate)
        store.write_cells(database, store.changed(before.cells, after.cells), gate)
        store.execute_rows(database, _SET_RATES, rates, *moved)
        database.execute_each(
            _SET_FLOW,
            [(key, owner, one.labels, one.touched, *moved) for key, one in flows.items()],
        )
        taints = [(*store.taint_row(database, one), *moved) for one in plan.taints]
        database.execute_each(_TAINT, taints)
        database.commit()
    found = clock.fetchall()
    return int(found[0][0]) if found else None


def _move(database: OwnDatabase, before: State, owner: str, tip: Tip) -> Cursor:
    """Move the head to `tip`, and return the time, if all is as it was before."""
    (was,) = before.tips.values()
    values: list[Row] = [(tip.seq, tip.digest, owner, was.seq, was.digest, was.generation)]
    values += [(key, cell.spent, cell.reserved) for key, cell in before.cells.items()]
    values += before.rates.items()
    values += [(key, held.labels, held.touched) for key, held in before.flows.items()]
    same = "".join(
        [
            *[_SAME_CELL] * len(before.cells),
            *[_SAME_RATE] * len(before.rates),
            *[_SAME_FLOW] * len(before.flows),
        ]
    )
    statement = _MOVE.format(same=same, clock=store.POSTGRESQL_CLOCK)
    return database.execute(statement, [str(value) for row in values for value in row])
