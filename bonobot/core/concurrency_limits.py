"""Per-process limits on concurrent background work.

Background work must leave capacity for sessions: on the loop, in the thread pool
(`Runtime.run_background_orm`) and on servers. `/metrics` shows how many run and wait.
"""

import asyncio
from types import TracebackType
from weakref import WeakKeyDictionary

from bonobot.core.runtime import Runtime, get_runtime
from bonobot.core.telemetry import metrics

BESIDE_EACH_OTHER = {"discovery": 16, "health": 32}


class ConcurrencyLimit:
    """Limits how many run at once; enter it with `async with`."""

    def __init__(self, name: str) -> None:
        """`name` is a key of `MAX_CONCURRENCY`."""
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
    """Return this process's limit of a kind; call on the runtime's loop only."""
    lanes = _by_runtime.setdefault(get_runtime(), {})
    if (found := lanes.get(name)) is None:
        found = lanes[name] = ConcurrencyLimit(name)
    return found
