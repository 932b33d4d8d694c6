"""The pool: every connection of this process, opened when needed, closed when idle.

HTTP pools are shared by all callers with the same server and credential. A child process, like a
session of the handshake era, belongs to one holder: `session:<uuid>`, or
`server:<uuid>:<principal>` for calls without a session. Everything here runs on one loop.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4
from weakref import WeakKeyDictionary

from django.conf import settings

from bonobot.lib.runtime import Runtime, runtime
from mcp_servers.connections.crew import Crew
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.eras import Greeting
from mcp_servers.connections.errors import UpstreamError, timed_out, unreachable
from mcp_servers.connections.host import Host, NoHost
from mcp_servers.connections.seats import CHILDREN, Seats
from mcp_servers.connections.streamable import HttpUpstream
from mcp_servers.connections.survey import Survey, read_all
from mcp_servers.connections.wire import OnProgress, Request

IDLE_S = 300.0
SWEEP_S = 15.0


class Connections:
    """All upstream connections of one loop; `request` and `survey` are what callers use."""

    def __init__(
        self,
        *,
        host: Host | None = None,
        children: int = CHILDREN,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host or NoHost()
        self._idle_s = idle_s
        self._clock = clock
        self._crew = Crew()
        self._seats = Seats(self._crew, children=children, clock=clock)
        self._upstreams: dict[tuple[UUID, str], HttpUpstream] = {}
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
        input_schema: Mapping[str, Any] | None = None,
        host: Host | None = None,
    ) -> dict[str, Any]:
        """Return the raw result of one request, unknown members kept; raises `UpstreamError`.

        The deadline is `timeout_s`, else the endpoint's `read_s` (starting a child has its own).
        A cancelled call is cancelled at the server. A result whose `resultType` is
        `input_required` is the caller's to go on with. `input_schema` is the called tool's, for
        arguments that travel as headers too; `host` answers what the server asks meanwhile (a
        session of the handshake era keeps the host that it was opened with).
        """
        request = Request(method, params or {}, on_progress, input_schema)
        host = host or self._host
        self._keep_sweeping()
        if endpoint.transport == "stdio" and timeout_s is None:
            await self._seats.connection(endpoint, holder, host).opened()
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
                return await self._seats.connection(endpoint, holder, host).opened()
            with self._upstream(endpoint).used() as upstream:
                if endpoint.era is None:
                    upstream.forget_era()
                return await upstream.greet(holder, host)

    async def survey(self, endpoint: Endpoint, *, timeout_s: float | None = None) -> Survey:
        """Connect anew, find the era where it isn't stored, list all that is declared.

        Ends within `timeout_s`, else within one connect, one start and two reads.
        """
        holder = f"survey:{uuid4()}"
        limit_s = timeout_s or endpoint.connect_s + endpoint.start_s + 2 * endpoint.read_s
        began = time.perf_counter()

        async def ask(request: Request) -> dict[str, Any]:
            return await self.request(endpoint, request.method, request.params, holder=holder)

        try:
            async with _deadline(endpoint, Request("discovery", sent=True), limit_s):
                greeting = await self.greet(endpoint, holder=holder)
                latency_ms = round((time.perf_counter() - began) * 1000)
                return await read_all(endpoint, greeting, ask, latency_ms)
        finally:
            await self.release(holder)

    async def release(self, holder: str) -> None:
        """Close what belongs to `holder`: its children and its handshake sessions."""
        upstreams = tuple(self._upstreams.values())
        await _all(
            self._seats.close(lambda _, whose: whose == holder),
            *(upstream.release(holder) for upstream in upstreams),
        )

    async def forget(self, server_id: UUID) -> None:
        """Close everything of a server, and forget what its children said."""
        keys = [key for key in self._upstreams if key[0] == server_id]
        await _all(
            self._seats.close(lambda whose, _: whose == server_id),
            *(self._upstreams.pop(key).close() for key in keys),
        )
        self._seats.forget(server_id)

    def stderr_tail(self, server_id: UUID) -> str:
        """Return the last 64 KiB that the server's latest child wrote to stderr; any thread."""
        return self._seats.stderr_tail(server_id)

    async def sweep(self) -> None:
        """Close what nobody has used for five minutes."""
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

    async def _through_child(
        self, endpoint: Endpoint, request: Request, holder: str, host: Host
    ) -> dict[str, Any]:
        connection = self._seats.connection(endpoint, holder, host)
        await connection.opened()
        try:
            return await connection.request(request)
        except UpstreamError as error:
            if error.code != "server_crashed" or (error.sent and not request.repeatable):
                raise
        # Died before it saw the request, or of one that may be asked twice: the one reconnect.
        return await self._seats.connection(endpoint, holder, host).request(request)

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

    def _upstream(self, endpoint: Endpoint) -> HttpUpstream:
        key = (endpoint.server_id, endpoint.fingerprint)
        if key not in self._upstreams:
            self._upstreams[key] = HttpUpstream(endpoint, self._clock)
        return self._upstreams[key]

    def _keep_sweeping(self) -> None:
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = self._crew.spawn(self._sweep_for_ever(), name="sweep connections")

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.sweep()


@asynccontextmanager
async def _deadline(endpoint: Endpoint, request: Request, seconds: float) -> AsyncIterator[None]:
    """Give up after `seconds`, with the error that says whether the server saw the request."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        if request.sent:
            raise timed_out(endpoint, request.method, seconds, sent=True) from None
        raise unreachable(endpoint, f"no connection within {seconds:g} s") from None


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
                children=settings.BONOBOT_STDIO_CHILDREN, idle_s=settings.BONOBOT_STDIO_IDLE_S
            )
            own.on_close(made.close)
        return made


def existing() -> tuple[Connections, ...]:
    """Return the connections that this process has made already; any thread."""
    with _lock:
        return tuple(_by_runtime.values())
