"""Batched transactions, ordered row locks and retries.

Switching to a thread and committing cost more than most session writes, and many sessions write at
once. So work that arrives while a batch runs forms the next batch. An item that raises doesn't
affect the others, a batch that the database refuses is run again item by item, and results are
delivered after the commit.

To avoid deadlocks on PostgreSQL, a parent's row is locked before its children's, and children by
key. SQLite has one write lock, taken when a transaction begins; row locks do nothing there.

Locks only order transactions; conditional UPDATEs decide what is allowed.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

from django.db import Error as DatabaseFault
from django.db import IntegrityError, InterfaceError, OperationalError, transaction
from django.db.models import QuerySet

from bonobot.core.runtime import DirectFuture, Runtime, get_runtime

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Other writers wait while a batch holds SQLite's lock.
MAX_BATCH_SIZE = 16
_lock = threading.Lock()
Rows = QuerySet[Any, Any]
# Errors of a database that is unavailable, restarting or locked; others are bugs.
UNAVAILABLE_ERRORS = (OperationalError, InterfaceError)
RETRY_DELAY_S = 0.5


@dataclass(frozen=True, slots=True)
class _BatchedWork:
    """One item of a batch and the future of its result."""

    fn: Callable[[], Any]
    future: DirectFuture[Any]


class _BatchRolledBack(Exception):
    """The database refused an item, so the batch was rolled back."""


class TransactionBatcher:
    """The batches of one runtime; use it on its loop only."""

    def __init__(self) -> None:
        """Create a batcher without pending work."""
        self._pending: list[_BatchedWork] = []
        self._is_running = False

    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run synchronous database work in a batch; use `atomic` inside for partial rollbacks.

        The work may run twice if the first run was rolled back. A canceled caller stops waiting;
        the work itself runs to completion.
        """
        runtime = get_runtime()
        future: DirectFuture[T] = DirectFuture(loop=runtime.loop)
        work = partial(contextvars.copy_context().run, fn, *args, **kwargs)
        self._pending.append(_BatchedWork(work, future))
        if not self._is_running:
            self._is_running = True
            runtime.loop.call_soon(self._start_batch, runtime)
        return await future

    def _start_batch(self, runtime: Runtime) -> None:
        while self._pending:
            batch, self._pending = self._pending[:MAX_BATCH_SIZE], self._pending[MAX_BATCH_SIZE:]
            work = partial(_run_batch, [item.fn for item in batch])
            try:
                runtime.submit_orm(work, partial(self._finish_batch, runtime, batch))
            except RuntimeError as error:  # the runtime is closed
                _set_results(batch, [error] * len(batch))
            else:
                return
        self._is_running = False

    def _finish_batch(
        self, runtime: Runtime, batch: list[_BatchedWork], outcome: "Future[list[Any]]"
    ) -> None:
        """Start the next batch, then run the callers of this one."""
        self._start_batch(runtime)
        if outcome.cancelled():
            for item in batch:
                item.future.cancel()
        elif (error := outcome.exception()) is not None:
            _set_results(batch, [error] * len(batch))
        else:
            _set_results(batch, outcome.result())


def _run_batch(batch: list[Callable[[], Any]]) -> list[Any]:
    """Run a batch; return the result of each item, or the exception that it raised."""
    if len(batch) > 1:
        try:
            with transaction.atomic():
                return [_run_in_batch(work) for work in batch]
        except (_BatchRolledBack, IntegrityError) as rollback:  # foreign keys: checked at commit
            cause = rollback.__cause__ or rollback
            logger.warning("%d pieces of work go one by one: %s", len(batch), cause)
    return [_run_alone(work) for work in batch]


def _run_in_batch(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except DatabaseFault as database_error:
        raise _BatchRolledBack from database_error
    except Exception as error:  # noqa: BLE001  # the caller gets it
        return error


def _run_alone(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:  # noqa: BLE001  # the caller gets it
        return error


def _set_results(batch: list[_BatchedWork], results: list[Any]) -> None:
    for item, result in zip(batch, results, strict=True):
        if item.future.done():
            continue
        if isinstance(result, BaseException):
            item.future.set_exception(result)
        else:
            item.future.resume_with(result)


_batchers: WeakKeyDictionary[Runtime, TransactionBatcher] = WeakKeyDictionary()


def get_transaction_batcher() -> TransactionBatcher:
    """Return the batcher of this process's runtime."""
    with _lock:
        return _batchers.setdefault(get_runtime(), TransactionBatcher())


def lock_rows(rows: Rows, *, order: Iterable[str] = ("pk",), deleting: bool = False) -> list[Any]:
    """Lock rows until the caller's transaction ends; return their keys (a query).

    `deleting` also blocks writers of rows that refer to them.
    """
    return list(_lock_in_order(rows, order, deleting=deleting).values_list("pk", flat=True))


def lock_row(row: Any) -> None:
    """Lock one row until the caller's transaction ends (a query).

    Lock the owner of rows before they are counted for a limit: otherwise concurrent requests see
    the same number, and all pass.
    """
    lock_rows(type(row)._base_manager.filter(pk=row.pk))


def update_in_order(rows: Rows, *, order: Iterable[str] = ("pk",), **values: Any) -> int:
    """Lock rows in this order, update them and return how many (a query)."""
    with transaction.atomic():
        return _filter_locked_rows(rows, order).update(**values)


def delete_in_order(rows: Rows, *, order: Iterable[str] = ("pk",)) -> int:
    """Lock unreferenced rows in this order, delete them and return how many."""
    with transaction.atomic():
        return int(_filter_locked_rows(rows, order).delete()[0])


def _filter_locked_rows(rows: Rows, order: Iterable[str]) -> Rows:
    manager = rows.model._default_manager
    return cast(Rows, manager.filter(pk__in=_lock_in_order(rows, order).values("pk")))


def _lock_in_order(rows: Rows, order: Iterable[str], *, deleting: bool = False) -> Rows:
    return rows.order_by(*order).select_for_update(no_key=not deleting)


async def run_orm_with_retry(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run idempotent database work, retrying until the database is available.

    Retries until the task is canceled: by a person, by the session's timeout, or on shutdown.
    """
    return await retry_database_work(partial(get_runtime().run_orm, fn, *args, **kwargs))


async def retry_database_work(work: Callable[[], Awaitable[T]]) -> T:
    """Await idempotent work, retrying until the database is available."""
    while True:
        try:
            return await work()
        except UNAVAILABLE_ERRORS as fault:
            logger.warning("the database is away, trying again: %s", fault)
            await asyncio.sleep(RETRY_DELAY_S)
