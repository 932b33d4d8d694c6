"""Per-process limits on concurrent background work.

Background work must leave capacity for sessions: on the loop, in the thread pool
(`Runtime.run_background_orm`) and on servers. `/metrics` shows how many run and wait.
"""

import asyncio
from types import TracebackType
from weakref import WeakKeyDictionary

from bonobot.core.runtime import Runtime, get_runtime
from bonobot.core.telemetry import metrics

MAX_CONCURRENCY = {"discovery": 16, "health": 32}


class ConcurrencyLimit:
    """Limits how many run at once; enter it with `async with`."""

    def __init__(self, name: str) -> None:
        """`name` is a key of `MAX_CONCURRENCY`."""
        self.limit = MAX_CONCURRENCY[name]
        self._semaphore = asyncio.Semaphore(self.limit)
        self._running_gauge = metrics.get_labeled_metric(metrics.background_work, name, "going")
        self._waiting_gauge = metrics.get_labeled_metric(metrics.background_work, name, "waiting")

    async def __aenter__(self) -> None:
        with self._waiting_gauge.track_inprogress():
            await self._semaphore.acquire()
        self._running_gauge.inc()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running_gauge.dec()
        self._semaphore.release()


_limits: WeakKeyDictionary[Runtime, dict[str, ConcurrencyLimit]] = WeakKeyDictionary()


def get_concurrency_limit(name: str) -> ConcurrencyLimit:
    """Return this process's limit of a kind; call on the runtime's loop only."""
    limits = _limits.setdefault(get_runtime(), {})
    if (limit := limits.get(name)) is None:
        limit = limits[name] = ConcurrencyLimit(name)
    return limit
