"""Deadlines: how long a server may take for one answer, not counting what it waits for us.

While a server of the handshake era waits for an answer of ours (a person's, or a model's), the
time of the request that it asks on behalf of stands still. How long we take is bounded by whoever
answers.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class Deadline:
    """The time of one request."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None
        self._holders = 0
        self._left_s = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raise `TimeoutError` in the body when the time is over."""
        try:
            async with asyncio.timeout(self._seconds) as self._timeout:
                yield
        finally:
            self._holders = -1  # whoever still holds it has nothing to give back

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the time stand still meanwhile."""
        timeout, now = self._timeout, asyncio.get_running_loop().time
        if timeout is None or self._holders < 0 or timeout.expired():
            yield
            return
        if self._holders == 0:
            self._left_s = max(0.0, (timeout.when() or 0.0) - now())
            timeout.reschedule(None)
        self._holders += 1
        try:
            yield
        finally:
            if self._holders > 0:
                self._holders -= 1
                if self._holders == 0:
                    timeout.reschedule(now() + self._left_s)
