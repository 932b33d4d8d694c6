"""Streamable HTTP transport, both eras.

Modern requests are stateless. In the handshake era each holder has a session, opened at its first
request and renewed once if the server has lost it: over Streamable HTTP, or over HTTP+SSE for
servers that support nothing else.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from bonobot.core.http.egress import build_guarded_client
from mcp_servers.client import change_notifications
from mcp_servers.client.background_tasks import TaskSet
from mcp_servers.client.change_notifications import (
    DesiredSubscriptions,
    Hear,
    OnFrame,
    OnOpen,
    Told,
    Topic,
    keep_listening,
    keep_subscribed,
    subscribe,
    throttle_messages,
    watch_session_stream,
)
from mcp_servers.client.endpoint import Era, ServerEndpoint, Wire
from mcp_servers.client.errors import UpstreamError, build_header_error
from mcp_servers.client.host import Host, ServerRequestHandler
from mcp_servers.client.http_channel import (
    NOBODY,
    HttpChannel,
    IdleTracker,
    OnMessage,
    build_routing_headers,
)
from mcp_servers.client.jsonrpc import (
    McpRequest,
    build_modern_meta,
    build_notification,
    is_for_request,
    message_of,
    parse_result,
    report,
)
from mcp_servers.client.protocol_versions import (
    FOREIGN_STATUSES,
    METHOD_NOT_FOUND,
    HandshakeResult,
    ask_who_it_is,
    build_initialize_request,
    check_handshake_allowed,
    is_foreign,
    may_be_oldest,
    parse_initialize_result,
)
from mcp_servers.client.sse import SseSession

PARTING_S = 2.0
LISTENING_S = 1.0
SESSION_ID = "Mcp-Session-Id"


class StreamableHttpSession:
    """The session of one holder at one server."""

    wire: Wire = "streamable"
    alive = True  # until a response says that the session is lost

    def __init__(
        self,
        endpoint: ServerEndpoint,
        channel: HttpChannel,
        host: Host,
        crew: TaskSet,
        clock: Callable[[], float],
        hear: Hear | None = None,
        followed: bool = False,
    ) -> None:
        self.greeting: HandshakeResult
        self._asking = 0
        self._used_at = clock()
        self._clock = clock
        self._endpoint = endpoint
        self._channel = channel
        self._host = host
        self._crew = crew
        self._hear = hear
        self._followed = followed  # then another stream is open for server messages already
        self._desk = ServerRequestHandler(endpoint, host, crew, self._tell)
        self._numbers = itertools.count(1)
        self._headers: dict[str, str] = {}
        self._listener: asyncio.Task[None] | None = None

    async def open(self) -> HandshakeResult:
        """Perform the handshake."""
        request = build_initialize_request(self._host.capabilities(self._endpoint))
        message = message_of(next(self._numbers), request, {})
        found = await self._channel.ask(request, message, {}, self._heard(request, message["id"]))
        greeting = parse_initialize_result(
            self._endpoint, parse_result(self._endpoint, found.message)
        )
        self._headers["MCP-Protocol-Version"] = greeting.protocol_version
        if number := found.headers.get(SESSION_ID):
            self._headers[SESSION_ID] = number
        await self._channel.tell(build_notification("notifications/initialized"), self._headers)
        if not self._followed:
            await self._listen(greeting, throttle_messages(self._heard(request, message["id"])))
        self.greeting = greeting
        return greeting

    async def ask(self, request: McpRequest) -> dict[str, Any]:
        """Return the raw result of a request within the session."""
        number = next(self._numbers)
        message = message_of(number, request, {})
        self._asking += 1
        try:
            with self._desk.waiting(request):
                found = await self._channel.ask(
                    request, message, self._headers, self._heard(request, number), resumable=True
                )
        except asyncio.CancelledError:
            gone = build_notification("notifications/cancelled", {"requestId": number})
            self._crew.spawn(self._tell(gone), name=f"cancel {self._endpoint.name}")
            raise
        finally:
            self._asking -= 1
            self._used_at = self._clock()
        return parse_result(self._endpoint, found.message)

    async def follow(self, opened: asyncio.Event) -> None:
        """Pass on server messages until their stream ends; raises what ended it."""
        heard = throttle_messages(self._heard(McpRequest("listen"), NOBODY))
        self._asking += 1
        try:
            await self._channel.follow(self._headers, heard, opened)
        finally:
            self._asking -= 1

    def idle_since(self, moment: float) -> bool:
        """Return whether nothing is pending and nothing was requested since `time`."""
        return not self._asking and self._used_at < moment

    def lost(self, error: UpstreamError) -> bool:
        """Return whether the server has lost this session, so the request had no effect."""
        if SESSION_ID not in self._headers:
            return False
        if error.http_status == 404:
            return error.rpc_code != METHOD_NOT_FOUND
        # Several servers answer this instead of the 404 that the protocol requires.
        return error.http_status == 400 and "session" in str(error).lower()

    def leave(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.cancel()

    async def end(self) -> None:
        """Tell the server that the session has ended, ignoring failures."""
        self.leave()
        if SESSION_ID in self._headers:
            await _try_to_send(self._channel.delete(self._headers))

    async def _listen(self, greeting: HandshakeResult, heard: OnMessage) -> None:
        """Start listening if the server may send requests or notifications on a separate stream.

        Waits briefly for the stream: servers drop messages while nobody listens.
        """
        tells = self._hear is not None and change_notifications.list_notifying_topics(
            greeting.capabilities
        )
        asked = self._host.listens and self._host.capabilities(self._endpoint)
        if not (asked or tells):
            return
        answered = asyncio.Event()
        listening = self._channel.listen(self._headers, heard, answered)
        self._listener = self._crew.spawn(listening, name=f"listen {self._endpoint.name}")
        try:
            async with asyncio.timeout(LISTENING_S):
                await answered.wait()
        except TimeoutError:
            return  # this server sends no headers before its first event
        except asyncio.CancelledError:
            self.leave()
            raise

    def _heard(self, request: McpRequest, number: int) -> OnMessage:
        async def heard(message: dict[str, Any]) -> None:
            if message.get("id") is not None and isinstance(message.get("method"), str):
                self._desk.take(message, request)
            elif self._desk.hears(message):
                return
            elif is_for_request(message, number):
                await report(request, message)
            elif (
                self._hear is not None
                and (notice := change_notifications.parse_change_notification(message)) is not None
            ):
                self._hear(notice)

        return heard

    async def _tell(self, message: Mapping[str, Any]) -> None:
        await _try_to_send(self._channel.tell(message, self._headers))


async def _try_to_send(parting: Coroutine[Any, Any, None]) -> None:
    """Await the coroutine for 2 s at most, ignoring failures."""
    with suppress(UpstreamError, TimeoutError):
        async with asyncio.timeout(PARTING_S):
            await parting


class HttpUpstream(IdleTracker):
    """One server and credential: the HTTP connections, the era, the sessions of holders.

    `find_handler` returns the handler of change notifications of a holder's session, if any.
    """

    def __init__(
        self,
        endpoint: ServerEndpoint,
        clock: Callable[[], float],
        ears: Callable[[str], Hear | None] = lambda holder: None,
    ) -> None:
        super().__init__(clock)
        self.endpoint = endpoint
        self._ears = ears
        try:
            self._client = build_guarded_client(
                allow_private=endpoint.allow_private, headers=endpoint.headers, auth=endpoint.auth
            )
        except UnicodeEncodeError:
            raise build_header_error(endpoint) from None
        self._channel = HttpChannel(endpoint, self._client)
        self._crew = TaskSet()
        self._era: Era | None = endpoint.era
        self._wire = endpoint.wire
        self._numbers = itertools.count(1)
        self._sessions: dict[str, StreamableHttpSession | SseSession] = {}
        self._followed: set[str] = set()
        self._opening = asyncio.Lock()

    def forget_era(self) -> None:
        """Detect the era again at the next request."""
        self._era = None

    async def request(
        self, request: McpRequest, holder: str, host: Host, *, renewed: bool = False
    ) -> dict[str, Any]:
        """Return the raw result; raises `UpstreamError`. The caller sets the deadline.

        A request is sent a second time only if the first was rejected unread (by a server of the
        other era, or one that has lost the session) or is idempotent.
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

    async def greet(self, holder: str, host: Host) -> HandshakeResult:
        """Return the handshake result; detect the era if it isn't known."""
        known, wire = self._era == "handshake", self._wire
        if not known:
            wire = "streamable"
            try:
                greeting = await ask_who_it_is(lambda request: self._modern(request, host))
            except UpstreamError as error:
                check_handshake_allowed(self.endpoint, error)
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
        """Receive change notifications until the server ends the stream; raises `UpstreamError`.

        In the handshake era the stream belongs to a separate session of `holder`.
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
                await watch_session_stream(
                    await self._session(holder, host, self._wire), topics, on_open
                )
        except UpstreamError as error:
            if change_notifications.is_unsupported_error(error):
                raise change_notifications.build_not_offered_error(self.endpoint) from error
            raise
        finally:
            self._followed.discard(holder)
            await self.release(holder)

    async def follow(self, wish: DesiredSubscriptions, told: Told, holder: str, host: Host) -> None:
        """Subscribe to the desired resources until the stream ends; raises `UpstreamError`.

        In the handshake era the stream belongs to a separate session of `holder`.
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
            if change_notifications.is_unsupported_error(error):
                raise change_notifications.build_not_offered_error(self.endpoint) from error
            raise
        finally:
            self._followed.discard(holder)
            await self.release(holder)

    def has_session(self, holder: str) -> bool:
        """Return whether the holder has a live session."""
        session = self._sessions.get(holder)
        return session is not None and session.alive

    async def release(self, holder: str) -> None:
        """End the holder's session, if it has one."""
        if session := self._sessions.pop(holder, None):
            await session.end()

    async def end_idle(self, before: float) -> None:
        """End the sessions unused since `before`."""
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

    async def _modern(self, request: McpRequest, host: Host) -> dict[str, Any]:
        number = next(self._numbers)
        meta = build_modern_meta(host.capabilities(self.endpoint))
        message = message_of(number, request, meta)

        async def heard(other: dict[str, Any]) -> None:
            # Servers send no requests in this era; other notifications are ignored here.
            if is_for_request(other, number):
                await report(request, other)

        found = await self._channel.ask(request, message, build_routing_headers(request), heard)
        return parse_result(self.endpoint, found.message, meta)

    async def _frames(self, host: Host, request: McpRequest, on_frame: OnFrame) -> None:
        """Open a stream of a modern server and pass on its frames until it ends."""
        number = next(self._numbers)
        meta = build_modern_meta(host.capabilities(self.endpoint))

        async def heard(message: dict[str, Any]) -> None:
            if change_notifications.is_of(message, number):
                on_frame(message)
            await asyncio.sleep(change_notifications.BREATH_S)

        message = message_of(number, request, meta)
        found = await self._channel.ask(request, message, build_routing_headers(request), heard)
        parse_result(self.endpoint, found.message)

    async def _over_sse(
        self, holder: str, host: Host, refusal: UpstreamError
    ) -> StreamableHttpSession | SseSession:
        """Try HTTP+SSE after `refusal` of a handshake, which is raised if that fails too."""
        if not may_be_oldest(refusal):
            raise refusal
        try:
            return await self._session(holder, host, "sse")
        except UpstreamError as error:
            raise (refusal if _is_no_sse(error, "sse") else error) from None

    async def _session(
        self, holder: str, host: Host, wire: Wire
    ) -> StreamableHttpSession | SseSession:
        async with self._opening:
            session = self._sessions.get(holder)
            if session is None or not session.alive:
                session = self._new_session(holder, host, wire)
                await session.open()
                self._sessions[holder] = session
            return session

    def _new_session(
        self, holder: str, host: Host, wire: Wire
    ) -> StreamableHttpSession | SseSession:
        common = (host, self._crew, self._clock, self._ears(holder))
        if wire == "sse":
            return SseSession(self.endpoint, self._client, *common)
        return StreamableHttpSession(
            self.endpoint, self._channel, *common, holder in self._followed
        )

    def _drop(self, holder: str, session: StreamableHttpSession | SseSession) -> None:
        session.leave()
        if self._sessions.get(holder) is session:
            del self._sessions[holder]


def _is_no_sse(error: UpstreamError, wire: Wire) -> bool:
    """Return whether a session failed because the server does not speak HTTP+SSE."""
    return wire == "sse" and (
        error.code == "protocol_error" or error.http_status in FOREIGN_STATUSES
    )
