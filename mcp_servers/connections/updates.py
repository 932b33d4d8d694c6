"""Updates: a server tells that single resources of it are no longer what they were.

In the handshake era each is subscribed to (`resources/subscribe`) in a session, and unsubscribed
from; in the modern era a stream is asked for that names all (`subscriptions/listen`), and another
one, there before the first goes, when they are others. Nothing is replayed: whoever missed some
reads again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from mcp_servers.connections.changes import (
    Hear,
    granted_uris,
    listen_request,
    notice_in,
)
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.errors import UpstreamError, protocol_error, timed_out
from mcp_servers.connections.listening import Followed, stay
from mcp_servers.connections.wire import Request

SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"

# Takes a resource, and whether the server tells of it; must return at once.
Told = Callable[[str, bool], None]
OnFrame = Callable[[Mapping[str, Any]], None]
# Asks for a stream by a request and hands on its frames, until it ends.
OpenStream = Callable[[Request, OnFrame], Awaitable[None]]


class Wish:
    """The resources of one server that are to be told of, which may become others meanwhile."""

    def __init__(self) -> None:
        self.uris: set[str] = set()
        self.changed = asyncio.Event()

    def add(self, uri: str) -> None:
        """Wish for one more."""
        self.uris.add(uri)
        self.changed.set()

    def discard(self, uri: str) -> None:
        """Wish for one no longer."""
        self.uris.discard(uri)
        self.changed.set()


class Subscribed(Followed, Protocol):
    """A session of the handshake era, whose stream can be followed."""

    async def ask(self, request: Request) -> dict[str, Any]:
        """Return the raw result of a request within the session; raises `UpstreamError`."""


async def keep_subscribed(endpoint: Endpoint, session: Subscribed, wish: Wish, told: Told) -> None:
    """Subscribe in a session to what is wished for, until its stream ends; raises what ended it."""
    opened = asyncio.Event()

    async def on_open(_: object) -> None:
        opened.set()

    async def subscribing() -> None:
        await opened.wait()
        await subscribe_to(endpoint, session.ask, wish, told)

    await first_of(stay(session, frozenset(), on_open), subscribing())


async def subscribe_to(
    endpoint: Endpoint,
    ask: Callable[[Request], Awaitable[dict[str, Any]]],
    wish: Wish,
    told: Told,
) -> None:
    """Subscribe to what is wished for and unsubscribe from what no longer is, for ever."""
    asked: set[str] = set()

    async def answered(method: str, uri: str) -> bool:
        """Ask for one; False where the server says no; raises where it says nothing."""
        try:
            async with asyncio.timeout(endpoint.read_s):
                await ask(Request(method, {"uri": uri}))
        except TimeoutError:
            raise timed_out(endpoint, method, endpoint.read_s, sent=True) from None
        except UpstreamError as error:
            if error.rpc_code is None:
                raise
            return False
        return True

    while True:
        wish.changed.clear()
        for uri in sorted(wish.uris - asked):
            asked.add(uri)
            told(uri, await answered(SUBSCRIBE, uri))
        for uri in sorted(asked - wish.uris):
            asked.discard(uri)
            await answered(UNSUBSCRIBE, uri)
        await wish.changed.wait()


async def keep_listening(
    endpoint: Endpoint, open_stream: OpenStream, wish: Wish, told: Told, hear: Hear | None
) -> None:
    """Hold a stream for what is wished for, until it ends in order; raises what else ends it."""
    current: asyncio.Task[None] | None = None
    changed: asyncio.Task[Any] | None = None
    try:
        while True:
            wish.changed.clear()
            if not wish.uris:
                await wish.changed.wait()
                continue
            stream = _Stream(endpoint, frozenset(wish.uris), hear)
            following = asyncio.ensure_future(stream.run(open_stream))
            before, current = current, following
            try:
                await stream.opened(following, told)
            finally:
                if before is not None:
                    before.cancel()
            changed = asyncio.ensure_future(wish.changed.wait())
            await asyncio.wait({following, changed}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return following.result()
    finally:
        await _ended(current, changed)


class _Stream:
    """One stream that names resources; what comes before its acknowledgement is none of it."""

    def __init__(self, endpoint: Endpoint, uris: frozenset[str], hear: Hear | None) -> None:
        self._endpoint = endpoint
        self._uris = uris
        self._hear = hear
        self._granted: frozenset[str] | None = None
        self._acknowledged = asyncio.Event()

    async def run(self, open_stream: OpenStream) -> None:
        """Ask for it, and hear it to its end."""
        await open_stream(listen_request((), sorted(self._uris)), self._take)
        if self._granted is None:
            raise protocol_error(self._endpoint, "it ended a stream that it had not acknowledged")

    async def opened(self, running: "asyncio.Task[None]", told: Told) -> None:
        """Wait until it is acknowledged, and tell what is granted; raises what ends it before."""
        acknowledged = asyncio.ensure_future(self._acknowledged.wait())
        try:
            async with asyncio.timeout(self._endpoint.read_s):
                await asyncio.wait({running, acknowledged}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            seconds = self._endpoint.read_s
            raise timed_out(self._endpoint, "subscriptions/listen", seconds, sent=True) from None
        finally:
            acknowledged.cancel()
        if self._granted is None:
            running.result()
        for uri in self._uris:
            told(uri, uri in (self._granted or ()))

    def _take(self, frame: Mapping[str, Any]) -> None:
        if self._granted is None:
            self._granted = granted_uris(frame)
            if self._granted is not None:
                self._acknowledged.set()
        elif self._hear is not None and (notice := notice_in(frame)) is not None and notice.uri:
            self._hear(notice)


async def first_of(*work: Any) -> None:
    """Wait until the first of several ends; raises what ended it, and ends the others."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _ended(*tasks)


async def _ended(*tasks: "asyncio.Task[Any] | None") -> None:
    left = [task for task in tasks if task is not None]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
