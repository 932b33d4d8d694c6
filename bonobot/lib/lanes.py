"""Lanes: so many at once of one kind of background work on a process's loop, the others in a row.

What runs beside sessions must leave them room: of the loop, of the threads for rows
(`Runtime.aside`), of the servers' patience. How many go and wait is told at `/metrics`.
"""

import asyncio
from types import TracebackType
from weakref import WeakKeyDictionary

from bonobot.lib import metrics
from bonobot.lib.runtime import Runtime, runtime

BESIDE_EACH_OTHER = {"discovery": 16, "health": 32}


class Lane:
    """A place for so many at once; enter it with `async with`."""

    def __init__(self, name: str) -> None:
        """Begin empty."""
        self.most = BESIDE_EACH_OTHER[name]
        self._gate = asyncio.Semaphore(self.most)
        self._going = metrics.child(metrics.lanes, name, "going")
        self._waiting = metrics.child(metrics.lanes, name, "waiting")

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


_by_runtime: WeakKeyDictionary[Runtime, dict[str, Lane]] = WeakKeyDictionary()


def lane(name: str) -> Lane:
    """Return this process's lane of a kind; on the loop of `runtime()` only."""
    lanes = _by_runtime.setdefault(runtime(), {})
    if (found := lanes.get(name)) is None:
        found = lanes[name] = Lane(name)
    return found
