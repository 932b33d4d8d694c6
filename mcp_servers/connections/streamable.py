"""HTTP: one server reached with one credential, in the era and over the wire that it speaks.

Modern requests stand for themselves. In the handshake era each holder has a session, opened at
its first request and renewed once when the server has lost it: over Streamable HTTP, or over
HTTP+SSE where a server knows nothing else.
"""

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from bonobot.lib.egress import guarded_client
from mcp_servers.connections import changes
from mcp_servers.connections.changes import Hear, OnOpen, Topic
from mcp_servers.connections.channel import Channel
from mcp_servers.connections.crew import Crew
from mcp_servers.connections.endpoint import Endpoint, Era, Wire
from mcp_servers.connections.eras import (
    FOREIGN_STATUSES,
    Greeting,
    after_probe,
    ask_who_it_is,
    is_foreign,
    may_be_oldest,
)
from mcp_servers.connections.errors import UpstreamError, bad_headers
from mcp_servers.connections.host import Host
from mcp_servers.connections.listening import stay, subscribe
from mcp_servers.connections.mirrors import routing_headers
from mcp_servers.connections.pooled import Pooled
from mcp_servers.connections.sessions import Session
from mcp_servers.connections.sse import SseSession
from mcp_servers.connections.updates import OnFrame, Told, Wish, keep_listening, keep_subscribed
from mcp_servers.connections.wire import (
    Request,
    concerns,
    message_of,
    modern_meta,
    report,
    result_of,
)


class HttpUpstream(Pooled):
    """One server and credential: the pool of connections, the era, the sessions of holders.

    `ears` returns what hears the change notices of a holder's session, if anybody does.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Callable[[], float],
        ears: Callable[[str], Hear | None] = lambda holder: None,
    ) -> None:
        super().__init__(clock)
        self.endpoint = endpoint
        self._ears = ears
        try:
            self._client = guarded_client(
                allow_private=endpoint.allow_private, headers=endpoint.headers, auth=endpoint.auth
            )
        except UnicodeEncodeError:
            raise bad_headers(endpoint) from None
        self._channel = Channel(endpoint, self._client)
        self._crew = Crew()
        self._era: Era | None = endpoint.era
        self._wire = endpoint.wire
        self._numbers = itertools.count(1)
        self._sessions: dict[str, Session | SseSession] = {}
        self._followed: set[str] = set()
        self._opening = asyncio.Lock()

    def forget_era(self) -> None:
        """Find the era out anew, next time."""
        self._era = None

    async def request(
        self, request: Request, holder: str, host: Host, *, renewed: bool = False
    ) -> dict[str, Any]:
        """Return the raw result; raises `UpstreamError`. Waits for ever: deadlines are callers'.

        A request goes out a second time only where the first was refused unread: by a server of
        the other era, or by one that has lost the session; or where asking twice changes nothing.
        """
        if self._era != "modern":
            await self.greet(holder, host)
        if self._era == "modern":
            try:
                return await self._modern(request, host)
            except UpstreamError as error:
                if renewed or not is_foreign(error, "modern"):
                    raise
                self._era = None
                if (await self.greet(holder, host)).era == "modern":
                    raise
        session = await self._session(holder, host, self._wire)
        try:
            return await session.ask(request)
        except UpstreamError as error:
            if renewed or not session.lost(error):
                raise
            self._drop(holder, session)
        return await self.request(request, holder, host, renewed=True)

    async def greet(self, holder: str, host: Host) -> Greeting:
        """Ask the server who it is, in its era, which is found where it isn't known."""
        known, wire = self._era == "handshake", self._wire
        if not known:
            wire = "streamable"
            try:
                greeting = await ask_who_it_is(lambda request: self._modern(request, host))
            except UpstreamError as error:
                after_probe(self.endpoint, error)
            else:
                if greeting is not None:
                    self._era = "modern"
                    return greeting
        try:
            session = await self._session(holder, host, wire)
        except UpstreamError as error:
            if not known:
                session = await self._over_sse(holder, host, error)
            elif is_foreign(error, "handshake") or _is_no_sse(error, wire):
                self._era = None
                return await self.greet(holder, host)
            else:
                raise
        self._era, self._wire = "handshake", session.wire
        return session.greeting

    async def listen(
        self, topics: frozenset[Topic], holder: str, host: Host, on_open: OnOpen
    ) -> None:
        """Hear the server's change notices until it ends their stream; raises `UpstreamError`.

        In the handshake era the stream is that of a session that `holder` has for it.
        """
        hear = self._ears("") or (lambda notice: None)
        self._followed.add(holder)
        try:
            if self._era != "modern":
                await self.greet(holder, host)
            if self._era == "modern":
                declared = host.capabilities(self.endpoint)
                asked = (self.endpoint, self._channel, next(self._numbers), topics, declared)
                await subscribe(*asked, on_open, hear)
            else:
                await stay(await self._session(holder, host, self._wire), topics, on_open)
        except UpstreamError as error:
            if changes.refuses(error):
                raise changes.not_offered(self.endpoint) from error
            raise
        finally:
            self._followed.discard(holder)
            await self.release(holder)

    async def follow(self, wish: Wish, told: Told, holder: str, host: Host) -> None:
        """Have the server tell of what is wished for, until that ends; raises `UpstreamError`.

        In the handshake era by a session that `holder` has for it, as `listen`.
        """
        self._followed.add(holder)
        try:
            if self._era != "modern":
                await self.greet(holder, host)
            if self._era == "modern":
                streams, hear = partial(self._frames, host), self._ears(holder)
                await keep_listening(self.endpoint, streams, wish, told, hear)
            else:
                session = await self._session(holder, host, self._wire)
                await keep_subscribed(self.endpoint, session, wish, told)
        except UpstreamError as error:
            if changes.refuses(error):
                raise changes.not_offered(self.endpoint) from error
            raise
        finally:
            self._followed.discard(holder)
            await self.release(holder)

    def has_session(self, holder: str) -> bool:
        """Say whether the holder has a session that lives."""
        session = self._sessions.get(holder)
        return session is not None and session.alive

    async def release(self, holder: str) -> None:
        """End the holder's session, if it has one."""
        if session := self._sessions.pop(holder, None):
            await session.end()

    async def end_idle(self, before: float) -> None:
        """End the sessions that were not used since `before`."""
        idle = [holder for holder, one in self._sessions.items() if one.idle_since(before)]
        await self._end(*idle)

    async def close(self) -> None:
        """End all sessions and connections."""
        await self._end(*self._sessions)
        await self._crew.close()
        await self._client.aclose()

    async def _end(self, *holders: str) -> None:
        async with asyncio.TaskGroup() as group:
            for holder in holders:
                group.create_task(self.release(holder))

    async def _modern(self, request: Request, host: Host) -> dict[str, Any]:
        number = next(self._numbers)
        meta = modern_meta(host.capabilities(self.endpoint))
        message = message_of(number, request, meta)

        async def heard(other: dict[str, Any]) -> None:
            # Servers ask nothing in this era; what else they tell has no taker here.
            if concerns(other, number):
                await report(request, other)

        found = await self._channel.ask(request, message, routing_headers(request), heard)
        return result_of(self.endpoint, found.message, meta)

    async def _frames(self, host: Host, request: Request, on_frame: OnFrame) -> None:
        """Ask a modern server for a stream, and hand on its frames to its end."""
        number = next(self._numbers)
        meta = modern_meta(host.capabilities(self.endpoint))

        async def heard(message: dict[str, Any]) -> None:
            if changes.is_of(message, number):
                on_frame(message)
            await asyncio.sleep(changes.BREATH_S)

        message = message_of(number, request, meta)
        found = await self._channel.ask(request, message, routing_headers(request), heard)
        result_of(self.endpoint, found.message)

    async def _over_sse(
        self, holder: str, host: Host, refusal: UpstreamError
    ) -> Session | SseSession:
        """Try the oldest wire after `refusal` of a handshake, which is raised where it fails."""
        if not may_be_oldest(refusal):
            raise refusal
        try:
            return await self._session(holder, host, "sse")
        except UpstreamError as error:
            raise (refusal if _is_no_sse(error, "sse") else error) from None

    async def _session(self, holder: str, host: Host, wire: Wire) -> Session | SseSession:
        async with self._opening:
            session = self._sessions.get(holder)
            if session is None or not session.alive:
                session = self._new_session(holder, host, wire)
                await session.open()
                self._sessions[holder] = session
            return session

    def _new_session(self, holder: str, host: Host, wire: Wire) -> Session | SseSession:
        common = (host, self._crew, self._clock, self._ears(holder))
        if wire == "sse":
            return SseSession(self.endpoint, self._client, *common)
        return Session(self.endpoint, self._channel, *common, holder in self._followed)

    def _drop(self, holder: str, session: Session | SseSession) -> None:
        session.leave()
        if self._sessions.get(holder) is session:
            del self._sessions[holder]


def _is_no_sse(error: UpstreamError, wire: Wire) -> bool:
    """Say whether a session over HTTP+SSE failed for not being one."""
    return wire == "sse" and (
        error.code == "protocol_error" or error.http_status in FOREIGN_STATUSES
    )
