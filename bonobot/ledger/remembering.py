"""Remembering: the ledger's rows as this connection left them, as long as nobody else wrote.

SQLite tells a connection, within its transaction, whether any other one has committed since it last
looked (`PRAGMA data_version`). Where none has, the rows are as they were left: a group then needs
one question instead of five, and decides on exactly what is stored. PostgreSQL has no such word for
it, and its rows are locked and read each time.
"""

from bonobot.ledger.databases import OwnDatabase
from bonobot.ledger.groups import Needs, State

MOST = 10_000  # of cells, rates, flows and open rows together; beyond them all is read again


class Memory:
    """What one connection knows of the ledger; used by the thread that owns the connection."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._state = _nothing()

    def recall(self, database: OwnDatabase, needs: Needs, *, now: int) -> State | None:
        """Return the rows that a group needs, in an open transaction; None: they must be read."""
        if not database.is_sqlite:
            return None
        version = database.version()
        if version != self._version:
            self._version, self._state = version, _nothing()
        known = self._state
        if needs.permits:
            return None
        try:
            return State(
                tips={key: known.tips[key] for key in needs.organizations},
                cells={key: known.cells[key] for key, _ in needs.cells},
                rates={key: known.rates[key] for key in needs.rates},
                closable={key: known.closable[key] for key in needs.closing},
                now=now,
                flows={key: known.flows[key] for key, _ in needs.flows},
            )
        except KeyError:
            return None

    def learn(self, needs: Needs, after: State) -> None:
        """Remember how a group's commit left the rows."""
        known = self._state
        held = len(known.cells) + len(known.rates) + len(known.flows) + len(known.closable)
        if held > MOST:
            known = self._state = _nothing()
        known.tips |= after.tips
        known.cells |= after.cells
        known.rates |= after.rates
        known.flows |= after.flows
        for call_id in needs.closing:
            known.closable.pop(call_id, None)
        known.closable |= after.closable

    def forget(self) -> None:
        """Know nothing any more: what was about to be written may be there or not."""
        self._version, self._state = None, _nothing()


def _nothing() -> State:
    return State({}, {}, {}, {}, 0)
