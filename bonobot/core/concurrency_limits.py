"""How many of a kind run at once in a process.

What runs beside sessions must leave them room: of the loop, of the threads for rows
(`Runtime.aside`), of the servers' patience. How many go and wait is told at `/metrics`.
"""

import asyncio
from types import TracebackType
from weakref import WeakKeyDictionary

from bonobot.core.runtime import Runtime, get_runtime
from bonobot.core.telemetry import metrics

BESIDE_EACH_OTHER = {"discovery": 16, "health": 32}


class ConcurrencyLimit:
    """A place for so many at once; enter it with `async with`."""

    def __init__(self, name: str) -> None:
        """Begin empty."""
        self.most = BESIDE_EACH_OTHER[name]
        self._gate = asyncio.Semaphore(self.most)
        self._going = metrics.get_labeled_metric(metrics.lanes, name, "going")
        self._waiting = metrics.get_labeled_metric(metrics.lanes, name, "waiting")

    async def __aenter__(self) -> None:
        with self._waiting.track_inprogress():
            await self._gate.acquire()
        self._going.inc()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._going.dec()
        self._gate.release()


_by_runtime: WeakKeyDictionary[Runtime, dict[str, ConcurrencyLimit]] = WeakKeyDictionary()


def get_concurrency_limit(name: str) -> ConcurrencyLimit:
    """Return this process's lane of a kind; on the loop of `runtime()` only."""
    lanes = _by_runtime.setdefault(get_runtime(), {})
    if (found := lanes.get(name)) is None:
        found = lanes[name] = ConcurrencyLimit(name)
    return found
