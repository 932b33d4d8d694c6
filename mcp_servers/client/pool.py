"""The pool of all upstream connections of a process.

HTTP connections are shared by all callers with the same server and credential. A child process, or
a session of the handshake era, belongs to one holder: `session:<uuid>`, or
`server:<uuid>:<principal>` for calls without a session. Everything here runs on one loop.

The pool does not read the database: `set_stopped_servers_check` registers the function that does.
Every process checks its own connections, so a server disabled elsewhere is closed here too.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4
from weakref import WeakKeyDictionary

from django.conf import settings

from bonobot.core.http.connection_errors import SILENT
from bonobot.core.i18n.messages import format_message
from bonobot.core.runtime import Runtime, get_runtime
from bonobot.core.telemetry import tracing
from mcp_servers.client import change_notifications
from mcp_servers.client.background_tasks import TaskSet
from mcp_servers.client.change_notifications import (
    LISTEN,
    ChangeNotification,
    DesiredSubscriptions,
    Hear,
    OnNotice,
    OnOpen,
    Told,
    Topic,
    build_not_offered_error,
    list_notifying_topics,
)
from mcp_servers.client.child_process import Keep, find_stderr_keeper
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, build_timeout_error, build_unreachable_error
from mcp_servers.client.host import DiscoveryHost, Host, NullHost
from mcp_servers.client.jsonrpc import McpRequest, OnLog, OnProgress, RequestDeadline
from mcp_servers.client.list_definitions import ServerDeclarations, read_all
from mcp_servers.client.openapi import OpenApiUpstream
from mcp_servers.client.protocol_versions import HandshakeResult
from mcp_servers.client.stdio import CHILDREN, LIFETIME_S, StdioConnection, StdioPool
from mcp_servers.client.streamable_http import HttpUpstream


def start_upstream_span(
    endpoint: ServerEndpoint, method: str, params: Mapping[str, Any]
) -> AbstractContextManager[object]:
    """Return the span of one request to a server."""
    if not tracing.is_on():
        return tracing.NOTHING
    name = params.get("name")
    return tracing.start_span(
        f"{method} {name}" if name else method,
        kind="client",
        mcp__method__name=method,
        gen_ai__tool__name=str(name or "") if method == "tools/call" else "",
        bonobot__server__name=endpoint.name,
        network__transport="pipe" if endpoint.transport == "stdio" else "tcp",
    )


Stopped = Callable[[Collection[UUID]], Awaitable[set[UUID]]]
_stopped: list[Stopped] = []


def stop_by(stopped: Stopped) -> None:
    """Register the function that returns which of the open servers must be closed."""
    _stopped[:] = [stopped]


def find_stop_check() -> Stopped | None:
    """Return the registered function, if any."""
    return _stopped[0] if _stopped else None


IDLE_S = 300.0
SWEEP_S = 3.0


class ConnectionPool:
    """All upstream connections of one loop.

    `on_notification` gets the change notifications of all connections except those of discoveries.
    """

    def __init__(
        self,
        *,
        host: Host | None = None,
        children: int = CHILDREN,
        idle_s: float = IDLE_S,
        lifetime_s: float = LIFETIME_S,
        keep: Keep | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_notice: OnNotice | None = None,
        stopped: Stopped | None = None,
    ) -> None:
        self._host = host or NullHost()
        self._onlooker = host or DiscoveryHost()
        self._on_notice = on_notice
        self._surveys: dict[str, UUID] = {}
        self._stopped = stopped
        self._idle_s = idle_s
        self._clock = clock
        self._crew = TaskSet()
        self._seats = StdioPool(
            self._crew, children=children, lifetime_s=lifetime_s, keep=keep, clock=clock
        )
        self._upstreams: dict[tuple[UUID, str], HttpUpstream | OpenApiUpstream] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def request(
        self,
        endpoint: ServerEndpoint,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        holder: str,
        timeout_s: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        input_schema: Mapping[str, Any] | None = None,
        declaration: Mapping[str, Any] | None = None,
        host: Host | None = None,
    ) -> dict[str, Any]:
        """Return the raw result of one request, with unknown fields; raises `UpstreamError`.

        The deadline is `timeout_s`, else the endpoint's `read_s` (starting a child has its own).
        Canceling the call cancels it at the server. A result whose `resultType` is
        `input_required` must be continued by the caller. `input_schema` is the called tool's, for
        arguments mirrored as headers; `declaration` is the approved tool, from which API requests
        are built; `host` answers the server's requests during the call (at other times the host
        that the connection was opened with answers).
        """
        with start_upstream_span(endpoint, method, params or {}):
            said = tracing.inject_trace_context(params or {})
            request = McpRequest(method, said, on_progress, input_schema, declaration, on_log, host)
            host = host or self._host
            self._keep_sweeping()
            if endpoint.transport == "stdio" and timeout_s is None:
                await self._seat(endpoint, holder, host).opened()
            limit_s = endpoint.read_s if timeout_s is None else timeout_s
            async with _enforce_deadline(endpoint, request, limit_s):
                if endpoint.transport == "stdio":
                    return await self._through_child(endpoint, request, holder, host)
                return await self._through_http(endpoint, request, holder, host)

    async def greet(
        self,
        endpoint: ServerEndpoint,
        *,
        holder: str,
        timeout_s: float | None = None,
        host: Host | None = None,
    ) -> HandshakeResult:
        """Return the server's handshake result, in the era it speaks; raises `UpstreamError`."""
        host = host or self._host
        self._keep_sweeping()
        limit_s = timeout_s or endpoint.connect_s + endpoint.start_s
        async with _enforce_deadline(endpoint, McpRequest("server/discover"), limit_s):
            if endpoint.transport == "stdio":
                return await self._seat(endpoint, holder, host).opened()
            with self._upstream(endpoint).used() as upstream:
                if endpoint.era is None:
                    upstream.forget_era()
                return await upstream.greet(holder, host)

    async def survey(
        self, endpoint: ServerEndpoint, *, timeout_s: float | None = None, of: str = ""
    ) -> ServerDeclarations:
        """Open a new connection and list everything that the server declares.

        Uses the connection of `preferred_holder` instead if it is open: lists may differ by
        connection. The deadline is `timeout_s`, else one connect, one start and two reads.
        """
        own = f"survey:{uuid4()}"
        holder = of if of and self._has(endpoint, of) else own
        limit_s = timeout_s or endpoint.connect_s + endpoint.start_s + 2 * endpoint.read_s
        began = time.perf_counter()

        async def ask(request: McpRequest) -> dict[str, Any]:
            return await self.request(
                endpoint, request.method, request.params, holder=holder, host=self._onlooker
            )

        self._surveys[own] = endpoint.server_id
        try:
            async with _enforce_deadline(endpoint, McpRequest("discovery", sent=True), limit_s):
                greeting = await self.greet(endpoint, holder=holder, host=self._onlooker)
                latency_ms = round((time.perf_counter() - began) * 1000)
                return await read_all(endpoint, greeting, ask, latency_ms)
        finally:
            self._surveys.pop(own, None)
            await self.release(own)

    async def listen(self, endpoint: ServerEndpoint, *, holder: str, on_open: OnOpen) -> None:
        """Receive an HTTP server's change notifications; return when the server ends the stream.

        Subscribes to the topics in its stored discovery. `on_open` is awaited with the granted
        topics, within one connect and one read. Raises `UpstreamError` if the stream is lost, with
        code `not_offered` if the server has none.
        """
        topics = list_notifying_topics((endpoint.discovery or {}).get("capabilities"))
        if not topics or endpoint.transport != "http":
            raise build_not_offered_error(endpoint)
        self._keep_sweeping()
        limit_s = endpoint.connect_s + endpoint.read_s
        deadline = asyncio.timeout(limit_s)

        async def opened(granted: frozenset[Topic]) -> None:
            deadline.reschedule(None)
            await on_open(granted)

        try:
            async with deadline:
                with self._upstream(endpoint).used() as upstream:
                    await upstream.listen(topics, holder, self._host, opened)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise build_timeout_error(endpoint, LISTEN, limit_s, sent=True) from None

    async def follow(
        self, endpoint: ServerEndpoint, wish: DesiredSubscriptions, told: Told, *, holder: str
    ) -> None:
        """Subscribe to single resources of a server; return when the server ends the stream.

        Updates arrive like all change notifications, on the connection of `holder`. Raises
        `UpstreamError` if the stream is lost, with code `not_offered` if the server has none.
        """
        self._keep_sweeping()
        if endpoint.transport == "stdio":
            try:
                await self._seat(endpoint, holder, self._host).follow(wish, told)
            finally:
                await self.release(holder, endpoint.server_id)
            return
        with self._upstream(endpoint).used() as upstream:
            await upstream.follow(wish, told, holder, self._host)

    async def release(self, holder: str, server_id: UUID | None = None) -> None:
        """Close the children and handshake sessions of `holder`, at one server or at all."""
        upstreams = [
            one for key, one in self._upstreams.items() if server_id is None or key[0] == server_id
        ]
        await _run_all(
            self._seats.close(
                lambda at, whose: whose == holder and (server_id is None or at == server_id)
            ),
            *(upstream.release(holder) for upstream in upstreams),
        )

    async def forget(self, server_id: UUID) -> None:
        """Close everything of a server and drop the stderr of its children."""
        await self._end({server_id})
        self._seats.forget(server_id)

    async def end_stopped(self) -> None:
        """Close everything of servers that have been disabled, deleted or halted.

        Servers with a running discovery are skipped: disabled servers may be discovered too.
        """
        held = {key[0] for key in self._upstreams} | self._seats.servers()
        held -= set(self._surveys.values())
        if self._stopped is not None and held:
            await self._end(await self._stopped(held))

    def stderr_tail(self, server_id: UUID) -> str:
        """Return the last 64 KiB that the server's latest child wrote to stderr; any thread."""
        return self._seats.stderr_tail(server_id)

    async def sweep(self) -> None:
        """Close connections idle for five minutes, and children older than a day."""
        now = self._clock()
        idle = [
            key
            for key, upstream in self._upstreams.items()
            if not upstream.busy and upstream.used_at < now - self._idle_s
        ]
        await _run_all(
            self._seats.close_idle(now - self._idle_s),
            *(self._upstreams.pop(key).close() for key in idle),
            *(upstream.end_idle(now - self._idle_s) for upstream in self._upstreams.values()),
        )

    async def close(self) -> None:
        """Close everything; the next request opens what it needs."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        upstreams, self._upstreams = self._upstreams, {}
        await _run_all(
            self._seats.close(lambda *_: True),
            *(upstream.close() for upstream in upstreams.values()),
        )
        await self._crew.close()

    async def _end(self, servers: Collection[UUID]) -> None:
        keys = [key for key in self._upstreams if key[0] in servers]
        await _run_all(
            self._seats.close(lambda whose, _: whose in servers),
            *(self._upstreams.pop(key).close() for key in keys),
        )

    async def _through_child(
        self, endpoint: ServerEndpoint, request: McpRequest, holder: str, host: Host
    ) -> dict[str, Any]:
        connection = self._seat(endpoint, holder, host)
        await connection.opened()
        try:
            return await connection.request(request)
        except UpstreamError as error:
            if error.code != "server_crashed" or (error.sent and not request.repeatable):
                raise
        # It died before it saw the request, or the request is idempotent: reconnect once.
        return await self._seat(endpoint, holder, host).request(request)

    async def _through_http(
        self, endpoint: ServerEndpoint, request: McpRequest, holder: str, host: Host
    ) -> dict[str, Any]:
        with self._upstream(endpoint).used() as upstream:
            try:
                return await upstream.request(request, holder, host)
            except UpstreamError as error:
                broke_off = error.code == "server_unreachable" and error.http_status is None
                if not (broke_off and error.sent and request.repeatable):
                    raise
            return await upstream.request(request, holder, host)

    def _upstream(self, endpoint: ServerEndpoint) -> HttpUpstream | OpenApiUpstream:
        key = (endpoint.server_id, endpoint.fingerprint)
        if key not in self._upstreams:
            self._upstreams[key] = (
                OpenApiUpstream(endpoint, self._clock)
                if endpoint.transport == "openapi"
                else HttpUpstream(
                    endpoint, self._clock, lambda holder: self._ears(endpoint, holder)
                )
            )
        return self._upstreams[key]

    def _seat(self, endpoint: ServerEndpoint, holder: str, host: Host) -> StdioConnection:
        return self._seats.connection(endpoint, holder, host, self._ears(endpoint, holder))

    def _has(self, endpoint: ServerEndpoint, holder: str) -> bool:
        if endpoint.transport == "stdio":
            return self._seats.has(endpoint, holder)
        upstream = self._upstreams.get((endpoint.server_id, endpoint.fingerprint))
        return upstream is not None and upstream.has_session(holder)

    def _ears(self, endpoint: ServerEndpoint, holder: str) -> Hear | None:
        """Return the notification handler of a holder's connection; None for a discovery's."""
        on_notice = self._on_notice
        if on_notice is None or holder in self._surveys:
            return None

        def hear(notice: ChangeNotification) -> None:
            on_notice(endpoint.server_id, replace(notice, holder=holder))

        return hear

    def _keep_sweeping(self) -> None:
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = self._crew.spawn(self._sweep_for_ever(), name="sweep connections")

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.sweep()
            await self.end_stopped()


@asynccontextmanager
async def _enforce_deadline(
    endpoint: ServerEndpoint, request: McpRequest, seconds: float
) -> AsyncIterator[None]:
    """Raise after `seconds`, with the error that says whether the server saw the request."""
    deadline = request.deadline = RequestDeadline(seconds)
    try:
        async with deadline.running():
            yield
    except TimeoutError:
        if request.sent:
            raise build_timeout_error(endpoint, request.method, seconds, sent=True) from None
        raise build_unreachable_error(
            endpoint,
            format_message("no connection within {seconds:g} s", seconds=seconds),
            remedy=SILENT.remedy,
        ) from None


async def _run_all(*work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(one)


_lock = threading.Lock()
_by_runtime: WeakKeyDictionary[Runtime, ConnectionPool] = WeakKeyDictionary()


def get_connection_pool() -> ConnectionPool:
    """Return this process's pool; use it only on the loop of `get_runtime()`."""
    with _lock:
        own = get_runtime()
        if (made := _by_runtime.get(own)) is None:
            made = _by_runtime[own] = ConnectionPool(
                children=settings.BONOBOT_STDIO_CHILDREN,
                idle_s=settings.BONOBOT_STDIO_IDLE_S,
                lifetime_s=settings.BONOBOT_STDIO_LIFETIME_S,
                keep=find_stderr_keeper(),
                on_notice=change_notifications.on_notice,
                stopped=find_stop_check(),
            )
            own.on_close(made.close)
        return made
