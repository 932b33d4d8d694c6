"""Row locks in order, retry, batched ORM work.

A hand-over to a thread and a commit cost more than most of what a session writes, and many sessions
write at once. What is handed in while the thread works is done next, as one group; who comes alone
waits for nobody. One that raises disturbs no other, a group that the database refuses is done again
one by one, and nobody hears of an answer before the group's commit.

PostgreSQL turns one of two transactions away that wait for each other. None do where a parent's row
is locked before its children's, and children by key. SQLite has one lock for all who write, which
a transaction takes when it begins; nothing is locked there beside it.

This says who waits, never who may: that is a conditional UPDATE's to tell.
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

# Other writers wait while a group holds SQLite's lock.
MOST = 16


@dataclass(frozen=True, slots=True)
class _BatchedWork:
    """One piece of work and who waits for it."""

    fn: Callable[[], Any]
    answer: "asyncio.Future[Any]"


class _BatchRolledBack(Exception):
    """The database refused a piece of a group, so nothing of the group was kept."""


class TransactionBatcher:
    """The groups of one runtime; on its loop only."""

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._waiting: list[_BatchedWork] = []
        self._at_work = False

    async def do(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run synchronous database work in a group; what it must undo alone it does in `atomic`.

        It may be run twice, where nothing of the first time was kept. A cancelled caller stops
        waiting; the work itself goes on to its end.
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
    except Exception as error:  # noqa: BLE001  # all who wait for the group get it
        return [error] * len(group)


def _run_batch(group: list[Callable[[], Any]]) -> list[Any]:
    """Do a group's work; return what each piece returned, or the exception that it raised."""
    if len(group) > 1:
        try:
            with transaction.atomic():
                return [_run_in_batch(one) for one in group]
        except (
            _BatchRolledBack,
            IntegrityError,
        ) as undone:  # references are looked at when it commits
            fault = undone.__cause__ or undone
            logger.warning("%d pieces of work go one by one: %s", len(group), fault)
    return [_run_alone(one) for one in group]


def _run_in_batch(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except DatabaseFault as fault:
        raise _BatchRolledBack from fault
    except Exception as error:  # noqa: BLE001  # who waits for it gets it
        return error


def _run_alone(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:  # noqa: BLE001  # who waits for it gets it
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
    """Return the groups of this process's runtime."""
    with _lock:
        return _by_runtime.setdefault(get_runtime(), TransactionBatcher())


Rows = QuerySet[Any, Any]


def lock(rows: Rows, *, order: Iterable[str] = ("pk",), deleting: bool = False) -> list[Any]:
    """Lock rows until the caller's transaction ends, and return their keys (a query).

    `deleting` also has those wait who write rows that refer to them.
    """
    return list(_lock_in_order(rows, order, deleting=deleting).values_list("pk", flat=True))


def update_in_order(rows: Rows, *, order: Iterable[str] = ("pk",), **values: Any) -> int:
    """Update rows, each locked in this order first; return how many (a query)."""
    with transaction.atomic():
        return _filter_locked_rows(rows, order).update(**values)


def delete_in_order(rows: Rows, *, order: Iterable[str] = ("pk",)) -> int:
    """Delete rows that nothing refers to, each locked in this order first; return how many."""
    with transaction.atomic():
        return int(_filter_locked_rows(rows, order).delete()[0])


def _filter_locked_rows(rows: Rows, order: Iterable[str]) -> Rows:
    own = rows.model._default_manager
    return cast(Rows, own.filter(pk__in=_lock_in_order(rows, order).values("pk")))


def _lock_in_order(rows: Rows, order: Iterable[str], *, deleting: bool = False) -> Rows:
    return rows.order_by(*order).select_for_update(no_key=not deleting)


# What a database that is away, restarts or stays locked answers; other faults are our own.
AWAY = (OperationalError, InterfaceError)
RETRY_S = 0.5


async def run_orm_with_retry(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run database work that may be done twice, again and again until the database is there.

    Waits until its task is cancelled: by a person, by the session's own time, or because this
    process is told to stop.
    """
    return await retry_database_work(partial(get_runtime().orm, fn, *args, **kwargs))


async def retry_database_work(work: Callable[[], Awaitable[T]]) -> T:
    """Await work that may be done twice as `written` does."""
    while True:
        try:
            return await work()
        except AWAY as fault:
            logger.warning("the database is away, trying again: %s", fault)
            await asyncio.sleep(RETRY_S)
