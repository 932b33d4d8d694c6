"""Remembering: the ledger's rows as this connection left them, as long as nobody else wrote.

SQLite tells a connection, within its transaction, whether any other one has committed since it last
looked (`PRAGMA data_version`). Where none has, the rows are as they were left: a group then needs
one question instead of five, and decides on exactly what is stored.

PostgreSQL has no such word for it. There a group is decided on what is remembered and written only
if that is still stored (`at_once`). Where it wasn't, somebody else writes to that chain too: its
rows are locked and read first, until they are found as they were left so often in a row that this
process seems to be alone.
"""

import time
from uuid import UUID

from bonobot.ledger.databases import OwnDatabase
from bonobot.ledger.entries import rates_of
from bonobot.ledger.groups import Needs, State

MOST = 10_000  # of cells, rates, flows and open rows together; beyond them all is read again
# The database's clock is known from its last answer: not for longer than no two clocks part in.
KEPT_S = 60.0
# Who takes turns with another process is alone for a call or two each time.
ALONE = 8


class Memory:
    """What one connection knows of the ledger; used by the thread that owns the connection."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._state = _nothing()
        # Organizations that others write to, too: how often they still have to be found untouched.
        self._shared: dict[UUID, int] = {}
        self._ahead_us = 0  # how far the database's clock is ahead of our own monotonic one
        self._clock_until = 0.0

    def recall(self, database: OwnDatabase, needs: Needs, *, now: int) -> State | None:
        """Return the rows that a group needs, in an open transaction; None: they must be read.

        On SQLite, where they are what is stored.
        """
        if not database.is_sqlite:
            return None
        version = database.version()
        if version != self._version:
            self._version, self._state = version, _nothing()
        return self._known(needs, now)

    def guess(self, database: OwnDatabase, needs: Needs) -> State | None:
        """Return what the rows that a group needs probably are; None: they must be read.

        On PostgreSQL, for one organization and what no other one has a part in.
        """
        if database.is_sqlite or len(needs.organizations) != 1:
            return None
        (organization_id,) = needs.organizations
        if organization_id in self._shared or time.monotonic() > self._clock_until:
            return None
        if not all(key.startswith(rates_of(organization_id)) for key in needs.rates):
            return None
        return self._known(needs, _monotonic_us() + self._ahead_us)

    def learn(self, needs: Needs, after: State, *, now: int) -> None:
        """Remember how a group's commit left the rows, at the database's time `now`."""
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
        self._ahead_us = now - _monotonic_us()
        self._clock_until = time.monotonic() + KEPT_S

    def compare(self, found: State) -> None:
        """See whose chains are as they were left, now that they were read."""
        for organization_id in self._shared.keys() & found.tips.keys():
            untouched = self._state.tips.get(organization_id) == found.tips[organization_id]
            left = self._shared[organization_id] - 1 if untouched else ALONE
            if left > 0:
                self._shared[organization_id] = left
            else:
                del self._shared[organization_id]

    def mistaken(self, needs: Needs) -> None:
        """Learn that what a group needs was changed by somebody else."""
        self._shared |= dict.fromkeys(needs.organizations, ALONE)

    def forget(self) -> None:
        """Know nothing any more: what was about to be written may be there or not."""
        self._version, self._state = None, _nothing()
        self._clock_until = 0.0

    def _known(self, needs: Needs, now: int) -> State | None:
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


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1_000


def _nothing() -> State:
    return State({}, {}, {}, {}, 0)
