"""Streamable HTTP transport, both eras.

Modern requests are stateless. In the handshake era each holder has a session, opened at its first
request and renewed once if the server has lost it: over Streamable HTTP, or over HTTP+SSE for
servers that support nothing else.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from math import inf
from typing import Any

from httpx2 import LocalProtocolError

from bonobot.core.http.persistent_client import PersistentClient
from mcp_servers.client import change_notifications
from mcp_servers.client.answer_server_requests import (
    Host,
    ServerRequestHandler,
    build_declared_capabilities,
    select_request_capabilities,
)
from mcp_servers.client.change_notifications import (
    DesiredSubscriptions,
    LogNotification,
    OnFrame,
    OnNotification,
    OnOpen,
    OnSubscriptionResult,
    Topic,
    receive_list_changes,
    throttle_messages,
    watch_resources_by_stream,
    watch_resources_in_session,
    watch_session_stream,
)
from mcp_servers.client.endpoint import Era, ServerEndpoint, Wire
from mcp_servers.client.errors import UpstreamError, build_header_error
from mcp_servers.client.event_streams import OnMessage
from mcp_servers.client.http_requests import (
    NO_REQUEST_ID,
    HttpChannel,
    IdleTracker,
    build_routing_headers,
)
from mcp_servers.client.http_sse import SseSession
from mcp_servers.client.jsonrpc import (
    McpRequest,
    build_modern_meta,
    build_notification,
    build_request_message,
    deliver_notification,
    is_for_request,
    is_log_message,
    parse_result,
)
from mcp_servers.client.protocol_versions import (
    METHOD_NOT_FOUND,
    MODERN_ERRORS,
    MODERN_VERSION,
    OTHER_ERA_STATUSES,
    HandshakeResult,
    build_initialize_request,
    check_handshake_allowed,
    fetch_discover_result,
    is_handshake_refused,
    is_other_era_error,
    parse_initialize_result,
)
from mcp_servers.client.task_set import TaskSet

BEST_EFFORT_TIMEOUT_S = 2.0  # of messages whose failures are ignored
PING_TIMEOUT_S = 2.0  # of a session that was idle
LISTEN_TIMEOUT_S = 1.0
SESSION_ID_HEADER = "Mcp-Session-Id"
# Statuses of 2024-11-05 servers for a POST where they support only GET.
HTTP_SSE_STATUSES = (400, 404, 405)


class StreamableHttpSession:
    """The session of one holder at one server."""

    wire: Wire = "streamable"
    alive = True  # until a response says that the session is lost

    def __init__(
        self,
        endpoint: ServerEndpoint,
        channel: HttpChannel,
        host: Host,
        tasks: TaskSet,
        clock: Callable[[], float],
        on_notification: OnNotification | None = None,
        has_other_stream: bool = False,
    ) -> None:
        self.handshake: HandshakeResult
        self._pending_count = 0
        self._last_used_at = clock()
        self._clock = clock
        self._endpoint = endpoint
        self._channel = channel
        self._host = host
        self._tasks = tasks
        self._on_notification = on_notification
        self._has_other_stream = has_other_stream  # that receives the server's own messages
        self._request_handler = ServerRequestHandler(endpoint, host, tasks, self._send_message)
        self._request_ids = itertools.count(1)
        self._headers: dict[str, str] = {}
        self._listener: asyncio.Task[None] | None = None

    async def open(self) -> HandshakeResult:
        """Perform the handshake."""
        request = build_initialize_request(build_declared_capabilities(self._endpoint))
        message = build_request_message(next(self._request_ids), request, {})
        response = await self._channel.send_request(
            request, message, {}, self._build_message_handler(request, message["id"])
        )
        handshake = parse_initialize_result(
            self._endpoint, parse_result(self._endpoint, response.message)
        )
        self._headers["MCP-Protocol-Version"] = handshake.protocol_version
        if session_id := response.headers.get(SESSION_ID_HEADER.lower()):
            self._headers[SESSION_ID_HEADER] = session_id
        await self._channel.send_message(
            build_notification("notifications/initialized"), self._headers
        )
        if not self._has_other_stream:
            await self._start_listening(
                handshake,
                throttle_messages(self._build_shared_handler(request, message["id"])),
            )
        self.handshake = handshake
        return handshake

    async def send_request(self, request: McpRequest) -> dict[str, Any]:
        """Return the raw result of a request within the session."""
        request_id = next(self._request_ids)
        message = build_request_message(request_id, request, {})
        self._pending_count += 1
        try:
            with self._request_handler.track_request(request):
                response = await self._channel.send_request(
                    request,
                    message,
                    self._headers,
                    self._build_message_handler(request, request_id),
                    resumable=True,
                )
        except asyncio.CancelledError:
            cancellation = build_notification("notifications/cancelled", {"requestId": request_id})
            self._tasks.spawn(
                self._send_message(cancellation), name=f"cancel {self._endpoint.name}"
            )
            raise
        finally:
            self._pending_count -= 1
            self._last_used_at = self._clock()
        return parse_result(self._endpoint, response.message)

    async def receive_messages(self, opened_event: asyncio.Event) -> None:
        """Pass on server messages until their stream ends; raises what ended it."""
        handle_message = throttle_messages(
            self._build_shared_handler(McpRequest("listen"), NO_REQUEST_ID)
        )
        self._pending_count += 1
        try:
            await self._channel.receive_messages(self._headers, handle_message, opened_event)
        finally:
            self._pending_count -= 1

    def set_host(self, host: Host, on_notification: OnNotification | None) -> None:
        """Set who answers the server's requests and gets its notifications from now on."""
        self._host, self._on_notification = host, on_notification
        self._request_handler.set_host(host)

    def keep_open(self) -> None:
        """Do not end the session as idle until `allow_closing`."""
        self._pending_count += 1

    def allow_closing(self) -> None:
        """End the effect of one `keep_open`."""
        self._pending_count -= 1

    @property
    def has_id(self) -> bool:
        """Return whether the server named the session."""
        return SESSION_ID_HEADER in self._headers

    def is_idle_since(self, time: float) -> bool:
        """Return whether nothing is pending and nothing was requested since `time`."""
        return not self._pending_count and self._last_used_at < time

    def is_session_lost(self, error: UpstreamError) -> bool:
        """Return whether the server has lost this session, so the request had no effect."""
        if not self.has_id:
            return False
        if error.http_status == 404:
            return error.rpc_code != METHOD_NOT_FOUND
        # Several servers answer this instead of the 404 that the protocol requires.
        return error.http_status == 400 and "session" in str(error).lower()

    def stop_listening(self) -> None:
        """Stop listening: the session ends."""
        self.alive = False
        if self._listener is not None:
            self._listener.cancel()

    async def end_session(self) -> None:
        """Tell the server that the session has ended, ignoring failures."""
        self.stop_listening()
        if self.has_id:
            await _try_to_send(self._channel.delete_session(self._headers))

    async def _start_listening(self, handshake: HandshakeResult, on_message: OnMessage) -> None:
        """Start listening if the server may send requests or notifications on a separate stream.

        Waits briefly for the stream: servers drop messages without a listener.
        """
        notifies = self._on_notification is not None and (
            change_notifications.list_notifying_topics(handshake.capabilities)
            or change_notifications.can_subscribe(handshake.capabilities)
            or "logging" in handshake.capabilities
        )
        # A request on a stream without a reader would keep the server waiting.
        may_request = self._host.listens and self._endpoint.allowed_requests
        if not (may_request or notifies):
            return
        ready = asyncio.Event()
        listening = self._channel.listen(self._headers, on_message, ready)
        self._listener = self._tasks.spawn(listening, name=f"listen {self._endpoint.name}")
        try:
            async with asyncio.timeout(LISTEN_TIMEOUT_S):
                await ready.wait()
        except TimeoutError:
            return  # this server sends no headers before its first event
        except asyncio.CancelledError:
            self.stop_listening()
            raise

    def _build_message_handler(self, request: McpRequest, request_id: int) -> OnMessage:
        async def handle_message(message: dict[str, Any]) -> None:
            if message.get("id") is not None and isinstance(message.get("method"), str):
                self._request_handler.handle_request(message, request)
            elif self._request_handler.handle_notification(message):
                return
            elif is_for_request(message, request_id):
                await deliver_notification(request, message)
            elif (
                self._on_notification is not None
                and (notification := change_notifications.parse_change_notification(message))
                is not None
            ):
                self._on_notification(notification)

        return handle_message

    def _build_shared_handler(self, request: McpRequest, request_id: int) -> OnMessage:
        """Return the handler of a stream whose messages belong to no request."""
        handle_own_message = self._build_message_handler(request, request_id)

        async def handle_message(message: dict[str, Any]) -> None:
            if not is_log_message(message):
                await handle_own_message(message)
                return
            subscribers: set[str] = set()
            for waiting_request in self._request_handler.list_waiting_requests():
                if (
                    waiting_request.on_log is not None
                    and waiting_request.log_subscriber not in subscribers
                ):
                    subscribers.add(waiting_request.log_subscriber)
                    await deliver_notification(waiting_request, message)
            if self._on_notification is not None:
                self._on_notification(LogNotification(message["params"], frozenset(subscribers)))

        return handle_message

    async def _send_message(self, message: Mapping[str, Any]) -> None:
        await _try_to_send(self._channel.send_message(message, self._headers))


HttpSession = StreamableHttpSession | SseSession


async def _try_to_send(request: Coroutine[Any, Any, None]) -> None:
    """Await a request for 2 s at most, ignoring failures."""
    with suppress(UpstreamError, TimeoutError):
        async with asyncio.timeout(BEST_EFFORT_TIMEOUT_S):
            await request


class HttpUpstream(IdleTracker):
    """One server and credential: the HTTP connections, the era, the sessions of holders.

    `find_handler` returns the handler of change notifications of a holder's session, if any;
    `take_idle` returns an idle session that the holder may use.
    """

    def __init__(
        self,
        endpoint: ServerEndpoint,
        clock: Callable[[], float],
        find_handler: Callable[[str], OnNotification | None] = lambda holder: None,
        take_idle: Callable[[str], HttpSession | None] = lambda holder: None,
    ) -> None:
        super().__init__(clock)
        self.endpoint = endpoint
        self._find_handler = find_handler
        self._take_idle = take_idle
        try:
            self._client = PersistentClient(
                allow_private=endpoint.allow_private,
                headers=endpoint.headers,
                connect_s=endpoint.connect_s,
            )
        except LocalProtocolError:
            raise build_header_error(endpoint) from None
        self._channel = HttpChannel(endpoint, self._client)
        self._tasks = TaskSet()
        self._era: Era | None = endpoint.era
        self._wire = endpoint.wire
        self._is_modern_only = False  # until it refused a session that a host needed
        self._request_ids = itertools.count(1)
        self._sessions: dict[str, HttpSession] = {}
        self._watching_holders: set[str] = set()
        self._opening_lock = asyncio.Lock()

    def forget_era(self) -> None:
        """Detect the era again at the next request."""
        self._era = None

    async def send_request(
        self, request: McpRequest, holder: str, host: Host, *, is_retry: bool = False
    ) -> dict[str, Any]:
        """Return the raw result; raises `UpstreamError`. The caller sets the deadline.

        A request is sent a second time only if the first was rejected unread (by a server of the
        other era, or one that has lost the session) or is idempotent.
        """
        if self._era != "modern":
            await self.perform_handshake(holder, host)
        session: HttpSession | None = None
        if self._era == "modern" and host.needs_handshake(self.endpoint):
            session = await self._find_live_session(request, holder, host)
        if self._era == "modern" and session is None:
            try:
                return await self._send_modern_request(request, host)
            except UpstreamError as error:
                if is_retry or not is_other_era_error(error, "modern"):
                    raise
                self._era, request.sent = None, False
                if (await self.perform_handshake(holder, host)).era == "modern":
                    raise
        session = session or await self._get_session(holder, host, self._wire)
        request.era = "handshake"
        try:
            return await session.send_request(request)
        except UpstreamError as error:
            if is_retry or not session.is_session_lost(error):
                raise
            self._drop_session(holder, session)
        request.sent = False
        return await self.send_request(request, holder, host, is_retry=True)

    async def perform_handshake(self, holder: str, host: Host) -> HandshakeResult:
        """Return the handshake result; detect the era if it isn't known."""
        is_known, wire = self._era == "handshake", self._wire
        if not is_known:
            wire = "streamable"
            try:
                handshake = await fetch_discover_result(
                    lambda request: self._send_modern_request(request, host)
                )
            except UpstreamError as error:
                check_handshake_allowed(self.endpoint, error)
            else:
                if handshake is not None:
                    self._era = "modern"
                    return handshake
        try:
            session = await self._get_session(holder, host, wire)
        except UpstreamError as error:
            if not is_known:
                session = await self._connect_over_sse(holder, host, error)
            elif is_other_era_error(error, "handshake") or _is_no_sse(error, wire):
                self._era = None
                return await self.perform_handshake(holder, host)
            else:
                raise
        self._era, self._wire = "handshake", session.wire
        return session.handshake

    async def listen(
        self, topics: frozenset[Topic], holder: str, host: Host, on_open: OnOpen
    ) -> None:
        """Receive change notifications until the server ends the stream; raises `UpstreamError`.

        In the handshake era the stream belongs to a separate session of `holder`.
        """
        on_notification = self._find_handler("") or (lambda notice: None)
        self._watching_holders.add(holder)
        try:
            if self._era != "modern":
                await self.perform_handshake(holder, host)
            if self._era == "modern":
                capabilities = build_declared_capabilities(self.endpoint)
                stream_arguments = (
                    self.endpoint,
                    self._channel,
                    next(self._request_ids),
                    topics,
                    capabilities,
                )
                await receive_list_changes(*stream_arguments, on_open, on_notification)
            else:
                await watch_session_stream(
                    await self._get_session(holder, host, self._wire), topics, on_open
                )
        except UpstreamError as error:
            if change_notifications.is_unsupported_error(error):
                raise change_notifications.build_not_offered_error(self.endpoint) from error
            raise
        finally:
            self._watching_holders.discard(holder)
            await self.release(holder)

    async def watch_resources(
        self,
        desired: DesiredSubscriptions,
        on_result: OnSubscriptionResult,
        holder: str,
        host: Host,
    ) -> None:
        """Subscribe to the desired resources until the stream ends; raises `UpstreamError`.

        In the handshake era the stream belongs to a separate session of `holder`.
        """
        self._watching_holders.add(holder)
        try:
            if self._era != "modern":
                await self.perform_handshake(holder, host)
            if self._era == "modern":
                open_stream, on_notification = (
                    self._receive_frames,
                    self._find_handler(holder),
                )
                await watch_resources_by_stream(
                    self.endpoint, open_stream, desired, on_result, on_notification
                )
            else:
                session = await self._get_session(holder, host, self._wire)
                await watch_resources_in_session(self.endpoint, session, desired, on_result)
        except UpstreamError as error:
            if change_notifications.is_unsupported_error(error):
                raise change_notifications.build_not_offered_error(self.endpoint) from error
            raise
        finally:
            self._watching_holders.discard(holder)
            await self.release(holder)

    def has_session(self, holder: str) -> bool:
        """Return whether the holder has a live session."""
        session = self._sessions.get(holder)
        return session is not None and session.alive

    def find_session(self, holder: str) -> HttpSession | None:
        """Return the holder's live session."""
        session = self._sessions.get(holder)
        return session if session is not None and session.alive else None

    async def release(self, holder: str) -> None:
        """End the holder's session, if it has one."""
        if session := self._sessions.pop(holder, None):
            await session.end_session()

    def detach_session(self, holder: str, host: Host) -> HttpSession | None:
        """Take the holder's session away from it; None if it can't be used by another one.

        `host` answers the server until then.
        """
        session = self._sessions.get(holder)
        if session is None or not session.alive or not session.is_idle_since(inf):
            return None
        del self._sessions[holder]
        session.set_host(host, self._find_handler(""))
        return session

    async def close_idle_sessions(self, unused_since: float) -> None:
        """End the sessions unused since `before`."""
        idle = [
            holder
            for holder, session in self._sessions.items()
            if session.is_idle_since(unused_since)
        ]
        await self._release_all(*idle)

    async def close(self) -> None:
        """End all sessions and connections."""
        await self._release_all(*self._sessions)
        await self._tasks.close()
        await self._client.aclose()

    async def _release_all(self, *holders: str) -> None:
        async with asyncio.TaskGroup() as group:
            for holder in holders:
                group.create_task(self.release(holder))

    async def _send_modern_request(self, request: McpRequest, host: Host) -> dict[str, Any]:
        request_id, request.era = next(self._request_ids), "modern"
        meta = build_modern_meta(
            MODERN_VERSION, select_request_capabilities(self.endpoint, request, host)
        )
        message = build_request_message(request_id, request, meta)

        async def handle_message(notification: dict[str, Any]) -> None:
            # Servers send no requests in this era; other notifications are ignored here.
            if is_for_request(notification, request_id):
                await deliver_notification(request, notification)

        response = await self._channel.send_request(
            request, message, build_routing_headers(request), handle_message
        )
        return parse_result(self.endpoint, response.message, meta)

    async def _receive_frames(self, request: McpRequest, on_frame: OnFrame) -> None:
        """Open a stream of a modern server and pass on its frames until it ends."""
        request_id = next(self._request_ids)
        meta = build_modern_meta(MODERN_VERSION, build_declared_capabilities(self.endpoint))

        async def handle_message(message: dict[str, Any]) -> None:
            if change_notifications.is_subscription_frame(message, request_id):
                on_frame(message)
            await asyncio.sleep(change_notifications.FRAME_PAUSE_S)

        message = build_request_message(request_id, request, meta)
        response = await self._channel.send_request(
            request, message, build_routing_headers(request), handle_message
        )
        parse_result(self.endpoint, response.message)

    async def _find_live_session(
        self, request: McpRequest, holder: str, host: Host
    ) -> HttpSession | None:
        """Return a session at a modern server for a host that needs one, if the server supports it.

        Without a session id the server has no way to send requests during the call.
        """
        is_modern_call = request.needs_modern or not request.era_neutral
        if self._is_modern_only or is_modern_call:
            return None
        try:
            async with asyncio.timeout(self.endpoint.start_s):
                session = await self._get_session(holder, host, "streamable")
        except TimeoutError:
            self._is_modern_only = True
            return None
        except UpstreamError as error:
            if not is_handshake_refused(error):
                raise
            self._is_modern_only = True
            return None
        if isinstance(session, StreamableHttpSession) and not session.has_id:
            self._is_modern_only = True
            self._drop_session(holder, session)
            return None
        return session

    async def _connect_over_sse(
        self, holder: str, host: Host, refusal: UpstreamError
    ) -> HttpSession:
        """Try HTTP+SSE after `refusal` of a handshake, which is raised if that fails too."""
        if not _may_speak_http_sse(refusal):
            raise refusal
        try:
            return await self._get_session(holder, host, "sse")
        except UpstreamError as error:
            raise (refusal if _is_no_sse(error, "sse") else error) from None

    async def _get_session(self, holder: str, host: Host, wire: Wire) -> HttpSession:
        async with self._opening_lock:
            session = self._sessions.get(holder)
            if session is None or not session.alive:
                session = await self._take_idle_session(holder, host, wire)
            if session is None:
                session = self._build_session(holder, host, wire)
                await session.open()
            self._sessions[holder] = session
            return session

    async def _take_idle_session(self, holder: str, host: Host, wire: Wire) -> HttpSession | None:
        """Return an idle session that answers a ping, None if there is none; end a broken one."""
        session = self._take_idle(holder)
        if session is None:
            return None
        is_usable = False
        try:
            is_usable = session.wire == wire and session.alive and await _answers_ping(session)
        finally:
            if not is_usable:
                session.stop_listening()
                self._tasks.spawn(session.end_session(), name=f"end {self.endpoint.name}")
        if not is_usable:
            return None
        session.set_host(host, self._find_handler(holder))
        return session

    def _build_session(self, holder: str, host: Host, wire: Wire) -> HttpSession:
        common = (host, self._tasks, self._clock, self._find_handler(holder))
        if wire == "sse":
            return SseSession(self.endpoint, self._client, *common)
        return StreamableHttpSession(
            self.endpoint, self._channel, *common, holder in self._watching_holders
        )

    def _drop_session(self, holder: str, session: HttpSession) -> None:
        session.stop_listening()
        if self._sessions.get(holder) is session:
            del self._sessions[holder]


async def _answers_ping(session: HttpSession) -> bool:
    """Return whether the server answers in a session; it need not know `ping`."""
    try:
        async with asyncio.timeout(PING_TIMEOUT_S):
            await session.send_request(McpRequest("ping"))
    except UpstreamError as error:
        return error.rpc_code == METHOD_NOT_FOUND and error.http_status is None
    except TimeoutError:
        return False
    return True


def _may_speak_http_sse(error: UpstreamError) -> bool:
    """Return whether a server that rejects `initialize` like this may speak HTTP+SSE."""
    return error.http_status in HTTP_SSE_STATUSES and error.rpc_code not in MODERN_ERRORS


def _is_no_sse(error: UpstreamError, wire: Wire) -> bool:
    """Return whether a session failed because the server does not speak HTTP+SSE."""
    return wire == "sse" and (
        error.code == "protocol_error" or error.http_status in OTHER_ERA_STATUSES
    )
