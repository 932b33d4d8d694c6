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
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

from django.db import Error as DatabaseFault
from django.db import IntegrityError, InterfaceError, OperationalError, transaction
from django.db.models import QuerySet

from bonobot.core.runtime import Runtime, get_runtime

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Other writers wait while a batch holds SQLite's lock.
MOST = 16


@dataclass(frozen=True, slots=True)
class _BatchedWork:
    """One item of a batch and the future of its result."""

    fn: Callable[[], Any]
    answer: "asyncio.Future[Any]"


class _BatchRolledBack(Exception):
    """The database refused an item, so the batch was rolled back."""


class TransactionBatcher:
    """The batches of one runtime; use it on its loop only."""

    def __init__(self) -> None:
        """Create a batcher without pending work."""
        self._waiting: list[_BatchedWork] = []
        self._at_work = False

    async def do(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run synchronous database work in a batch; use `atomic` inside for partial rollbacks.

        The work may run twice if the first run was rolled back. A canceled caller stops waiting;
        the work itself runs to completion.
        """
        answer = asyncio.get_running_loop().create_future()
        work = partial(contextvars.copy_context().run, fn, *args, **kwargs)
        if not self._at_work:
            get_runtime().spawn(self._work(), name="rows together")
            self._at_work = True
        self._waiting.append(_BatchedWork(work, answer))
        return cast(T, await answer)

    async def _work(self) -> None:
        group: list[_BatchedWork] = []
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                for one, answer in zip(group, await _run_batch_in_thread(group), strict=True):
                    _set_answer(one, answer)
        finally:
            self._at_work = False
            for one in (*group, *self._waiting):
                one.answer.cancel()
            self._waiting.clear()


async def _run_batch_in_thread(group: list[_BatchedWork]) -> list[Any]:
    try:
        return await get_runtime().orm(_run_batch, [one.fn for one in group])
    except Exception as error:  # noqa: BLE001  # every caller of the batch gets it
        return [error] * len(group)


def _run_batch(group: list[Callable[[], Any]]) -> list[Any]:
    """Run a batch; return the result of each item, or the exception that it raised."""
    if len(group) > 1:
        try:
            with transaction.atomic():
                return [_run_in_batch(one) for one in group]
        except (
            _BatchRolledBack,
            IntegrityError,
        ) as undone:  # foreign keys may be checked at commit
            fault = undone.__cause__ or undone
            logger.warning("%d pieces of work go one by one: %s", len(group), fault)
    return [_run_alone(one) for one in group]


def _run_in_batch(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except DatabaseFault as fault:
        raise _BatchRolledBack from fault
    except Exception as error:  # noqa: BLE001  # the caller gets it
        return error


def _run_alone(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:  # noqa: BLE001  # the caller gets it
        return error


def _set_answer(work: _BatchedWork, answer: Any) -> None:
    if work.answer.done():
        return
    if isinstance(answer, Exception):
        work.answer.set_exception(answer)
    else:
        work.answer.set_result(answer)


_lock = threading.Lock()
_by_runtime: WeakKeyDictionary[Runtime, TransactionBatcher] = WeakKeyDictionary()


def get_transaction_batcher() -> TransactionBatcher:
    """Return the batcher of this process's runtime."""
    with _lock:
        return _by_runtime.setdefault(get_runtime(), TransactionBatcher())


Rows = QuerySet[Any, Any]


def lock(rows: Rows, *, order: Iterable[str] = ("pk",), deleting: bool = False) -> list[Any]:
    """Lock rows until the caller's transaction ends; return their keys (a query).

    `deleting` also blocks writers of rows that refer to them.
    """
    return list(_lock_in_order(rows, order, deleting=deleting).values_list("pk", flat=True))


def update_in_order(rows: Rows, *, order: Iterable[str] = ("pk",), **values: Any) -> int:
    """Lock rows in this order, update them and return how many (a query)."""
    with transaction.atomic():
        return _filter_locked_rows(rows, order).update(**values)


def delete_in_order(rows: Rows, *, order: Iterable[str] = ("pk",)) -> int:
    """Lock unreferenced rows in this order, delete them and return how many."""
    with transaction.atomic():
        return int(_filter_locked_rows(rows, order).delete()[0])


def _filter_locked_rows(rows: Rows, order: Iterable[str]) -> Rows:
    own = rows.model._default_manager
    return cast(Rows, own.filter(pk__in=_lock_in_order(rows, order).values("pk")))


def _lock_in_order(rows: Rows, order: Iterable[str], *, deleting: bool = False) -> Rows:
    return rows.order_by(*order).select_for_update(no_key=not deleting)


# Errors of a database that is unavailable, restarting or locked; others are bugs.
AWAY = (OperationalError, InterfaceError)
RETRY_S = 0.5


async def run_orm_with_retry(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run idempotent database work, retrying until the database is available.

    Retries until the task is canceled: by a person, by the session's timeout, or on shutdown.
    """
    return await retry_database_work(partial(get_runtime().orm, fn, *args, **kwargs))


async def retry_database_work(work: Callable[[], Awaitable[T]]) -> T:
    """Await idempotent work, retrying until the database is available."""
    while True:
        try:
            return await work()
        except AWAY as fault:
            logger.warning("the database is away, trying again: %s", fault)
            await asyncio.sleep(RETRY_S)
