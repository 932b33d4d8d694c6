"""Together: short database work of many coroutines, done by one thread in one transaction.

A hand-over to a thread and a commit cost more than most of what a session writes, and many sessions
write at once. What is handed in while the thread works is done next, as one group; who comes alone
waits for nobody. One that raises disturbs no other, a group that the database refuses is done again
one by one, and nobody hears of an answer before the group's commit.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

from django.db import Error as DatabaseFault
from django.db import IntegrityError, transaction

from bonobot.lib.runtime import Runtime, runtime

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Other writers wait while a group holds SQLite's lock.
MOST = 16


@dataclass(frozen=True, slots=True)
class _Work:
    """One piece of work and who waits for it."""

    fn: Callable[[], Any]
    answer: "asyncio.Future[Any]"


class _Undone(Exception):
    """The database refused a piece of a group, so nothing of the group was kept."""


class Together:
    """The groups of one runtime; on its loop only."""

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._waiting: list[_Work] = []
        self._at_work = False

    async def do(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run synchronous database work in a group; what it must undo alone it does in `atomic`.

        It may be run twice, where nothing of the first time was kept. A cancelled caller stops
        waiting; the work itself goes on to its end.
        """
        answer = asyncio.get_running_loop().create_future()
        work = partial(contextvars.copy_context().run, fn, *args, **kwargs)
        if not self._at_work:
            runtime().spawn(self._work(), name="rows together")
            self._at_work = True
        self._waiting.append(_Work(work, answer))
        return cast(T, await answer)

    async def _work(self) -> None:
        group: list[_Work] = []
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                for one, answer in zip(group, await _answers(group), strict=True):
                    _tell(one, answer)
        finally:
            self._at_work = False
            for one in (*group, *self._waiting):
                one.answer.cancel()
            self._waiting.clear()


async def _answers(group: list[_Work]) -> list[Any]:
    try:
        return await runtime().orm(_done, [one.fn for one in group])
    except Exception as error:  # noqa: BLE001  # all who wait for the group get it
        return [error] * len(group)


def _done(group: list[Callable[[], Any]]) -> list[Any]:
    """Do a group's work; return what each piece returned, or the exception that it raised."""
    if len(group) > 1:
        try:
            with transaction.atomic():
                return [_tried(one) for one in group]
        except (_Undone, IntegrityError) as undone:  # references are looked at when it commits
            fault = undone.__cause__ or undone
            logger.warning("%d pieces of work go one by one: %s", len(group), fault)
    return [_alone(one) for one in group]


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except DatabaseFault as fault:
        raise _Undone from fault
    except Exception as error:  # noqa: BLE001  # who waits for it gets it
        return error


def _alone(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:  # noqa: BLE001  # who waits for it gets it
        return error


def _tell(work: _Work, answer: Any) -> None:
    if work.answer.done():
        return
    if isinstance(answer, Exception):
        work.answer.set_exception(answer)
    else:
        work.answer.set_result(answer)


_lock = threading.Lock()
_by_runtime: WeakKeyDictionary[Runtime, Together] = WeakKeyDictionary()


def together() -> Together:
    """Return the groups of this process's runtime."""
    with _lock:
        return _by_runtime.setdefault(runtime(), Together())
