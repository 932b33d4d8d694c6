"""Stdio connections and the pool of their child processes."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bonobot.core.i18n.messages import format_message
from mcp_servers.client.background_tasks import TaskSet
from mcp_servers.client.change_notifications import (
    DesiredSubscriptions,
    Hear,
    OnFrame,
    Told,
    keep_listening,
    list_notifying_topics,
    listen_request,
    subscribe_to,
    wait_for_first,
)
from mcp_servers.client.child_process import (
    EOF_GRACE_S,
    ChildProcess,
    Keep,
    StderrReporter,
    StderrTail,
    spawn,
)
from mcp_servers.client.endpoint import Era, ServerEndpoint
from mcp_servers.client.errors import (
    UpstreamError,
    build_crash_error,
    build_protocol_error,
    build_unreachable_error,
)
from mcp_servers.client.host import Host
from mcp_servers.client.jsonrpc import McpRequest, encode
from mcp_servers.client.package_installation import install_package
from mcp_servers.client.protocol_versions import (
    HandshakeResult,
    ask_who_it_is,
    build_initialize_request,
    build_request_meta,
    check_handshake_allowed,
    is_foreign,
    parse_initialize_result,
)
from mcp_servers.client.stream_peer import StreamPeer

# A server that does not answer the probe within this time gets the handshake too.
SILENCE_S = 1.0
UNREAD_LIMIT = 4 * 1024 * 1024
SPEAK = format_message(
    "Check its command and arguments: it must speak MCP on its output, and nothing else. "
    "Its error output tells more."
)
READ_REMEDY = "Restart the server: it does not read what it is sent."


class StdioConnection:
    """A child process and its requests, run by one owner task.

    `on_notification` gets the change notifications of the child; no child is started for them.
    `stderr_sink` gets what the child writes to stderr.
    """

    def __init__(
        self,
        endpoint: ServerEndpoint,
        host: Host,
        tail: StderrTail,
        hear: Hear | None = None,
        keep: Keep | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.greeting: HandshakeResult | None = None
        self.failure: UpstreamError | None = None
        self._host = host
        self._tail = tail
        self._hear = hear
        self._ended = asyncio.Event()
        self._followers = 0
        self._crew = TaskSet()
        self._notes = StderrReporter(endpoint, tail, self._crew, keep)
        tail.on_add = self._notes.written
        self._peer: StreamPeer | None = None
        self._child: ChildProcess
        self._opened = asyncio.Event()
        self._owner = self._crew.spawn(self._own(), name=f"stdio {endpoint.name}")

    @property
    def alive(self) -> bool:
        """Return whether a request may be tried."""
        return not (self._owner.done() or self._ended.is_set() or self.failure)

    @property
    def busy(self) -> bool:
        """Return whether it is starting or has pending requests."""
        opening = self.alive and not self._opened.is_set()
        return opening or (self._peer is not None and self._peer.busy)

    async def opened(self) -> HandshakeResult:
        """Wait until the handshake is complete; raises `UpstreamError` if it fails."""
        await self._opened.wait()
        if self.greeting is None:
            raise (self.failure or self._closed()).unsent()
        return self.greeting

    async def request(self, request: McpRequest) -> dict[str, Any]:
        """Return the raw result; raises `UpstreamError`. The caller sets the deadline."""
        greeting = await self.opened()
        if self._child.waiting_bytes > UNREAD_LIMIT:
            raise build_unreachable_error(self.endpoint, "it reads nothing", remedy=READ_REMEDY)
        meta = build_request_meta(greeting.era, self._host.capabilities(self.endpoint))
        assert self._peer is not None  # noqa: S101 - it has greeted
        return await self._peer.request(request, meta)

    async def follow(self, wish: DesiredSubscriptions, told: Told) -> None:
        """Subscribe to the desired resources until the stream ends; raises what ended it.

        The child is not closed as idle meanwhile, but may be closed to make room for others.
        """
        greeting = await self.opened()
        following = (
            keep_listening(self.endpoint, self._frames, wish, told, self._hear)
            if greeting.era == "modern"
            else subscribe_to(self.endpoint, self.request, wish, told)
        )
        self._followers += 1
        try:
            await wait_for_first(following, self._over_with())
        finally:
            self._followers -= 1

    @property
    def followed(self) -> bool:
        """Return whether its resources are being watched."""
        return self._followers > 0

    async def close(self) -> None:
        """End the child and wait until it is gone."""
        self._ended.set()
        if not self._opened.is_set():
            self._owner.cancel()
        await asyncio.wait({self._owner})
        await self._crew.close()

    async def _own(self) -> None:
        era = self.endpoint.era
        try:
            while await self._serve(era):
                era = "handshake"
        except UpstreamError as error:
            self._end(error)
        finally:
            self._opened.set()
            await self._notes.end(self._ended_how())

    def _ended_how(self) -> str:
        """Return how it ended, without its stderr output; "" if we closed it."""
        return str(self.failure).partition(" Its last words:")[0] if self.failure else ""

    def _end(self, failure: UpstreamError) -> None:
        # Before the child is closed, which may take seconds: waiting callers must not wait for it.
        self.failure = failure
        self._opened.set()

    async def _serve(self, era: Era | None) -> bool:
        """Run one child to its end; return True if the probe killed it: retry without one."""
        self._tail.mark()
        self._peer = peer = StreamPeer(
            self.endpoint, self._send, self._host, self._crew, self._hear
        )
        self._child = child = await spawn(
            await install_package(self.endpoint),
            peer.receive,
            lambda child: self._over(peer, child),
            self._tail,
        )
        try:
            async with asyncio.timeout(self.endpoint.start_s):
                self.greeting = await self._greet(peer, era)
            self._listen(peer, self.greeting)
            self._opened.set()
            await self._ended.wait()
        except TimeoutError:
            seconds = f"{self.endpoint.start_s:g}"
            late = format_message(
                "it did not answer within {seconds} s of its start", seconds=seconds
            )
            self._end(build_unreachable_error(self.endpoint, late, remedy=SPEAK))
        except UpstreamError as error:
            if error.code == "server_crashed" and era != "handshake":
                return True
            self._end(error)
        finally:
            peer.fail(self._closed())
            await child.close(EOF_GRACE_S if self.greeting else 0)
        return False

    def _listen(self, peer: StreamPeer, greeting: HandshakeResult) -> None:
        """Subscribe to change notifications of a modern child; older ones send them anyway."""
        topics = list_notifying_topics(greeting.capabilities)
        if self._hear is not None and topics and greeting.era == "modern":
            meta = build_request_meta("modern", self._host.capabilities(self.endpoint))
            listening = peer.stand(listen_request(topics), meta)
            self._crew.spawn(listening, name=f"listen {self.endpoint.name}")

    async def _frames(self, request: McpRequest, on_frame: OnFrame) -> None:
        assert self._peer is not None  # noqa: S101 - it has greeted
        meta = build_request_meta("modern", self._host.capabilities(self.endpoint))
        await self._peer.frames(request, meta, on_frame)

    async def _over_with(self) -> None:
        """Wait until the child is gone; raises the reason."""
        await self._ended.wait()
        raise self.failure or self._closed()

    def _over(self, peer: StreamPeer, child: ChildProcess) -> None:
        """Record that `child`, the process behind `peer`, can no longer answer."""
        failure = build_crash_error(self.endpoint, child.end(), self._tail.last_words())
        if peer is self._peer and self.greeting is not None and not self._ended.is_set():
            self.failure = failure
            self._ended.set()
        peer.fail(failure)

    async def _greet(self, peer: StreamPeer, era: Era | None) -> HandshakeResult:
        if era == "handshake":
            try:
                return await self._initialize(peer)
            except UpstreamError as error:
                if not is_foreign(error, era):
                    raise
                return await self._discover(peer)
        # A server known to be modern may be slow; an unknown one soon gets the handshake too.
        return await self._probe(peer, SILENCE_S if era is None else self.endpoint.start_s / 2)

    async def _probe(self, peer: StreamPeer, patience_s: float) -> HandshakeResult:
        """Send `server/discover`; fall back to the handshake if it is refused or unanswered."""
        probe = self._crew.spawn(_wait_for_result(self._discover(peer)), name="probe")
        handshake: asyncio.Task[HandshakeResult | UpstreamError] | None = None
        try:
            await asyncio.wait({probe}, timeout=patience_s)
            if not probe.done():
                # The probe stays open: a modern server that starts slowly answers it first.
                handshake = self._crew.spawn(
                    _wait_for_result(self._initialize(peer)), name="handshake"
                )
                await asyncio.wait({probe, handshake}, return_when=asyncio.FIRST_COMPLETED)
            if probe.done():
                return await self._after_probe(probe.result(), handshake, peer)
            assert handshake is not None  # noqa: S101 - one of both is done
            first = handshake.result()
            if isinstance(first, UpstreamError):  # then a late answer to the probe decides
                await asyncio.wait({probe}, timeout=patience_s)
                return _unwrap_result(probe.result() if probe.done() else first, first)
            return first
        finally:
            for task in filter(None, (probe, handshake)):
                task.cancel()

    async def _after_probe(
        self,
        outcome: HandshakeResult | UpstreamError,
        handshake: asyncio.Task[HandshakeResult | UpstreamError] | None,
        peer: StreamPeer,
    ) -> HandshakeResult:
        if isinstance(outcome, HandshakeResult):
            return outcome
        check_handshake_allowed(self.endpoint, outcome)
        return _unwrap_result(await handshake if handshake else await self._initialize(peer))

    async def _discover(self, peer: StreamPeer) -> HandshakeResult:
        meta = build_request_meta("modern", self._host.capabilities(self.endpoint))
        greeting = await ask_who_it_is(lambda request: peer.request(request, meta))
        if greeting is None:
            raise build_protocol_error(
                self.endpoint, "it discovered no version that Bonobot speaks"
            )
        return greeting

    async def _initialize(self, peer: StreamPeer) -> HandshakeResult:
        result = await peer.request(
            build_initialize_request(self._host.capabilities(self.endpoint)), {}
        )
        greeting = parse_initialize_result(self.endpoint, result)
        peer.notify("notifications/initialized")
        return greeting

    def _send(self, message: Mapping[str, Any]) -> None:
        self._child.write(encode(message))

    def _closed(self) -> UpstreamError:
        return build_unreachable_error(
            self.endpoint, "the connection was closed", remedy="Try again."
        )


async def _wait_for_result(
    greeting: Coroutine[Any, Any, HandshakeResult],
) -> HandshakeResult | UpstreamError:
    try:
        return await greeting
    except UpstreamError as error:
        return error


def _unwrap_result(
    outcome: HandshakeResult | UpstreamError, rather: HandshakeResult | UpstreamError | None = None
) -> HandshakeResult:
    """Return the handshake result or raise the failure, preferably `preferred_failure`."""
    if isinstance(outcome, HandshakeResult):
        return outcome
    raise rather if isinstance(rather, UpstreamError) else outcome


CHILDREN = 32
LIFETIME_S = 86_400.0
WITHOUT_SESSION = "server:"  # prefix of the holders of calls without a session
RETIRED = "retired"
TAILS = 256
# A crashed child is replaced once; again only if the replacement lived this long.
EARNED_S = 60.0


@dataclass
class StdioPoolEntry:
    """The child of one holder."""

    connection: StdioConnection
    opened_at: float
    used_at: float
    replaced_at: float | None = None


class StdioPool:
    """The children of this process, by server and holder."""

    def __init__(
        self,
        crew: TaskSet,
        *,
        children: int,
        lifetime_s: float = LIFETIME_S,
        keep: Keep | None = None,
        clock: Callable[[], float],
    ) -> None:
        self._crew = crew
        self._children = children
        self._lifetime_s = lifetime_s
        self._keep = keep
        self._retired: list[StdioConnection] = []
        self._clock = clock
        self._seats: dict[tuple[UUID, str], StdioPoolEntry] = {}
        self._tails: dict[UUID, StderrTail] = {}

    def connection(
        self, endpoint: ServerEndpoint, holder: str, host: Host, hear: Hear | None = None
    ) -> StdioConnection:
        """Return the holder's connection; open one if there is none alive.

        `on_notification` gets the change notifications of a newly opened one.

        Raises `UpstreamError`: the crash of the last child if it was replaced a moment ago, or
        that the pool is full.
        """
        key, now = (endpoint.server_id, holder), self._clock()
        seat = self._seats.get(key)
        if seat is not None and seat.connection.endpoint.fingerprint != endpoint.fingerprint:
            self._leave(key)
            seat = None
        if seat is not None and self._is_old(key, seat):
            self._retire(key)
            seat = None
        if seat is not None and seat.connection.alive:
            seat.used_at = now
            return seat.connection
        replaced_at = seat.replaced_at if seat is not None else None
        if seat is not None and seat.connection.failure is not None:
            if replaced_at is not None and now - replaced_at < EARNED_S:
                raise seat.connection.failure.unsent()
            replaced_at = now
        self._leave(key)
        self._make_room(endpoint)
        opened = StdioConnection(endpoint, host, self._tail(endpoint), hear, self._keep)
        self._seats[key] = StdioPoolEntry(opened, now, now, replaced_at)
        return opened

    def has(self, endpoint: ServerEndpoint, holder: str) -> bool:
        """Return whether the holder has a live child with this configuration."""
        seat = self._seats.get((endpoint.server_id, holder))
        return (
            seat is not None
            and seat.connection.alive
            and seat.connection.endpoint.fingerprint == endpoint.fingerprint
        )

    async def close(self, mine: Callable[[UUID, str], bool]) -> None:
        """Close the children for whose server and holder `matches` returns True."""
        keys = [key for key in self._seats if mine(*key)]
        closing = [self._seats.pop(key).connection.close() for key in keys]
        for retired in [one for one in self._retired if mine(one.endpoint.server_id, RETIRED)]:
            self._retired.remove(retired)
            closing.append(retired.close())
        async with asyncio.TaskGroup() as group:
            for one in closing:
                group.create_task(one)

    async def close_idle(self, before: float) -> None:
        """Close the children unused since `before` or past their lifetime, never during a call."""
        for key, seat in list(self._seats.items()):
            if self._is_old(key, seat):
                self._retire(key)
            elif seat.connection.busy or seat.connection.followed:
                seat.used_at = self._clock()
        idle = {key for key, seat in self._seats.items() if seat.used_at < before}
        for retired in [one for one in self._retired if not one.busy]:
            self._retired.remove(retired)
            self._crew.spawn(retired.close(), name="close an old child")
        await self.close(lambda *key: key in idle)

    def servers(self) -> set[UUID]:
        """Return the ids of servers that have a child here."""
        return {server_id for server_id, _ in self._seats}

    def stderr_tail(self, server_id: UUID) -> str:
        """Return what the server's latest child wrote to stderr."""
        tail = self._tails.get(server_id)
        return tail.text() if tail else ""

    def forget(self, server_id: UUID) -> None:
        """Drop the stderr of the server's children."""
        self._tails.pop(server_id, None)

    def _tail(self, endpoint: ServerEndpoint) -> StderrTail:
        self._tails.pop(endpoint.server_id, None)
        if len(self._tails) >= TAILS:
            del self._tails[next(iter(self._tails))]
        self._tails[endpoint.server_id] = tail = StderrTail(endpoint.secrets)
        return tail

    def _make_room(self, endpoint: ServerEndpoint) -> None:
        """Close the child that has been idle longest if there are too many."""
        living = [key for key, seat in self._seats.items() if seat.connection.alive]
        if len(living) + len(self._retired) < self._children:
            return
        idle = [key for key in living if not self._seats[key].connection.busy]
        if not idle:
            raise build_unreachable_error(
                endpoint,
                format_message(
                    "{children} server processes are at work, no more are started",
                    children=self._children,
                ),
                remedy="Try again when a session has ended.",
            )
        self._leave(min(idle, key=lambda key: self._seats[key].used_at))

    def _is_old(self, key: tuple[UUID, str], seat: StdioPoolEntry) -> bool:
        """Return whether a child is past its lifetime.

        The child of a session is not, since the session needs its state: it ends with the session
        or when idle.
        """
        lived_s = self._clock() - seat.opened_at
        return lived_s >= self._lifetime_s and key[1].startswith(WITHOUT_SESSION)

    def _retire(self, key: tuple[UUID, str]) -> None:
        """Remove a child from the pool; it is closed after its pending requests."""
        self._retired.append(self._seats.pop(key).connection)

    def _leave(self, key: tuple[UUID, str]) -> None:
        if seat := self._seats.pop(key, None):
            self._crew.spawn(seat.connection.close(), name="close a child")
