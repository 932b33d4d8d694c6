"""The pool: every connection of this process, opened when needed, closed when idle.

HTTP pools are shared by all callers with the same server and credential. A child process, like a
session of the handshake era, belongs to one holder: `session:<uuid>`, or
`server:<uuid>:<principal>` for calls without a session. Everything here runs on one loop.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4
from weakref import WeakKeyDictionary

from django.conf import settings

from bonobot.lib import tracing
from bonobot.lib.failures import SILENT
from bonobot.lib.runtime import Runtime, runtime
from bonobot.lib.sayings import say
from mcp_servers.connections import changes
from mcp_servers.connections.changes import (
    LISTEN,
    ChangeNotice,
    Hear,
    OnNotice,
    OnOpen,
    Topic,
    not_offered,
    notifiable,
)
from mcp_servers.connections.crew import Crew
from mcp_servers.connections.deadlines import Deadline
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.eras import Greeting
from mcp_servers.connections.errors import UpstreamError, timed_out, unreachable
from mcp_servers.connections.host import Host, NoHost, Onlooker
from mcp_servers.connections.last_words import Keep, keeper
from mcp_servers.connections.openapi import OpenApiUpstream
from mcp_servers.connections.seats import CHILDREN, LIFETIME_S, Seats
from mcp_servers.connections.spans import upstream_span
from mcp_servers.connections.stdio import StdioConnection
from mcp_servers.connections.stopping import Stopped, stopper
from mcp_servers.connections.streamable import HttpUpstream
from mcp_servers.connections.survey import Survey, read_all
from mcp_servers.connections.updates import Told, Wish
from mcp_servers.connections.wire import OnLog, OnProgress, Request

IDLE_S = 300.0
SWEEP_S = 3.0


class Connections:
    """All upstream connections of one loop; `request` and `survey` are what callers use.

    `on_notice` gets the change notices that come on any of them, except those of surveys.
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
        self._host = host or NoHost()
        self._onlooker = host or Onlooker()
        self._on_notice = on_notice
        self._surveys: dict[str, UUID] = {}
        self._stopped = stopped
        self._idle_s = idle_s
        self._clock = clock
        self._crew = Crew()
        self._seats = Seats(
            self._crew, children=children, lifetime_s=lifetime_s, keep=keep, clock=clock
        )
        self._upstreams: dict[tuple[UUID, str], HttpUpstream | OpenApiUpstream] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def request(
        self,
        endpoint: Endpoint,
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
        """Return the raw result of one request, unknown members kept; raises `UpstreamError`.

        The deadline is `timeout_s`, else the endpoint's `read_s` (starting a child has its own).
        A cancelled call is cancelled at the server. A result whose `resultType` is
        `input_required` is the caller's to go on with. `input_schema` is the called tool's, for
        arguments that travel as headers too, `declaration` the whole tool as it was approved, by
        which an API is asked; `host` answers what the server asks meanwhile (what it asks at other
        times is answered by the host that the connection was opened with).
        """
        with upstream_span(endpoint, method, params or {}):
            said = tracing.carried(params or {})
            request = Request(method, said, on_progress, input_schema, declaration, on_log, host)
            host = host or self._host
            self._keep_sweeping()
            if endpoint.transport == "stdio" and timeout_s is None:
                await self._seat(endpoint, holder, host).opened()
            limit_s = endpoint.read_s if timeout_s is None else timeout_s
            async with _deadline(endpoint, request, limit_s):
                if endpoint.transport == "stdio":
                    return await self._through_child(endpoint, request, holder, host)
                return await self._through_http(endpoint, request, holder, host)

    async def greet(
        self,
        endpoint: Endpoint,
        *,
        holder: str,
        timeout_s: float | None = None,
        host: Host | None = None,
    ) -> Greeting:
        """Ask the server who it is, in the era that it speaks; raises `UpstreamError`."""
        host = host or self._host
        self._keep_sweeping()
        limit_s = timeout_s or endpoint.connect_s + endpoint.start_s
        async with _deadline(endpoint, Request("server/discover"), limit_s):
            if endpoint.transport == "stdio":
                return await self._seat(endpoint, holder, host).opened()
            with self._upstream(endpoint).used() as upstream:
                if endpoint.era is None:
                    upstream.forget_era()
                return await upstream.greet(holder, host)

    async def survey(
        self, endpoint: Endpoint, *, timeout_s: float | None = None, of: str = ""
    ) -> Survey:
        """Connect anew, find the era where it isn't stored, list all that is declared.

        The connection of the holder `of` is asked instead where it lives: what it lists may be its
        own. Ends within `timeout_s`, else within one connect, one start and two reads.
        """
        own = f"survey:{uuid4()}"
        holder = of if of and self._has(endpoint, of) else own
        limit_s = timeout_s or endpoint.connect_s + endpoint.start_s + 2 * endpoint.read_s
        began = time.perf_counter()

        async def ask(request: Request) -> dict[str, Any]:
            return await self.request(
                endpoint, request.method, request.params, holder=holder, host=self._onlooker
            )

        self._surveys[own] = endpoint.server_id
        try:
            async with _deadline(endpoint, Request("discovery", sent=True), limit_s):
                greeting = await self.greet(endpoint, holder=holder, host=self._onlooker)
                latency_ms = round((time.perf_counter() - began) * 1000)
                return await read_all(endpoint, greeting, ask, latency_ms)
        finally:
            self._surveys.pop(own, None)
            await self.release(own)

    async def listen(self, endpoint: Endpoint, *, holder: str, on_open: OnOpen) -> None:
        """Hear an HTTP server's change notices; returns when it ends their stream in order.

        Asks for what its stored discovery says that it tells. `on_open` is awaited with what was
        granted, within one connect and one read. Raises `UpstreamError` where the stream breaks
        off; `not_offered` where there is none.
        """
        topics = notifiable((endpoint.discovery or {}).get("capabilities"))
        if not topics or endpoint.transport != "http":
            raise not_offered(endpoint)
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
            raise timed_out(endpoint, LISTEN, limit_s, sent=True) from None

    async def follow(self, endpoint: Endpoint, wish: Wish, told: Told, *, holder: str) -> None:
        """Have a server tell of single resources, until it ends that in order.

        What it tells is heard as all change notices are, on the connection of `holder`. Raises
        `UpstreamError` where it breaks off; `not_offered` where nothing is told.
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
        """Close what belongs to `holder`, at one server or at all: children, handshake sessions."""
        upstreams = [
            one for key, one in self._upstreams.items() if server_id is None or key[0] == server_id
        ]
        await _all(
            self._seats.close(
                lambda at, whose: whose == holder and (server_id is None or at == server_id)
            ),
            *(upstream.release(holder) for upstream in upstreams),
        )

    async def forget(self, server_id: UUID) -> None:
        """Close everything of a server, and forget what its children said."""
        await self._end({server_id})
        self._seats.forget(server_id)

    async def end_stopped(self) -> None:
        """Close everything of servers that were switched off, removed or halted meanwhile.

        A server that is being surveyed, which people may do with one that is off, is left for the
        next time.
        """
        held = {key[0] for key in self._upstreams} | self._seats.servers()
        held -= set(self._surveys.values())
        if self._stopped is not None and held:
            await self._end(await self._stopped(held))

    def stderr_tail(self, server_id: UUID) -> str:
        """Return the last 64 KiB that the server's latest child wrote to stderr; any thread."""
        return self._seats.stderr_tail(server_id)

    async def sweep(self) -> None:
        """Close what nobody has used for five minutes, and children that lived for a day."""
        now = self._clock()
        idle = [
            key
            for key, upstream in self._upstreams.items()
            if not upstream.busy and upstream.used_at < now - self._idle_s
        ]
        await _all(
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
        await _all(
            self._seats.close(lambda *_: True),
            *(upstream.close() for upstream in upstreams.values()),
        )
        await self._crew.close()

    async def _end(self, servers: Collection[UUID]) -> None:
        keys = [key for key in self._upstreams if key[0] in servers]
        await _all(
            self._seats.close(lambda whose, _: whose in servers),
            *(self._upstreams.pop(key).close() for key in keys),
        )

    async def _through_child(
        self, endpoint: Endpoint, request: Request, holder: str, host: Host
    ) -> dict[str, Any]:
        connection = self._seat(endpoint, holder, host)
        await connection.opened()
        try:
            return await connection.request(request)
        except UpstreamError as error:
            if error.code != "server_crashed" or (error.sent and not request.repeatable):
                raise
        # Died before it saw the request, or of one that may be asked twice: the one reconnect.
        return await self._seat(endpoint, holder, host).request(request)

    async def _through_http(
        self, endpoint: Endpoint, request: Request, holder: str, host: Host
    ) -> dict[str, Any]:
        with self._upstream(endpoint).used() as upstream:
            try:
                return await upstream.request(request, holder, host)
            except UpstreamError as error:
                broke_off = error.code == "server_unreachable" and error.http_status is None
                if not (broke_off and error.sent and request.repeatable):
                    raise
            return await upstream.request(request, holder, host)

    def _upstream(self, endpoint: Endpoint) -> HttpUpstream | OpenApiUpstream:
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

    def _seat(self, endpoint: Endpoint, holder: str, host: Host) -> StdioConnection:
        return self._seats.connection(endpoint, holder, host, self._ears(endpoint, holder))

    def _has(self, endpoint: Endpoint, holder: str) -> bool:
        if endpoint.transport == "stdio":
            return self._seats.has(endpoint, holder)
        upstream = self._upstreams.get((endpoint.server_id, endpoint.fingerprint))
        return upstream is not None and upstream.has_session(holder)

    def _ears(self, endpoint: Endpoint, holder: str) -> Hear | None:
        """Return what hears the notices on a holder's connection; nobody hears a survey's."""
        on_notice = self._on_notice
        if on_notice is None or holder in self._surveys:
            return None

        def hear(notice: ChangeNotice) -> None:
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
async def _deadline(endpoint: Endpoint, request: Request, seconds: float) -> AsyncIterator[None]:
    """Give up after `seconds`, with the error that says whether the server saw the request."""
    deadline = request.deadline = Deadline(seconds)
    try:
        async with deadline.running():
            yield
    except TimeoutError:
        if request.sent:
            raise timed_out(endpoint, request.method, seconds, sent=True) from None
        raise unreachable(
            endpoint,
            say("no connection within {seconds:g} s", seconds=seconds),
            remedy=SILENT.remedy,
        ) from None


async def _all(*work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(one)


_lock = threading.Lock()
_by_runtime: WeakKeyDictionary[Runtime, Connections] = WeakKeyDictionary()


def connections() -> Connections:
    """Return this process's connections; use them on the loop of `runtime()` only."""
    with _lock:
        own = runtime()
        if (made := _by_runtime.get(own)) is None:
            made = _by_runtime[own] = Connections(
                children=settings.BONOBOT_STDIO_CHILDREN,
                idle_s=settings.BONOBOT_STDIO_IDLE_S,
                lifetime_s=settings.BONOBOT_STDIO_LIFETIME_S,
                keep=keeper(),
                on_notice=changes.on_notice,
                stopped=stopper(),
            )
            own.on_close(made.close)
        return made
