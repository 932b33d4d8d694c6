"""Deadlines of requests to servers, with one timer for all of an event loop.

`asyncio.timeout` has a timer for each block, which takes longer than the rest of a short request.
Most blocks end long before their deadline, so one timer for the earliest one is rarely set again.

While a server of the handshake era waits for a response from us (from a person or a model), the
deadline of the request it belongs to is paused. The host limits how long that takes. Progress
extends a deadline that the caller didn't choose, up to a bound.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import WeakKeyDictionary

from bonobot.core.http.connection_errors import SILENT, TIMED_OUT
from bonobot.core.i18n.messages import format_message
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import (
    UpstreamError,
    build_timeout_error,
    build_unreachable_error,
)

if TYPE_CHECKING:
    from mcp_servers.client.jsonrpc import McpRequest

# Progress extends a request's deadline to at most this many times its length.
PROGRESS_FACTOR = 10


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
        passed = [deadline for deadline in self.deadlines if deadline.ends_at <= now]
        for deadline in sorted(passed, key=attrgetter("ends_at")):
            self.deadlines.discard(deadline)
            deadline.expire()
        next_end = min((deadline.ends_at for deadline in self.deadlines), default=inf)
        if next_end < inf:
            self.wake_at(next_end, loop)


_timers: WeakKeyDictionary[asyncio.AbstractEventLoop, _DeadlineTimer] = WeakKeyDictionary()


@dataclass
class AnswerWait:
    """How long servers waited for a person or a model during a call, in seconds."""

    seconds: float = 0.0


_answer_wait: ContextVar[AnswerWait | None] = ContextVar("answer_wait", default=None)


@contextmanager
def measure_answer_wait() -> Iterator[AnswerWait]:
    """Measure how long servers wait in the block; it counts for an enclosing block, too."""
    outer, wait = _answer_wait.get(), AnswerWait()
    token = _answer_wait.set(wait)
    try:
        yield wait
    finally:
        _answer_wait.reset(token)
        if outer is not None:
            outer.seconds += wait.seconds


class RequestDeadline(Deadline):
    """The deadline of a request to a server, as a context manager that raises `UpstreamError`.

    Its error says whether the server saw the request. `extensible` says whether progress extends
    it.
    """

    def __init__(
        self,
        endpoint: ServerEndpoint,
        request: "McpRequest",
        seconds: float,
        *,
        extensible: bool = False,
    ) -> None:
        super().__init__(seconds)
        self._endpoint = endpoint
        self._request = request
        self._extensible = extensible
        self._extendable_s = (PROGRESS_FACTOR - 1) * seconds
        self._pause_count = 0
        self._paused_at = self._remaining_s = 0.0
        self._answer_wait = _answer_wait.get()
        request.deadline = self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the deadline; raises `UpstreamError` if it has passed."""
        if self._pause_count > 0:
            self._count_pause(asyncio.get_running_loop().time())
        self._pause_count = -1  # pauses that are still open must not move it
        self._request.deadline = None  # no cycle for the garbage collector
        is_timeout = isinstance(error, TimeoutError)
        try:
            super().__exit__(kind, error, traceback)
        except TimeoutError:
            is_timeout = True
        if is_timeout:
            raise self._build_error() from None

    def extend(self) -> None:
        """Restart the deadline after progress, up to the bound."""
        if not self._extensible or self._pause_count != 0 or self.has_passed:
            return
        now = asyncio.get_running_loop().time()
        gained_s = min(now + self.seconds - self.ends_at, self._extendable_s)
        if gained_s > 0:
            self._extendable_s -= gained_s
            self.move(self.ends_at + gained_s)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Pause the deadline inside the block."""
        if self._pause_count < 0 or self.has_passed:
            yield
            return
        now = asyncio.get_running_loop().time
        if self._pause_count == 0:
            self._paused_at = now()
            self._remaining_s = max(0.0, self.ends_at - self._paused_at)
            self.move(inf)
        self._pause_count += 1
        try:
            yield
        finally:
            if self._pause_count > 0:
                self._pause_count -= 1
                if self._pause_count == 0:
                    self._count_pause(now())
                    self.move(now() + self._remaining_s)

    def _count_pause(self, ends_at: float) -> None:
        if self._answer_wait is not None:
            self._answer_wait.seconds += ends_at - self._paused_at

    def _build_error(self) -> UpstreamError:
        endpoint, request, seconds = self._endpoint, self._request, self.seconds
        if request.sent:
            return build_timeout_error(endpoint, request.method, seconds)
        if seconds > endpoint.connect_s and endpoint.transport != "stdio":
            # Connecting has ended: it has a shorter limit of its own.
            return build_unreachable_error(endpoint, SILENT.reason, remedy=SILENT.remedy)
        return build_unreachable_error(
            endpoint,
            format_message("no connection within {seconds:g} s", seconds=seconds),
            remedy=TIMED_OUT.remedy,
        )
