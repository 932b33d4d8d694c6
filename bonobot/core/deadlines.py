"""Deadlines of tasks, with one timer for all of an event loop.

`asyncio.timeout` has a timer for each block, which takes longer than the rest of a short request.
Most blocks end long before their deadline, so one timer for the earliest one is rarely set again.
"""

import asyncio
from math import inf
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary


class Deadline:
    """Cancels the block of a `with` statement after some seconds, and raises `TimeoutError`.

    As `asyncio.timeout`, it uses the task that enters it. `ends_at` is in seconds of the loop's
    clock, infinite while it is paused.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ends_at = inf
        self.has_passed = False
        self._task: asyncio.Task[object] | None = None
        self._cancel_requests = 0  # before this one's

    def __enter__(self) -> Self:
        """Start the deadline."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("A deadline needs a task.")
        self._task, self._cancel_requests = task, task.cancelling()
        self._loop = loop = task.get_loop()
        self._timer = _timers.get(loop) or _timers.setdefault(loop, _DeadlineTimer())
        self.ends_at = ends_at = loop.time() + self.seconds
        self._timer.deadlines.add(self)
        if ends_at < self._timer.wakes_at:
            self._timer.wake_at(ends_at, loop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the deadline; raises `TimeoutError` if it has passed."""
        self._timer.deadlines.discard(self)
        task, self._task = self._task, None
        if self.has_passed and task is not None:
            is_only_reason = task.uncancel() <= self._cancel_requests
            if is_only_reason and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def move(self, ends_at: float) -> None:
        """Change when it ends; infinite pauses it. Without effect after the block or the end."""
        if self.has_passed or self._task is None:
            return
        self.ends_at = ends_at
        self._timer.deadlines.add(self)
        if ends_at < self._timer.wakes_at:
            self._timer.wake_at(ends_at, self._loop)

    def expire(self) -> None:
        """Cancel the task."""
        if self._task is not None:
            self.has_passed = True
            self._task.cancel()


class _DeadlineTimer:
    """The deadlines that run on an event loop, and when the loop looks for passed ones."""

    def __init__(self) -> None:
        self.deadlines: set[Deadline] = set()
        self.wakes_at = inf

    def wake_at(self, ends_at: float, loop: asyncio.AbstractEventLoop) -> None:
        """Look at this time, instead of a later one."""
        self.wakes_at = ends_at
        loop.call_at(ends_at, self._expire_passed, ends_at, loop)

    def _expire_passed(self, woken_at: float, loop: asyncio.AbstractEventLoop) -> None:
        if woken_at != self.wakes_at:
            return  # set before an earlier one
        now, self.wakes_at = loop.time(), inf
        for deadline in [deadline for deadline in self.deadlines if deadline.ends_at <= now]:
            self.deadlines.discard(deadline)
            deadline.expire()
        next_end = min((deadline.ends_at for deadline in self.deadlines), default=inf)
        if next_end < inf:
            self.wake_at(next_end, loop)


_timers: WeakKeyDictionary[asyncio.AbstractEventLoop, _DeadlineTimer] = WeakKeyDictionary()
