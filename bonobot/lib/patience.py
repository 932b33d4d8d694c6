"""Patience: a database that is away comes back, and what was done must not be lost with it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import InterfaceError, OperationalError

from bonobot.lib.runtime import runtime

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# What a database that is away, restarts or stays locked answers; other faults are our own.
AWAY = (OperationalError, InterfaceError)
RETRY_S = 0.5


async def written(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run database work that may be done twice, again and again until the database is there.

    Waits until its task is cancelled: by a person, by the session's own time, or because this
    process is told to stop.
    """
    return await patiently(partial(runtime().orm, fn, *args, **kwargs))


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Await work that may be done twice as `written` does."""
    while True:
        try:
            return await work()
        except AWAY as fault:
            logger.warning("the database is away, trying again: %s", fault)
            await asyncio.sleep(RETRY_S)
