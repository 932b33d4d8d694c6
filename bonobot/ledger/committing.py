"""Committing: one group of tickets in one durable transaction, on a connection of its own."""

import time
from collections.abc import Sequence
from copy import deepcopy
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, Error, connections

from bonobot.ledger import at_once, groups, store
from bonobot.ledger.databases import Database, OwnDatabase
from bonobot.ledger.entries import Admitted
from bonobot.ledger.groups import Answer, Close
from bonobot.ledger.remembering import Memory
from bonobot.ledger.tickets import Answered, Ticket

LIMITS = {
    # A commit is on the disk when it returns.
    "sqlite": ("PRAGMA synchronous=FULL",),
    # A lock that another host holds, or a database that hangs, must not outlast the callers'
    # deadline; and if this process freezes within a transaction, the chain comes free without it.
    "postgresql": (
        "SET lock_timeout = '1s'",
        "SET statement_timeout = '4s'",
        "SET idle_in_transaction_session_timeout = '2s'",
    ),
}
APPLICATION_NAME = "bonobot ledger"  # in pg_stat_activity
NETWORK_TIMEOUT_MS = 5_000
# For this process's turn, and then for other processes: waiting for them is no fault.
SQLITE_BUSY_S = 1.0


class Committer:
    """Commits groups; used by one thread only. Database errors reach the caller as Django's."""

    def __init__(self) -> None:
        self._database: OwnDatabase | None = None
        self._memory = Memory()

    def commit(self, tickets: Sequence[Ticket]) -> list[Answered]:
        """Store what becomes of the tickets and return their answers, in any order."""
        database = self._database = self._database or connect()
        with database.connection.wrap_database_errors:
            answered = _recalled(database, tickets)
            known = {ticket for ticket, _ in answered}
            rest = [ticket for ticket in tickets if ticket not in known and not ticket.moot]
            if rest:
                answered += zip(rest, _commit(database, self._memory, rest), strict=True)
        return answered

    def holds(self, call_id: UUID) -> bool:
        """Tell whether a row of this id is there; raises the database's errors."""
        database = self._database = self._database or connect()
        with database.connection.wrap_database_errors:
            return bool(store.written(database, [call_id]))

    def disconnect(self) -> None:
        """Close the connection, with what it hadn't committed; the next commit opens another."""
        database, self._database = self._database, None
        self._memory.forget()
        if database is None:
            return
        connection = database.connection
        try:
            # Closing alone would leave SQLite's lock with a cursor that an exception still holds.
            with connection.wrap_database_errors:
                connection.connection.rollback()
            connection.close()
        except Error:
            connection.connection = None  # it was broken already


def connect() -> OwnDatabase:
    """Open a connection to the default database that belongs to no pool."""
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
    database = OwnDatabase(connection)
    with connection.wrap_database_errors:
        for statement in LIMITS[connection.vendor]:
            database.execute(statement)
    return database


def _recalled(database: Database, tickets: Sequence[Ticket]) -> list[Answered]:
    """Answer the tickets whose commit had happened although its answer was lost."""
    doubtful = [ticket for ticket in tickets if ticket.sent]
    if not doubtful:
        return []
    found = store.written(database, [ticket.item.call_id for ticket in doubtful])
    answered: list[Answered] = []
    for ticket in doubtful:
        row = found.get(ticket.item.call_id)
        answer = _recall(ticket, row) if row else None
        if answer is not None:
            answered.append((ticket, answer))
    return answered


def _recall(ticket: Ticket, row: store.Written) -> Answer | None:
    item = ticket.item
    if isinstance(item, Close):
        return True if row.closed == item.text else None
    if row.opened != item.text:
        return None
    if item.admission is None:
        return item.call_id
    return Admitted(item.call_id, row.seq, row.generation)


def _commit(database: OwnDatabase, memory: Memory, tickets: Sequence[Ticket]) -> list[Answer]:
    items = [ticket.item for ticket in tickets]
    needs = groups.needs(items)
    answers = _commit_at_once(database, memory, tickets, needs)
    if answers is not None:
        return answers
    with database.turn(within_s=SQLITE_BUSY_S):
        before = _locked(database, memory, needs)
        plan = groups.decide(before, items)
        _send(tickets)
        _store(database, before, plan)
    memory.learn(needs, plan.state, now=before.now)
    return plan.answers


def _commit_at_once(
    database: OwnDatabase, memory: Memory, tickets: Sequence[Ticket], needs: groups.Needs
) -> list[Answer] | None:
    """Commit a group decided on what is remembered; None: it must be decided on what is stored.

    A refusal is never given from memory: what it is for may be over.
    """
    guessed = memory.guess(database, needs)
    if guessed is None:
        return None
    items = [ticket.item for ticket in tickets]
    plan = groups.decide(guessed, items)
    if len(plan.opened) + len(plan.closed) < len(items):
        return None
    fresh = [ticket for ticket in tickets if not ticket.sent]
    _send(tickets)
    now = at_once.write(database, guessed, plan)
    if now is None:
        memory.mistaken(needs)
        for ticket in fresh:
            ticket.sent = False
        return None
    memory.learn(needs, plan.state, now=now)
    return plan.answers


def _send(tickets: Sequence[Ticket]) -> None:
    """Note that the tickets' commit goes out: what becomes of it may never be heard."""
    for ticket in tickets:
        ticket.sent = True


def _locked(database: OwnDatabase, memory: Memory, needs: groups.Needs) -> groups.State:
    """Open the transaction and return the rows that the group touches, which are locked now."""
    if database.is_sqlite:
        database.begin()  # takes the one lock there is
        known = memory.recall(database, needs, now=time.time_ns() // 1_000)
        return known or store.lock(database, needs)()
    with database.pipelined():
        database.begin()
        read = store.lock(database, needs)
    before = read()
    memory.compare(before)
    return before


def _store(database: OwnDatabase, before: groups.State, plan: groups.Plan) -> None:
    after = plan.state
    with database.pipelined():
        store.write_opened(database, plan.opened)
        store.write_closed(database, plan.closed)
        store.write_heads(database, store.changed(before.tips, after.tips))
        store.write_cells(database, store.changed(before.cells, after.cells))
        store.write_rates(database, store.changed(before.rates, after.rates))
        store.write_flows(database, store.changed(before.flows, after.flows))
        store.write_taints(database, plan.taints)
        store.spend(database, store.changed(before.permits, after.permits))
        database.commit()
