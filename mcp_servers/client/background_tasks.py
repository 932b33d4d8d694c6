"""Background tasks of one owner, and throttling of reads.

A child that writes without end would take more and more of the loop's time, even after its caller
has given up. Reading from it is paused instead, so the child blocks in its own write. The same
applies to a server with an endless event stream.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

LOOP_SHARE = 0.1  # of the loop's time
STREAM_SHARE = 0.25  # more, as a stream ends with its call and a child does not
GRACE_S = 0.02  # of work that causes no pause
PER_READ_S = 0.0001  # overhead of one read
MAX_PAUSE_S = 1.0
logger = logging.getLogger(__name__)


class ReadThrottle:
    """Counts the loop time spent on one child's output or one stream."""

    def __init__(self, share: float | None = None) -> None:
        self._share = share
        self._debt_s = 0.0
        self._updated_at = 0.0

    def add_work(self, seconds: float, now: float) -> float:
        """Add the work of one read that ended at `now`; return the pause in seconds."""
        share = self._share or LOOP_SHARE
        self._debt_s = (
            max(0.0, self._debt_s - share * (now - self._updated_at)) + seconds + PER_READ_S
        )
        self._updated_at = now
        return 0.0 if self._debt_s <= GRACE_S else min(self._debt_s / share, MAX_PAUSE_S)


class TaskSet:
    """Tasks of one owner on the running loop; failures are logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Start `work` in the background."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finish_task)
        return task

    async def close(self) -> None:
        """Cancel running tasks and wait for them."""
        pending = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    def _finish_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("Background task %s failed", task.get_name(), exc_info=error)
