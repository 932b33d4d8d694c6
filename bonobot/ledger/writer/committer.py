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
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, Error, connections

from bonobot.core.db.sqlite.base import get_write_queue
from bonobot.ledger.types import AdmissionResult, build_rate_prefix
from bonobot.ledger.writer import batch_plan, sql
from bonobot.ledger.writer.batch_plan import Answer, BatchRowKeys, BatchState, CloseItem
from bonobot.ledger.writer.queue import AnsweredItem, QueuedItem
from bonobot.ledger.writer.sql import DedicatedLedgerDatabase, LedgerDatabase

MAX_CACHED_ROWS = 10_000  # cells, rates, flows and open rows together; then the cache is cleared
# How long the offset to the database's clock is used before the clocks may have drifted apart.
CLOCK_VALID_S = 60.0
# Processes that alternate find a chain unchanged once or twice in a row.
UNTOUCHED_READS = 8


class BatchStateCache:
    """The cached ledger rows of one connection; used only by the thread that owns it."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._state = _build_empty_state()
        # Organizations that other processes write to: how many unchanged reads are still needed.
        self._shared: dict[UUID, int] = {}
        self._clock_offset_us = 0  # how far the database's clock is ahead of our monotonic clock
        self._clock_valid_until = 0.0

    def find_state(
        self, database: DedicatedLedgerDatabase, row_keys: BatchRowKeys, *, now: int
    ) -> BatchState | None:
        """Return the current rows of a batch (SQLite), or None if they must be read.

        Call it in an open transaction.
        """
        version = database.execute("PRAGMA data_version").fetchall()[0][0]
        if version != self._version:
            self._version, self._state = version, _build_empty_state()
        return self._find_cached_state(row_keys, now)

    def guess_state(self, row_keys: BatchRowKeys) -> BatchState | None:
        """Return the probable rows of a batch (PostgreSQL), or None if they must be read.

        Only for batches of one organization without rates shared with others.
        """
        if len(row_keys.organizations) != 1:
            return None
        (organization_id,) = row_keys.organizations
        if organization_id in self._shared or time.monotonic() > self._clock_valid_until:
            return None
        if not all(key.startswith(build_rate_prefix(organization_id)) for key in row_keys.rates):
            return None
        return self._find_cached_state(
            row_keys, time.monotonic_ns() // 1_000 + self._clock_offset_us
        )

    def remember(self, row_keys: BatchRowKeys, new_state: BatchState, *, now: int) -> None:
        """Cache the rows after a batch was committed at the database's time `now`."""
        cached = self._state
        cached_count = (
            len(cached.cells) + len(cached.rates) + len(cached.flows) + len(cached.open_calls)
        )
        if cached_count > MAX_CACHED_ROWS:
            cached = self._state = _build_empty_state()
        cached.tips |= new_state.tips
        cached.cells |= new_state.cells
        cached.rates |= new_state.rates
        cached.flows |= new_state.flows
        for call_id in row_keys.closing_calls:
            cached.open_calls.pop(call_id, None)
        cached.open_calls |= new_state.open_calls
        self._clock_offset_us = now - time.monotonic_ns() // 1_000
        self._clock_valid_until = time.monotonic() + CLOCK_VALID_S

    def compare_tips(self, state: BatchState) -> None:
        """Compare chains that were read with the cached ones, to find those no longer shared."""
        for organization_id in self._shared.keys() & state.tips.keys():
            is_untouched = self._state.tips.get(organization_id) == state.tips[organization_id]
            remaining = self._shared[organization_id] - 1 if is_untouched else UNTOUCHED_READS
            if remaining > 0:
                self._shared[organization_id] = remaining
            else:
                del self._shared[organization_id]

    def mark_shared(self, row_keys: BatchRowKeys) -> None:
        """Mark the organizations of a batch as changed by another process."""
        self._shared |= dict.fromkeys(row_keys.organizations, UNTOUCHED_READS)

    def clear(self) -> None:
        """Clear the cache; a failed commit may or may not have been stored."""
        self._version, self._state = None, _build_empty_state()
        self._clock_valid_until = 0.0

    def _find_cached_state(self, row_keys: BatchRowKeys, now: int) -> BatchState | None:
        cached = self._state
        if row_keys.approvals:
            return None
        rates, closing, flows = row_keys.rates, row_keys.closing_calls, row_keys.flows
        try:
            return BatchState(
                tips={key: cached.tips[key] for key in row_keys.organizations},
                cells={key: cached.cells[key] for key, _ in row_keys.cells},
                rates={key: cached.rates[key] for key in rates} if rates else {},
                open_calls={key: cached.open_calls[key] for key in closing} if closing else {},
                now=now,
                flows={key: cached.flows[key] for key, _ in flows} if flows else {},
            )
        except KeyError:
            return None


def _build_empty_state() -> BatchState:
    return BatchState({}, cells={}, rates={}, open_calls={}, now=0)


CONNECTION_STATEMENTS = {
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


_is_sent = attrgetter("is_sent")
_get_item = attrgetter("item")


class BatchCommitter:
    """Commits batches; used by one thread only. Raises Django's database errors."""

    def __init__(self) -> None:
        self._database: DedicatedLedgerDatabase | None = None
        self._cache = BatchStateCache()

    def commit(self, queued_items: Sequence[QueuedItem]) -> list[AnsweredItem]:
        """Commit the items and return their answers, in any order."""
        database = self._database = self._database or open_database()
        with database.connection.wrap_database_errors:
            recovered_items: list[AnsweredItem] = []
            if any(map(_is_sent, queued_items)):
                recovered_items = _recover_answers(database, queued_items)
                answered_items = {queued_item for queued_item, _ in recovered_items}
                queued_items = [
                    item
                    for item in queued_items
                    if item not in answered_items and not item.is_abandoned
                ]
            if queued_items:
                answers = _commit_items(database, self._cache, queued_items)
                recovered_items += zip(queued_items, answers, strict=True)
        return recovered_items

    def has_row(self, call_id: UUID) -> bool:
        """Return whether a row with this id exists; raises database errors."""
        database = self._database = self._database or open_database()
        with database.connection.wrap_database_errors:
            return bool(sql.load_written_rows(database, [call_id]))

    def disconnect(self) -> None:
        """Roll back and close the connection; the next commit opens another."""
        database, self._database = self._database, None
        self._cache.clear()
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


def open_database() -> DedicatedLedgerDatabase:
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
    connection.ensure_connection()  # raises errors of Django
    database = DedicatedLedgerDatabase(connection)
    with connection.wrap_database_errors:
        for statement in CONNECTION_STATEMENTS[connection.vendor]:
            database.execute(statement)
    return database


def _recover_answers(
    database: LedgerDatabase, queued_items: Sequence[QueuedItem]
) -> list[AnsweredItem]:
    """Return answers for items that were committed although the response was lost."""
    uncertain_items = [queued_item for queued_item in queued_items if queued_item.is_sent]
    rows = sql.load_written_rows(
        database, [queued_item.item.call_id for queued_item in uncertain_items]
    )
    answered_items: list[AnsweredItem] = []
    for queued_item in uncertain_items:
        row = rows.get(queued_item.item.call_id)
        answer = _recover_answer(queued_item, row) if row else None
        if answer is not None:
            answered_items.append((queued_item, answer))
    return answered_items


def _recover_answer(queued_item: QueuedItem, row: sql.WrittenRow) -> Answer | None:
    item = queued_item.item
    if isinstance(item, CloseItem):
        return True if row.closed == item.text else None
    if row.opened != item.text:
        return None
    if item.admission is None:
        return item.call_id
    return AdmissionResult(item.call_id, row.seq, row.generation)


def _commit_items(
    database: DedicatedLedgerDatabase, cache: BatchStateCache, queued_items: Sequence[QueuedItem]
) -> list[Answer]:
    row_keys = batch_plan.collect_row_keys(map(_get_item, queued_items))
    if database.is_sqlite:
        queue = get_write_queue()
        # Ahead of the other writing threads of this process; without them after the timeout.
        acquired = queue.acquire(timeout_s=SQLITE_BUSY_S, urgent=True)
        try:
            database.execute("BEGIN IMMEDIATE")  # takes the one lock there is
            before = cache.find_state(database, row_keys, now=time.time_ns() // 1_000)
            before = before or sql.lock_rows(database, row_keys)()
            plan = _store_decisions(database, queued_items, before)
        finally:
            if acquired:
                queue.release()
    else:
        answers = _commit_at_once(database, cache, queued_items, row_keys)
        if answers is not None:
            return answers
        with database.open_pipeline():
            database.execute("BEGIN")
            load_state = sql.lock_rows(database, row_keys)
        before = load_state()
        cache.compare_tips(before)
        with database.open_pipeline():
            plan = _store_decisions(database, queued_items, before)
    cache.remember(row_keys, plan.state, now=before.now)
    return plan.answers


def _store_decisions(
    database: DedicatedLedgerDatabase, queued_items: Sequence[QueuedItem], before: BatchState
) -> batch_plan.BatchPlan:
    """Decide a batch on locked rows, write it and commit."""
    plan = batch_plan.decide_batch(before, map(_get_item, queued_items))
    for queued_item in queued_items:
        queued_item.is_sent = True  # its commit may happen even if the response is lost
    sql.store_plan(database, before, plan)
    database.commit()
    return plan


def _commit_at_once(
    database: DedicatedLedgerDatabase,
    cache: BatchStateCache,
    queued_items: Sequence[QueuedItem],
    row_keys: batch_plan.BatchRowKeys,
) -> list[Answer] | None:
    """Commit a batch decided on cached rows; None if it must be decided on stored rows.

    Refusals are never decided on cached rows, since their reason may be gone.
    """
    state = cache.guess_state(row_keys)
    if state is None:
        return None
    items = [queued_item.item for queued_item in queued_items]
    plan = batch_plan.decide_batch(state, items)
    if len(plan.opened) + len(plan.closed) < len(items):
        return None
    unsent_items = [queued_item for queued_item in queued_items if not queued_item.is_sent]
    for queued_item in queued_items:
        queued_item.is_sent = True
    now = sql.write_if_unchanged(database, state, plan)
    if now is None:
        cache.mark_shared(row_keys)
        for queued_item in unsent_items:
            queued_item.is_sent = False
        return None
    cache.remember(row_keys, plan.state, now=now)
    return plan.answers
