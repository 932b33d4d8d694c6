"""Commit batches, with a cache of the rows of previous ones.

On SQLite, `PRAGMA data_version` shows within the transaction whether another connection has
committed since. If not, the cached rows are current, and a batch needs one query instead of five.

On PostgreSQL, a batch is decided on cached rows and written only if they still match the stored
ones. If they don't, another process writes to that chain, too: its rows are then locked and read
first, until they were unchanged several times in a row.
"""

import time
from collections.abc import Sequence
from copy import deepcopy
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, Error, connections

from bonobot.ledger.types import AdmissionResult, build_rate_prefix
from bonobot.ledger.writer import batch_plan, sql
from bonobot.ledger.writer.batch_plan import Answer, BatchRowKeys, BatchState, CloseItem
from bonobot.ledger.writer.queue import Answered, QueuedItem
from bonobot.ledger.writer.sql import DedicatedLedgerDatabase, LedgerDatabase

MOST = 10_000  # cells, rates, flows and open rows together; then the cache is cleared
# How long the offset to the database's clock is used before the clocks may have drifted apart.
KEPT_S = 60.0
# Processes that alternate find a chain unchanged once or twice in a row.
ALONE = 8


class BatchStateCache:
    """The cached ledger rows of one connection; used only by the thread that owns it."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._state = _build_empty_state()
        # Organizations that other processes write to: how many unchanged reads are still needed.
        self._shared: dict[UUID, int] = {}
        self._ahead_us = 0  # how far the database's clock is ahead of our monotonic clock
        self._clock_until = 0.0

    def recall(
        self, database: DedicatedLedgerDatabase, needs: BatchRowKeys, *, now: int
    ) -> BatchState | None:
        """Return the current rows of a batch (SQLite only), or None if they must be read.

        Call it in an open transaction.
        """
        if not database.is_sqlite:
            return None
        version = database.version()
        if version != self._version:
            self._version, self._state = version, _build_empty_state()
        return self._known(needs, now)

    def guess(self, database: DedicatedLedgerDatabase, needs: BatchRowKeys) -> BatchState | None:
        """Return the probable rows of a batch (PostgreSQL only), or None if they must be read.

        Only for batches of one organization without rates shared with others.
        """
        if database.is_sqlite or len(needs.organizations) != 1:
            return None
        (organization_id,) = needs.organizations
        if organization_id in self._shared or time.monotonic() > self._clock_until:
            return None
        if not all(key.startswith(build_rate_prefix(organization_id)) for key in needs.rates):
            return None
        return self._known(needs, _get_monotonic_us() + self._ahead_us)

    def learn(self, needs: BatchRowKeys, after: BatchState, *, now: int) -> None:
        """Cache the rows after a batch was committed at the database's time `now`."""
        known = self._state
        held = len(known.cells) + len(known.rates) + len(known.flows) + len(known.closable)
        if held > MOST:
            known = self._state = _build_empty_state()
        known.tips |= after.tips
        known.cells |= after.cells
        known.rates |= after.rates
        known.flows |= after.flows
        for call_id in needs.closing:
            known.closable.pop(call_id, None)
        known.closable |= after.closable
        self._ahead_us = now - _get_monotonic_us()
        self._clock_until = time.monotonic() + KEPT_S

    def compare(self, found: BatchState) -> None:
        """Compare chains that were read with the cached ones, to find those no longer shared."""
        for organization_id in self._shared.keys() & found.tips.keys():
            untouched = self._state.tips.get(organization_id) == found.tips[organization_id]
            left = self._shared[organization_id] - 1 if untouched else ALONE
            if left > 0:
                self._shared[organization_id] = left
            else:
                del self._shared[organization_id]

    def mistaken(self, needs: BatchRowKeys) -> None:
        """Mark the organizations of a batch as changed by another process."""
        self._shared |= dict.fromkeys(needs.organizations, ALONE)

    def forget(self) -> None:
        """Clear the cache; a failed commit may or may not have been stored."""
        self._version, self._state = None, _build_empty_state()
        self._clock_until = 0.0

    def _known(self, needs: BatchRowKeys, now: int) -> BatchState | None:
        known = self._state
        if needs.permits:
            return None
        try:
            return BatchState(
                tips={key: known.tips[key] for key in needs.organizations},
                cells={key: known.cells[key] for key, _ in needs.cells},
                rates={key: known.rates[key] for key in needs.rates},
                closable={key: known.closable[key] for key in needs.closing},
                now=now,
                flows={key: known.flows[key] for key, _ in needs.flows},
            )
        except KeyError:
            return None


def _get_monotonic_us() -> int:
    return time.monotonic_ns() // 1_000


def _build_empty_state() -> BatchState:
    return BatchState({}, {}, {}, {}, 0)


LIMITS = {
    # Commits are durable when they return.
    "sqlite": ("PRAGMA synchronous=FULL",),
    # Waiting for a lock or a hanging database must not exceed the callers' deadline; and if this
    # process freezes within a transaction, the chain must be unlocked.
    "postgresql": (
        "SET lock_timeout = '1s'",
        "SET statement_timeout = '4s'",
        "SET idle_in_transaction_session_timeout = '2s'",
    ),
}
APPLICATION_NAME = "bonobot ledger"  # in pg_stat_activity
NETWORK_TIMEOUT_MS = 5_000
# How long to wait for other threads, and then for other processes.
SQLITE_BUSY_S = 1.0


class BatchCommitter:
    """Commits batches; used by one thread only. Raises Django's database errors."""

    def __init__(self) -> None:
        self._database: DedicatedLedgerDatabase | None = None
        self._memory = BatchStateCache()

    def commit(self, tickets: Sequence[QueuedItem]) -> list[Answered]:
        """Commit the items and return their answers, in any order."""
        database = self._database = self._database or connect()
        with database.connection.wrap_database_errors:
            answered = _recover_answers(database, tickets)
            known = {ticket for ticket, _ in answered}
            rest = [ticket for ticket in tickets if ticket not in known and not ticket.moot]
            if rest:
                answered += zip(rest, _commit(database, self._memory, rest), strict=True)
        return answered

    def holds(self, call_id: UUID) -> bool:
        """Return whether a row with this id exists; raises database errors."""
        database = self._database = self._database or connect()
        with database.connection.wrap_database_errors:
            return bool(sql.load_written_rows(database, [call_id]))

    def disconnect(self) -> None:
        """Roll back and close the connection; the next commit opens another."""
        database, self._database = self._database, None
        self._memory.forget()
        if database is None:
            return
        connection = database.connection
        try:
            # Without a rollback, a cursor referenced by an exception would keep SQLite's lock.
            with connection.wrap_database_errors:
                connection.connection.rollback()
            connection.close()
        except Error:
            connection.connection = None  # it was broken already


def connect() -> DedicatedLedgerDatabase:
    """Open a dedicated connection to the default database."""
    connection = connections.create_connection(DEFAULT_DB_ALIAS)
    settings = deepcopy(connection.settings_dict)
    options: dict[str, Any] = settings["OPTIONS"]
    if connection.vendor == "sqlite":
        options["timeout"] = SQLITE_BUSY_S
    else:
        options.pop("pool", None)
        options["server_side_binding"] = True
        options.setdefault("prepare_threshold", 2)
        options.setdefault("tcp_user_timeout", NETWORK_TIMEOUT_MS)
        options.setdefault("application_name", APPLICATION_NAME)
    connection.settings_dict = settings
    connection.connect()
    database = DedicatedLedgerDatabase(connection)
    with connection.wrap_database_errors:
        for statement in LIMITS[connection.vendor]:
            database.execute(statement)
    return database


def _recover_answers(database: LedgerDatabase, tickets: Sequence[QueuedItem]) -> list[Answered]:
    """Return answers for items that were committed although the response was lost."""
    doubtful = [ticket for ticket in tickets if ticket.sent]
    if not doubtful:
        return []
    found = sql.load_written_rows(database, [ticket.item.call_id for ticket in doubtful])
    answered: list[Answered] = []
    for ticket in doubtful:
        row = found.get(ticket.item.call_id)
        answer = _recover_answer(ticket, row) if row else None
        if answer is not None:
            answered.append((ticket, answer))
    return answered


def _recover_answer(ticket: QueuedItem, row: sql.WrittenRow) -> Answer | None:
    item = ticket.item
    if isinstance(item, CloseItem):
        return True if row.closed == item.text else None
    if row.opened != item.text:
        return None
    if item.admission is None:
        return item.call_id
    return AdmissionResult(item.call_id, row.seq, row.generation)


def _commit(
    database: DedicatedLedgerDatabase, memory: BatchStateCache, tickets: Sequence[QueuedItem]
) -> list[Answer]:
    items = [ticket.item for ticket in tickets]
    needs = batch_plan.needs(items)
    answers = _commit_at_once(database, memory, tickets, needs)
    if answers is not None:
        return answers
    with database.turn(within_s=SQLITE_BUSY_S):
        before = _lock_rows(database, memory, needs)
        plan = batch_plan.decide(before, items)
        _send(tickets)
        _store(database, before, plan)
    memory.learn(needs, plan.state, now=before.now)
    return plan.answers


def _commit_at_once(
    database: DedicatedLedgerDatabase,
    memory: BatchStateCache,
    tickets: Sequence[QueuedItem],
    needs: batch_plan.BatchRowKeys,
) -> list[Answer] | None:
    """Commit a batch decided on cached rows; None if it must be decided on stored rows.

    Refusals are never decided on cached rows, since their reason may be gone.
    """
    guessed = memory.guess(database, needs)
    if guessed is None:
        return None
    items = [ticket.item for ticket in tickets]
    plan = batch_plan.decide(guessed, items)
    if len(plan.opened) + len(plan.closed) < len(items):
        return None
    fresh = [ticket for ticket in tickets if not ticket.sent]
    _send(tickets)
    now = sql.write(database, guessed, plan)
    if now is None:
        memory.mistaken(needs)
        for ticket in fresh:
            ticket.sent = False
        return None
    memory.learn(needs, plan.state, now=now)
    return plan.answers


def _send(tickets: Sequence[QueuedItem]) -> None:
    """Mark the items as sent: their commit may happen even if the response is lost."""
    for ticket in tickets:
        ticket.sent = True


def _lock_rows(
    database: DedicatedLedgerDatabase, memory: BatchStateCache, needs: batch_plan.BatchRowKeys
) -> batch_plan.BatchState:
    """Begin the transaction and return the locked rows of the batch."""
    if database.is_sqlite:
        database.begin()  # takes the one lock there is
        known = memory.recall(database, needs, now=time.time_ns() // 1_000)
        return known or sql.lock(database, needs)()
    with database.pipelined():
        database.begin()
        read = sql.lock(database, needs)
    before = read()
    memory.compare(before)
    return before


def _store(
    database: DedicatedLedgerDatabase, before: batch_plan.BatchState, plan: batch_plan.BatchPlan
) -> None:
    after = plan.state
    with database.pipelined():
        sql.write_opened(database, plan.opened)
        sql.write_closed(database, plan.closed)
        sql.write_heads(database, sql.filter_changed(before.tips, after.tips))
        sql.write_cells(database, sql.filter_changed(before.cells, after.cells))
        sql.write_rates(database, sql.filter_changed(before.rates, after.rates))
        sql.write_flows(database, sql.filter_changed(before.flows, after.flows))
        sql.write_taints(database, plan.taints)
        sql.store_spent_approvals(database, sql.filter_changed(before.permits, after.permits))
        database.commit()
