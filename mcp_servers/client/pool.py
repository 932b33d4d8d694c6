"""The pool of all upstream connections of a process.

HTTP connections are shared by all callers with the same server and credential. A child process, or
a session of the handshake era, belongs to one holder: `session:<uuid>`, or
`server:<uuid>:<principal>` for calls without a session. A released session of the handshake era may
be kept for another holder of the same owner. Everything here runs on one loop.

The pool does not read the database: `set_server_versions_loader` registers the function that does.
Every process checks its own connections, so a server disabled elsewhere is closed here too.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID, uuid4

from django.conf import settings

from bonobot.core.runtime import Runtime, get_runtime
from bonobot.core.telemetry import tracing
from mcp_servers.client import change_notifications
from mcp_servers.client.answer_server_requests import DiscoveryHost, Host, NullHost
from mcp_servers.client.change_notifications import (
    LISTEN,
    DesiredSubscriptions,
    OnNotification,
    OnOpen,
    OnSubscriptionResult,
    ServerNotification,
    Topic,
    build_not_offered_error,
    list_notifying_topics,
)
from mcp_servers.client.deadlines import RequestDeadline
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, build_closed_error, build_timeout_error
from mcp_servers.client.extension_points import (
    ServerVersionsLoader,
    StderrSink,
    find_server_versions_loader,
    find_stderr_sink,
)
from mcp_servers.client.jsonrpc import McpRequest, OnLog, OnProgress
from mcp_servers.client.list_definitions import ServerDeclarations, list_all_definitions
from mcp_servers.client.openapi import OpenApiUpstream
from mcp_servers.client.protocol_versions import (
    MODERN_SUFFIX,
    HandshakeResult,
    ModernCalls,
    build_live_request_error,
    build_modern_call_error,
    is_later_part,
    is_live_request_refused,
    is_modern_result_refused,
    is_repeatable,
)
from mcp_servers.client.request_telemetry import observe_upstream_request
from mcp_servers.client.stdio import StdioConnection
from mcp_servers.client.stdio_pool import StdioPool
from mcp_servers.client.streamable_http import HttpSession, HttpUpstream
from mcp_servers.client.task_set import TaskSet

UpstreamKey = tuple[UUID, str]  # server and fingerprint
SendWithin = Callable[
    [ServerEndpoint, McpRequest, str, float | None], Coroutine[Any, Any, dict[str, Any]]
]
SWEEP_S = 3.0
_Number = TypeVar("_Number", int, float)
_lock = threading.Lock()


@dataclass(frozen=True)
class IdleSession:
    """A session that no holder uses since `since`; `holder` used it last."""

    upstream_key: UpstreamKey
    owner: str
    holder: str
    session: HttpSession
    since: float


class IdleSessions:
    """The idle sessions of a pool, at most `limit`, the oldest first."""

    def __init__(self, limit: int) -> None:
        """`limit` 0 keeps none."""
        self._limit = limit
        self._entries: list[IdleSession] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: IdleSession) -> list[IdleSession]:
        """Keep a session; return those that exceed the limit and must be ended."""
        self._entries.append(entry)
        excess = len(self._entries) - self._limit
        if excess <= 0:
            return []
        evicted, self._entries = self._entries[:excess], self._entries[excess:]
        return evicted

    def take(self, upstream_key: UpstreamKey, owner: str, holder: str) -> IdleSession | None:
        """Remove and return a session of the owner: the holder's own one, else the latest."""
        matching = [
            entry
            for entry in self._entries
            if (entry.upstream_key, entry.owner) == (upstream_key, owner)
        ]
        if not matching:
            return None
        own_entries = [entry for entry in matching if entry.holder == holder]
        entry = (own_entries or matching)[-1]
        self._entries.remove(entry)
        return entry

    def remove(self, is_removed: Callable[[IdleSession], bool]) -> list[IdleSession]:
        """Remove and return the sessions for which `is_removed` is true."""
        removed_entries = [entry for entry in self._entries if is_removed(entry)]
        self._entries = [entry for entry in self._entries if entry not in removed_entries]
        return removed_entries


# A connection that belongs to one holder.
HeldConnection = StdioConnection | HttpSession


class ConnectionPool:
    """All upstream connections of one loop.

    Limits that are None are those of the settings. `on_notification` gets the change notifications
    of all connections except those of discoveries.
    """

    def __init__(
        self,
        *,
        host: Host | None = None,
        max_children: int | None = None,
        idle_s: float | None = None,
        lifetime_s: float | None = None,
        wait_s: float = 0.0,
        idle_session_s: float | None = None,
        max_idle_sessions: int | None = None,
        stderr_sink: StderrSink | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_notification: Callable[[UUID, ServerNotification], None] | None = None,
        load_versions: ServerVersionsLoader | None = None,
    ) -> None:
        self._host = host or NullHost()
        self._discovery_host = host or DiscoveryHost()
        self._on_notification = on_notification
        self._discoveries: dict[str, UUID] = {}
        self._load_versions = load_versions
        self._versions: dict[UUID, str] = {}
        self._idle_s = _get_limit(idle_s, settings.BONOBOT_STDIO_IDLE_S)
        self._wait_s = wait_s
        self._clock = clock
        self._tasks = TaskSet()
        self._stdio_pool = StdioPool(
            self._tasks,
            max_children=_get_limit(max_children, settings.BONOBOT_STDIO_CHILDREN),
            lifetime_s=_get_limit(lifetime_s, settings.BONOBOT_STDIO_LIFETIME_S),
            stderr_sink=stderr_sink,
            clock=clock,
        )
        self._upstreams: dict[UpstreamKey, HttpUpstream | OpenApiUpstream] = {}
        self._owners: dict[str, str] = {}
        self._modern_calls: dict[UUID, ModernCalls] = {}
        self._idle_session_s = _get_limit(idle_session_s, settings.BONOBOT_HTTP_SESSION_IDLE_S)
        max_sessions = _get_limit(max_idle_sessions, settings.BONOBOT_HTTP_SESSIONS)
        self._idle_sessions = IdleSessions(max_sessions if self._idle_session_s else 0)
        self._sweeper: asyncio.Task[None] | None = None

    async def send_request(
        self,
        endpoint: ServerEndpoint,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        holder: str,
        timeout_s: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        log_subscriber: str = "",
        input_schema: Mapping[str, Any] | None = None,
        declaration: Mapping[str, Any] | None = None,
        host: Host | None = None,
    ) -> dict[str, Any]:
        """Return the raw result of one request, with unknown fields; raises `UpstreamError`.

        The deadline is `timeout_s`, else the endpoint's `read_s`, extended by progress (starting a
        child has its own).
        Canceling the call cancels it at the server. A result whose `resultType` is
        `input_required` must be continued by the caller. `input_schema` is the called tool's, for
        arguments mirrored as headers; `declaration` is the approved tool, from which API requests
        are built; `host` answers the server's requests during the call (at other times the host
        that the connection was opened with answers). A log message that names no request is passed
        to one pending request of each `log_subscriber`.
        """
        request = McpRequest(
            *(method, params or {}, on_progress, input_schema, declaration),
            *(on_log, log_subscriber, host),
        )
        if self._sweeper is None or self._sweeper.done():
            self._ensure_sweeper()
        starts_child = endpoint.transport == "stdio" and timeout_s is None
        send = self._send_after_start if starts_child else self._send_within
        try:
            if tracing.TracingState.is_observing_mcp:
                return await self._send_observed(send, endpoint, request, holder, timeout_s)
            return await send(endpoint, request, holder, timeout_s)
        except UpstreamError as error:
            if error.sent and not request.sent:  # a handshake failed
                raise error.with_sent(False) from error
            raise

    async def _send_observed(
        self,
        send: SendWithin,
        endpoint: ServerEndpoint,
        request: McpRequest,
        holder: str,
        timeout_s: float | None,
    ) -> dict[str, Any]:
        """Send a request within an OpenTelemetry span."""
        with observe_upstream_request(endpoint, request.method) as operation:
            if operation is not None:
                operation.set_target(request.params.get("name"))
            request.params = tracing.inject_trace_context(request.params)
            result = await send(endpoint, request, holder, timeout_s)
            if operation is not None:
                operation.finish(result)
            return result

    async def _send_after_start(
        self, endpoint: ServerEndpoint, request: McpRequest, holder: str, timeout_s: float | None
    ) -> dict[str, Any]:
        """Send a request within its deadline, which excludes the start of the child."""
        host = request.host or (self._discovery_host if request.idempotent else self._host)
        async with self._use_child(endpoint, holder, host) as child:
            await child.wait_until_open()
            return await self._send_within(endpoint, request, holder, timeout_s)

    async def perform_handshake(
        self,
        endpoint: ServerEndpoint,
        *,
        holder: str,
        timeout_s: float | None = None,
        host: Host | None = None,
    ) -> HandshakeResult:
        """Return the server's handshake result, in the era it speaks; raises `UpstreamError`."""
        host = host or self._host
        self._ensure_sweeper()
        limit_s = timeout_s or endpoint.connect_s + endpoint.start_s
        with RequestDeadline(endpoint, McpRequest("server/discover"), limit_s):
            if endpoint.transport == "stdio":
                return await (await self._open_child(endpoint, holder, host)).wait_until_open()
            with self._get_upstream(endpoint) as upstream:
                if endpoint.era is None:
                    upstream.forget_era()
                return await upstream.perform_handshake(holder, host)

    async def fetch_declarations(
        self,
        endpoint: ServerEndpoint,
        *,
        timeout_s: float | None = None,
        preferred_holder: str = "",
    ) -> ServerDeclarations:
        """Open a new connection and list everything that the server declares.

        Uses the connection of `preferred_holder` instead if it is open: lists may differ by
        connection. If it ends meanwhile, a new one shows whether the server works. The deadline is
        `timeout_s` for each connection, else one connect, one start and two reads.
        """
        limit_s = timeout_s or endpoint.connect_s + endpoint.start_s + 2 * endpoint.read_s
        if preferred_holder and self._has_connection(endpoint, preferred_holder):
            connection = self.find_connection(endpoint, preferred_holder)

            def is_open() -> bool:
                return self.find_connection(endpoint, preferred_holder) is connection

            try:
                declarations = await self._list_declarations(
                    endpoint, preferred_holder, limit_s, is_open
                )
            except UpstreamError:
                if is_open():
                    raise
            else:
                if is_open():
                    return declarations
        own_holder = f"survey:{uuid4()}"
        self._discoveries[own_holder] = endpoint.server_id
        try:
            return await self._list_declarations(endpoint, own_holder, limit_s)
        finally:
            self._discoveries.pop(own_holder, None)
            await self.release(own_holder)

    async def _list_declarations(
        self,
        endpoint: ServerEndpoint,
        holder: str,
        limit_s: float,
        is_open: Callable[[], bool] = lambda: True,
    ) -> ServerDeclarations:
        """List the definitions on the holder's connection, while `is_open` returns true."""
        started_at, host = time.perf_counter(), self._discovery_host

        async def send_discovery_request(request: McpRequest) -> dict[str, Any]:
            if not is_open():  # a released holder must not get a new connection
                raise build_closed_error(endpoint)
            return await self.send_request(
                endpoint, request.method, request.params, holder=holder, host=host
            )

        with RequestDeadline(endpoint, McpRequest("discovery", sent=True), limit_s):
            handshake = await self.perform_handshake(endpoint, holder=holder, host=host)
            latency_ms = round((time.perf_counter() - started_at) * 1000)
            return await list_all_definitions(
                endpoint, handshake, send_discovery_request, latency_ms
            )

    async def listen(self, endpoint: ServerEndpoint, *, holder: str, on_open: OnOpen) -> None:
        """Receive an HTTP server's change notifications; return when the server ends the stream.

        Subscribes to the topics in its stored discovery. `on_open` is awaited with the granted
        topics, within one connect and one read. Raises `UpstreamError` if the stream is lost, with
        code `not_offered` if the server has none.
        """
        topics = list_notifying_topics((endpoint.discovery or {}).get("capabilities"))
        if not topics or endpoint.transport != "http":
            raise build_not_offered_error(endpoint)
        self._ensure_sweeper()
        limit_s = endpoint.connect_s + endpoint.read_s
        deadline = asyncio.timeout(limit_s)

        async def handle_open(granted_topics: frozenset[Topic]) -> None:
            deadline.reschedule(None)
            await on_open(granted_topics)

        try:
            async with deadline:
                with self._get_upstream(endpoint) as upstream:
                    await upstream.listen(topics, holder, self._host, handle_open)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise build_timeout_error(endpoint, LISTEN, limit_s) from None

    async def watch_resources(
        self,
        endpoint: ServerEndpoint,
        desired: DesiredSubscriptions,
        on_result: OnSubscriptionResult,
        *,
        holder: str,
    ) -> None:
        """Subscribe to single resources of a server; return when the server ends the stream.

        Updates arrive like all change notifications, on the connection of `holder`. Raises
        `UpstreamError` if the stream is lost, with code `not_offered` if the server has none.
        """
        self._ensure_sweeper()
        if endpoint.transport == "stdio":
            try:
                connection = await self._open_child(endpoint, holder, self._host)
                await connection.watch_resources(desired, on_result)
            finally:
                await self.release(holder, endpoint.server_id)
            return
        with self._get_upstream(endpoint) as upstream:
            await upstream.watch_resources(desired, on_result, holder, self._host)

    def set_owner(self, holder: str, owner: str) -> None:
        """Let `holder` use the idle sessions of `owner`, and keep its own for it when released."""
        self._owners[holder] = owner

    async def release(
        self, holder: str, server_id: UUID | None = None, *, keep_sessions: bool = False
    ) -> None:
        """Close the children and handshake sessions of `holder`, at one server or at all.

        With `keep_sessions`, sessions of a holder with an owner are kept for the owner instead.
        """
        upstreams = [
            candidate
            for key, candidate in self._upstreams.items()
            if server_id is None or key[0] == server_id
        ]
        owner = self._owners.get(holder) if server_id else self._owners.pop(holder, None)
        if owner and keep_sessions:
            await self._keep_sessions(holder, owner)
        await _run_all(
            self._stdio_pool.close(
                lambda at, owner: (
                    owner.removesuffix(MODERN_SUFFIX) == holder and server_id in (None, at)
                )
            ),
            *(upstream.release(holder) for upstream in upstreams),
        )

    async def forget_server(self, server_id: UUID) -> None:
        """Close everything of a server and drop the stderr of its children."""
        await self._close_servers({server_id})
        self._modern_calls.pop(server_id, None)
        self._stdio_pool.forget_stderr(server_id)

    async def close_outdated_connections(self) -> None:
        """Close everything of servers that have been disabled, deleted or halted.

        Ends the idle sessions of those that were changed since the last check. Servers with a
        running discovery are skipped: disabled servers may be discovered too.
        """
        open_servers = {key[0] for key in self._upstreams} | self._stdio_pool.list_server_ids()
        open_servers -= set(self._discoveries.values())
        if self._load_versions is None or not open_servers:
            return
        versions = await self._load_versions(open_servers)
        if versions is None:
            return
        await self._close_servers(open_servers - versions.keys())
        changed_keys = {
            server_id
            for server_id, version in versions.items()
            if self._versions.get(server_id, version) != version
        }
        self._versions = {
            server_id: version
            for server_id, version in (self._versions | dict(versions)).items()
            if any(key[0] == server_id for key in self._upstreams)
        }
        idle_sessions = self._idle_sessions.remove(
            lambda session: session.upstream_key[0] in changed_keys
        )
        await _run_all(*_end_sessions(idle_sessions))

    def get_stderr_tail(self, server_id: UUID) -> str:
        """Return the last 64 KiB that the server's latest child wrote to stderr; any thread."""
        return self._stdio_pool.get_stderr_tail(server_id)

    async def close_idle(self) -> None:
        """Close connections idle for five minutes, and children older than a day."""
        now = self._clock()
        idle = [
            key
            for key, upstream in self._upstreams.items()
            if not upstream.busy and upstream.used_at < now - self._idle_s
        ]
        await _run_all(
            self._stdio_pool.close_idle(now - self._idle_s),
            *(self._close_upstream(key) for key in idle),
            *_end_sessions(
                self._idle_sessions.remove(
                    lambda session: session.since < now - self._idle_session_s
                )
            ),
            *(
                upstream.close_idle_sessions(now - self._idle_s)
                for upstream in self._upstreams.values()
            ),
        )

    async def close(self) -> None:
        """Close everything; the next request opens what it needs."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        await _run_all(
            self._stdio_pool.close(lambda *_: True),
            *(self._close_upstream(key) for key in list(self._upstreams)),
        )
        await self._tasks.close()

    async def _close_servers(self, server_ids: Collection[UUID]) -> None:
        keys = [key for key in self._upstreams if key[0] in server_ids]
        await _run_all(
            self._stdio_pool.close(lambda owner, _: owner in server_ids),
            *(self._close_upstream(key) for key in keys),
        )

    def _close_upstream(self, key: UpstreamKey) -> Coroutine[Any, Any, None]:
        """Remove an upstream at once; return what closes it and its idle sessions."""
        upstream = self._upstreams.pop(key)
        idle_sessions = self._idle_sessions.remove(lambda session: session.upstream_key == key)

        async def close() -> None:
            await _run_all(*_end_sessions(idle_sessions))
            await upstream.close()

        return close()

    async def _keep_sessions(self, holder: str, owner: str) -> None:
        """Keep the holder's sessions for the owner; end the ones that are too many."""
        evicted: list[IdleSession] = []
        for key, upstream in self._upstreams.items():
            if not isinstance(upstream, HttpUpstream):
                continue
            if session := upstream.detach_session(holder, self._host):
                entry = IdleSession(
                    key, owner=owner, holder=holder, session=session, since=self._clock()
                )
                evicted += self._idle_sessions.add(entry)
        await _run_all(*_end_sessions(evicted))

    def _take_idle_session(self, key: UpstreamKey, holder: str) -> HttpSession | None:
        owner = self._owners.get(holder)
        entry = self._idle_sessions.take(key, owner, holder) if owner else None
        return entry.session if entry else None

    async def _send_within(
        self, endpoint: ServerEndpoint, request: McpRequest, holder: str, timeout_s: float | None
    ) -> dict[str, Any]:
        """Send a request within its deadline, once more if only the modern era can answer it."""
        host = request.host or (self._discovery_host if request.idempotent else self._host)
        limit_s = endpoint.read_s if timeout_s is None else timeout_s
        send = self._send_to_child if endpoint.transport == "stdio" else self._send_over_http
        with RequestDeadline(endpoint, request, limit_s, extensible=timeout_s is None):
            if self._modern_calls:
                known_calls = self._modern_calls.get(endpoint.server_id)
                request.needs_modern = known_calls is not None and known_calls.contains(request)
            try:
                return await send(endpoint, request, holder, host)
            except UpstreamError as error:
                if is_live_request_refused(request, error):
                    raise build_live_request_error(endpoint, error) from error
                if not is_modern_result_refused(endpoint, request, error):
                    raise
                self._modern_calls.setdefault(endpoint.server_id, ModernCalls()).add(request)
                if not is_repeatable(request, error):
                    raise build_modern_call_error(endpoint, error) from error
            request.needs_modern, request.sent = True, False
            return await send(endpoint, request, holder, host)

    async def _send_to_child(
        self, endpoint: ServerEndpoint, request: McpRequest, holder: str, host: Host
    ) -> dict[str, Any]:
        async with self._use_matching_child(endpoint, request, holder, host) as connection:
            try:
                return await connection.send_request(request)
            except UpstreamError as error:
                if error.code != "server_crashed" or (error.sent and not request.idempotent):
                    raise
        # It died before it saw the request, or the request is idempotent: reconnect once.
        async with self._use_matching_child(endpoint, request, holder, host) as connection:
            return await connection.send_request(request)

    async def _send_over_http(
        self, endpoint: ServerEndpoint, request: McpRequest, holder: str, host: Host
    ) -> dict[str, Any]:
        with self._get_upstream(endpoint) as upstream:
            try:
                return await upstream.send_request(request, holder, host)
            except UpstreamError as error:
                connection_lost = error.code == "server_unreachable" and error.http_status is None
                if not (connection_lost and error.sent and request.idempotent):
                    raise
            return await upstream.send_request(request, holder, host)

    def _get_upstream(self, endpoint: ServerEndpoint) -> HttpUpstream | OpenApiUpstream:
        key = (endpoint.server_id, endpoint.fingerprint)
        upstream = self._upstreams.get(key)
        if upstream is None:
            upstream = self._upstreams[key] = (
                OpenApiUpstream(endpoint, self._clock)
                if endpoint.transport == "openapi"
                else HttpUpstream(
                    endpoint,
                    self._clock,
                    lambda holder: self._build_notification_handler(endpoint, holder),
                    lambda holder: self._take_idle_session(key, holder),
                )
            )
        return upstream

    @asynccontextmanager
    async def _use_matching_child(
        self, endpoint: ServerEndpoint, request: McpRequest, holder: str, host: Host
    ) -> AsyncIterator[StdioConnection]:
        """Yield the holder's child, or its second one for a modern call.

        A child that began in one era accepts no requests of the other one.
        """
        async with self._use_child(endpoint, holder, host) as connection:
            handshake = await connection.wait_until_open()
            is_modern_call = endpoint.era == "modern" and (
                request.needs_modern or is_later_part(request)
            )
            if handshake.era == "modern" or not is_modern_call:
                yield connection
                return
        async with self._use_child(endpoint, holder, host, is_modern=True) as connection:
            await connection.wait_until_open()
            yield connection

    @asynccontextmanager
    async def _use_child(
        self, endpoint: ServerEndpoint, holder: str, host: Host, *, is_modern: bool = False
    ) -> AsyncIterator[StdioConnection]:
        """Yield the holder's child, which isn't closed to make room during the block."""
        connection = await self._open_child(endpoint, holder, host, is_modern=is_modern)
        try:
            with connection.track_use():
                yield connection
        finally:
            self._stdio_pool.wake_waiting()

    async def _open_child(
        self, endpoint: ServerEndpoint, holder: str, host: Host, *, is_modern: bool = False
    ) -> StdioConnection:
        """Return the holder's child, or its second one that is modern; waits at the limit."""
        on_notification = self._build_notification_handler(endpoint, holder)
        if is_modern:
            holder += MODERN_SUFFIX
        await self._stdio_pool.wait_for_room(endpoint, holder, self._wait_s)
        return self._stdio_pool.get_connection(
            endpoint, holder, host, on_notification, is_modern=is_modern
        )

    def find_connection(self, endpoint: ServerEndpoint, holder: str) -> HeldConnection | None:
        """Return the holder's open connection, to a server of the handshake era or a child."""
        if endpoint.transport == "stdio":
            return self._stdio_pool.find_connection(endpoint, holder)
        upstream = self._upstreams.get((endpoint.server_id, endpoint.fingerprint))
        return upstream.find_session(holder) if isinstance(upstream, HttpUpstream) else None

    def _has_connection(self, endpoint: ServerEndpoint, holder: str) -> bool:
        if endpoint.transport == "stdio":
            return self._stdio_pool.has_connection(endpoint, holder)
        upstream = self._upstreams.get((endpoint.server_id, endpoint.fingerprint))
        return upstream is not None and upstream.has_session(holder)

    def _build_notification_handler(
        self, endpoint: ServerEndpoint, holder: str
    ) -> OnNotification | None:
        """Return the notification handler of a holder's connection; None for a discovery's."""
        on_notification = self._on_notification
        if on_notification is None or holder in self._discoveries:
            return None

        def forward_notification(notification: ServerNotification) -> None:
            on_notification(endpoint.server_id, replace(notification, holder=holder))

        return forward_notification

    def _ensure_sweeper(self) -> None:
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = self._tasks.spawn(
                self._close_idle_periodically(), name="sweep connections"
            )

    async def _close_idle_periodically(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.close_idle()
            await self.close_outdated_connections()


def _end_sessions(entries: list[IdleSession]) -> list[Coroutine[Any, Any, None]]:
    return [entry.session.end_session() for entry in entries]


async def _run_all(*coroutines: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for coroutine in coroutines:
            group.create_task(coroutine)


def _get_limit(limit: _Number | None, default: _Number) -> _Number:
    return default if limit is None else limit


def get_connection_pool() -> ConnectionPool:
    """Return this process's pool; use it only on the loop of `get_runtime()`."""
    runtime = get_runtime()
    pool: ConnectionPool | None = runtime.services.get(ConnectionPool)
    if pool is None:
        with _lock:
            pool = runtime.services.get(ConnectionPool) or _create_pool(runtime)
    return pool


def _create_pool(runtime: Runtime) -> ConnectionPool:
    pool = ConnectionPool(
        wait_s=settings.BONOBOT_STDIO_WAIT_S,
        stderr_sink=find_stderr_sink(),
        on_notification=change_notifications.dispatch_notification,
        load_versions=find_server_versions_loader(),
    )
    runtime.services[ConnectionPool] = pool
    runtime.on_close(pool.close)
    return pool
