"""Held calls: a server of the handshake era waits for an answer that a modern client must give.

The client's request is answered with what the server asks (`input_required`), and the call stays
out; the client's next request brings the answers, and waits for the call again (FEATURES X1). What
waits is a live connection, so it is in one process, to which others pass on (`handing`); a client
that stays away is told as a refusal to the server after `BONOBOT_ANSWER_S`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

from django.conf import settings
from mcp.shared.exceptions import MCPError

from agents.calls import Outcome
from bonobot.lib.runtime import runtime

REFUSED = -1


class HeldCall:
    """A call that is out, and what its server waits to be told."""

    def __init__(self) -> None:
        self.id = str(uuid4())
        self._asked: dict[str, tuple[Mapping[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[Outcome] | None = None
        self._number = 0

    async def run(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome | dict[str, Any]:
        """Send the call out; return its outcome, or what its server asks first."""
        self._task = runtime().loop.create_task(_awaited(call), name=f"held call {self.id}")
        self._task.add_done_callback(lambda _: self._news.set())
        return await self._next()

    async def go_on(self, responses: Mapping[str, Any]) -> Outcome | dict[str, Any]:
        """Hand answers over; return the outcome, or what is asked now: what is missing, again."""
        for key, answer in responses.items():
            _, waiting = self._asked.pop(key, ({}, None))
            if waiting is not None and not waiting.done() and isinstance(answer, dict):
                waiting.set_result(answer)
        return self.requests if self._asked else await self._next()

    def end(self) -> None:
        """End the call: nobody waits for it."""
        if self._task is not None:
            self._task.cancel()

    def when_over(self, over: Callable[[], object]) -> None:
        """Have `over` called when the call is."""
        assert self._task is not None  # noqa: S101 - it was sent out
        self._task.add_done_callback(lambda _: over())

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Have the client asked by its next answer; raises `MCPError` where it stays away."""
        self._number += 1
        key = f"ask-{self._number}"
        waiting: asyncio.Future[dict[str, Any]] = runtime().loop.create_future()
        self._asked[key] = ({"method": method, "params": dict(params)}, waiting)
        self._news.set()
        try:
            async with asyncio.timeout(settings.BONOBOT_ANSWER_S):
                return await waiting
        except TimeoutError:
            raise MCPError(code=REFUSED, message="Nobody answered in time.") from None
        finally:
            self._asked.pop(key, None)

    @property
    def requests(self) -> dict[str, Any]:
        """What is asked now, by keys."""
        return {key: dict(asked) for key, (asked, _) in self._asked.items()}

    async def _next(self) -> Outcome | dict[str, Any]:
        """Wait until the call is over, or asks; a client that leaves meanwhile ends the call."""
        assert self._task is not None  # noqa: S101 - `run` comes first
        try:
            while not self._task.done() and not self._asked:
                self._news.clear()
                await self._news.wait()
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        return await self._task if self._task.done() else self.requests


async def _awaited(call: Callable[[], Awaitable[Outcome]]) -> Outcome:
    return await call()
