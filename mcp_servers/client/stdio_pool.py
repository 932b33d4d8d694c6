"""The pool of children of stdio servers: their limit, reuse and lifetime, and who waits."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from bonobot.core.i18n.messages import format_message
from mcp_servers.client.answer_server_requests import Host
from mcp_servers.client.change_notifications import OnNotification
from mcp_servers.client.child_process import StderrTail
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, build_unreachable_error
from mcp_servers.client.extension_points import StderrSink
from mcp_servers.client.stdio import StdioConnection
from mcp_servers.client.task_set import TaskSet

SESSIONLESS_PREFIX = "server:"  # prefix of the holders of calls without a session
RETIRED_HOLDER = "retired"
MAX_STDERR_TAILS = 256
# Requests that may wait for a child at the limit, and how often each checks by itself, in seconds.
MAX_WAITING = 256
ROOM_CHECK_S = 1.0
# A crashed child is replaced once; again only if the replacement lived this long.
STABLE_LIFETIME_S = 60.0


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
        tasks: TaskSet,
        *,
        max_children: int,
        lifetime_s: float,
        stderr_sink: StderrSink | None = None,
        clock: Callable[[], float],
    ) -> None:
        self._tasks = tasks
        self._max_children = max_children
        self._lifetime_s = lifetime_s
        self._stderr_sink = stderr_sink
        self._retired: list[StdioConnection] = []
        self._clock = clock
        self._entries: dict[tuple[UUID, str], StdioPoolEntry] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._stderr_tails: dict[UUID, StderrTail] = {}

    def get_connection(
        self,
        endpoint: ServerEndpoint,
        holder: str,
        host: Host,
        on_notification: OnNotification | None = None,
        *,
        is_modern: bool = False,
    ) -> StdioConnection:
        """Return the holder's connection; open one if there is none alive.

        `on_notification` gets the change notifications of a newly opened one. `is_modern` says
        that it is used only in the modern era.

        Raises `UpstreamError`: the crash of the last child if it was replaced a moment ago, or
        that the pool is full.
        """
        key, now = (endpoint.server_id, holder), self._clock()
        entry = self._entries.get(key)
        if entry is not None and entry.connection.endpoint.fingerprint != endpoint.fingerprint:
            self._remove_child(key)
            entry = None
        if entry is not None and self._is_old(key, entry):
            self._retire_child(key)
            entry = None
        if entry is not None and entry.connection.alive:
            entry.used_at = now
            return entry.connection
        replaced_at = entry.replaced_at if entry is not None else None
        if entry is not None and entry.connection.failure is not None:
            if replaced_at is not None and now - replaced_at < STABLE_LIFETIME_S:
                raise entry.connection.failure.with_sent(False)
            replaced_at = now
        self._remove_child(key)
        self._make_room(endpoint)
        connection = StdioConnection(
            *(endpoint, host, self._add_tail(endpoint), on_notification, self._stderr_sink),
            is_modern=is_modern,
        )
        self._entries[key] = StdioPoolEntry(connection, now, now, replaced_at)
        return connection

    async def wait_for_room(self, endpoint: ServerEndpoint, holder: str, limit_s: float) -> None:
        """Wait until `get_connection` has room for the holder, first come, first served.

        Raises `UpstreamError` after `limit_s` seconds, or at once if too many are waiting.
        """
        if self._has_live_entry(endpoint, holder) or (self._has_room() and not self._waiting):
            return
        if len(self._waiting) >= MAX_WAITING or limit_s <= 0:
            raise self._build_limit_error(endpoint)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(limit_s):
                while not (self._has_room() and self._waiting[0] is turn):
                    await asyncio.wait({turn}, timeout=ROOM_CHECK_S)
        except TimeoutError:
            raise self._build_limit_error(endpoint) from None
        finally:
            self._waiting.remove(turn)
            self.wake_waiting()

    def wake_waiting(self) -> None:
        """Let the first waiting caller check whether there is room."""
        if self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)

    def has_connection(self, endpoint: ServerEndpoint, holder: str) -> bool:
        """Return whether the holder has a live child with this configuration, in the server's era.

        A server that supports both eras may declare its definitions differently in each.
        """
        entry = self._entries.get((endpoint.server_id, holder))
        handshake = entry.connection.handshake if entry is not None else None
        return (
            entry is not None
            and entry.connection.alive
            and (handshake is None or endpoint.era in (None, handshake.era))
            and entry.connection.endpoint.fingerprint == endpoint.fingerprint
        )

    def find_connection(self, endpoint: ServerEndpoint, holder: str) -> StdioConnection | None:
        """Return the holder's live connection."""
        entry = self._entries.get((endpoint.server_id, holder))
        return entry.connection if entry is not None and entry.connection.alive else None

    async def close(self, matches: Callable[[UUID, str], bool]) -> None:
        """Close the children for whose server and holder `matches` returns True."""
        keys = [key for key in self._entries if matches(*key)]
        closings = [self._entries.pop(key).connection.close() for key in keys]
        for connection in [
            candidate
            for candidate in self._retired
            if matches(candidate.endpoint.server_id, RETIRED_HOLDER)
        ]:
            self._retired.remove(connection)
            closings.append(connection.close())
        async with asyncio.TaskGroup() as group:
            for candidate in closings:
                group.create_task(candidate)

    async def close_idle(self, before: float) -> None:
        """Close the children unused since `before` or past their lifetime, never during a call."""
        for key, entry in list(self._entries.items()):
            if self._is_old(key, entry):
                self._retire_child(key)
            elif entry.connection.busy or entry.connection.watched:
                entry.used_at = self._clock()
        idle = {key for key, entry in self._entries.items() if entry.used_at < before}
        for connection in [candidate for candidate in self._retired if not candidate.busy]:
            self._retired.remove(connection)
            self._tasks.spawn(connection.close(), name="close an old child")
        await self.close(lambda *key: key in idle)

    def list_server_ids(self) -> set[UUID]:
        """Return the ids of servers that have a child here."""
        return {server_id for server_id, _ in self._entries}

    def get_stderr_tail(self, server_id: UUID) -> str:
        """Return what the server's latest child wrote to stderr."""
        tail = self._stderr_tails.get(server_id)
        return tail.get_text() if tail else ""

    def forget_stderr(self, server_id: UUID) -> None:
        """Drop the stderr of the server's children."""
        self._stderr_tails.pop(server_id, None)

    def _add_tail(self, endpoint: ServerEndpoint) -> StderrTail:
        self._stderr_tails.pop(endpoint.server_id, None)
        if len(self._stderr_tails) >= MAX_STDERR_TAILS:
            del self._stderr_tails[next(iter(self._stderr_tails))]
        self._stderr_tails[endpoint.server_id] = tail = StderrTail(endpoint.secrets)
        return tail

    def _make_room(self, endpoint: ServerEndpoint) -> None:
        """Close the child that has been idle longest if there are too many."""
        if self._is_below_limit():
            return
        idle_keys = self._list_idle_keys()
        if not idle_keys:
            raise self._build_limit_error(endpoint)
        self._remove_child(min(idle_keys, key=lambda key: self._entries[key].used_at))

    def _is_below_limit(self) -> bool:
        alive_count = sum(entry.connection.alive for entry in self._entries.values())
        return alive_count + len(self._retired) < self._max_children

    def _list_idle_keys(self) -> list[tuple[UUID, str]]:
        return [
            key
            for key, entry in self._entries.items()
            if entry.connection.alive and not entry.connection.busy
        ]

    def _has_room(self) -> bool:
        return self._is_below_limit() or bool(self._list_idle_keys())

    def _has_live_entry(self, endpoint: ServerEndpoint, holder: str) -> bool:
        entry = self._entries.get((endpoint.server_id, holder))
        return entry is not None and entry.connection.alive

    def _build_limit_error(self, endpoint: ServerEndpoint) -> UpstreamError:
        return build_unreachable_error(
            endpoint,
            format_message(
                "the limit of {children} running server processes is reached",
                children=self._max_children,
            ),
            remedy="Try again when a session has ended.",
        )

    def _is_old(self, key: tuple[UUID, str], entry: StdioPoolEntry) -> bool:
        """Return whether a child is past its lifetime.

        The child of a session is not, since the session needs its state: it ends with the session
        or when idle.
        """
        age_s = self._clock() - entry.opened_at
        return age_s >= self._lifetime_s and key[1].startswith(SESSIONLESS_PREFIX)

    def _retire_child(self, key: tuple[UUID, str]) -> None:
        """Remove a child from the pool; it is closed after its pending requests."""
        self._retired.append(self._entries.pop(key).connection)

    def _remove_child(self, key: tuple[UUID, str]) -> None:
        if entry := self._entries.pop(key, None):
            self._tasks.spawn(entry.connection.close(), name="close a child")
