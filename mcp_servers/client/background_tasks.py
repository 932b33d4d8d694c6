"""TaskSet of one owner; ReadThrottle.

A child that talks without end, to us or to stderr, would leave less and less of the loop to all
others, also after whoever called it has given up. Its output is left lying in its pipe for a while
instead: the child then waits in its own write. So does a server whose stream of events has no end.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

SHARE = 0.1  # of the loop's time
STREAM_SHARE = 0.25  # more: a stream lasts as long as its caller waits, a child beyond that
GRACE_S = 0.02  # of work at once that nobody pauses for
PER_READ_S = 0.0001  # what a read costs beside what is done with it
LONGEST_S = 1.0


class ReadThrottle:
    """Counts the time that one child's output, or one stream, takes."""

    def __init__(self, share: float | None = None) -> None:
        self._share = share
        self._debt_s = 0.0
        self._at = 0.0

    def spent(self, seconds: float, now: float) -> float:
        """Count one read's work that ended at `now`; return how long not to read, in seconds."""
        share = self._share or SHARE
        self._debt_s = max(0.0, self._debt_s - share * (now - self._at)) + seconds + PER_READ_S
        self._at = now
        return 0.0 if self._debt_s <= GRACE_S else min(self._debt_s / share, LONGEST_S)


logger = logging.getLogger(__name__)


class TaskSet:
    """Tasks of one owner on the running loop; a failure is logged, never lost."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Start `work` beside the caller."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """Cancel what still runs and wait for it."""
        left = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("Background task %s failed", task.get_name(), exc_info=error)
