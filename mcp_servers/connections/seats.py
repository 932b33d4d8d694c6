"""Seats: which holder has which child process, how many there may be, and when one is replaced."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from mcp_servers.connections.children import Tail
from mcp_servers.connections.crew import Crew
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.errors import unreachable
from mcp_servers.connections.host import Host
from mcp_servers.connections.stdio import StdioConnection

CHILDREN = 32
TAILS = 256
# A child that ended is replaced once; the next replacement is earned by this long a life.
EARNED_S = 60.0


@dataclass
class Seat:
    """The place of one holder's child."""

    connection: StdioConnection
    used_at: float
    replaced_at: float | None = None


class Seats:
    """The children of this process, by server and holder."""

    def __init__(self, crew: Crew, *, children: int, clock: Callable[[], float]) -> None:
        self._crew = crew
        self._children = children
        self._clock = clock
        self._seats: dict[tuple[UUID, str], Seat] = {}
        self._tails: dict[UUID, Tail] = {}

    def connection(self, endpoint: Endpoint, holder: str, host: Host) -> StdioConnection:
        """Return the holder's connection, opened if there is none that lives.

        Raises `UpstreamError`: what ended the last child, where it was replaced a moment ago; or
        that all places are taken.
        """
        key, now = (endpoint.server_id, holder), self._clock()
        seat = self._seats.get(key)
        if seat is not None and seat.connection.endpoint.fingerprint != endpoint.fingerprint:
            self._leave(key)
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
        opened = StdioConnection(endpoint, host, self._tail(endpoint))
        self._seats[key] = Seat(opened, now, replaced_at)
        return opened

    async def close(self, mine: Callable[[UUID, str], bool]) -> None:
        """Close the children of those servers and holders that `mine` names."""
        keys = [key for key in self._seats if mine(*key)]
        closing = [self._seats.pop(key).connection.close() for key in keys]
        async with asyncio.TaskGroup() as group:
            for one in closing:
                group.create_task(one)

    async def close_idle(self, before: float) -> None:
        """Close the children that were not used since `before`."""
        for seat in self._seats.values():
            if seat.connection.busy:
                seat.used_at = self._clock()
        idle = {key for key, seat in self._seats.items() if seat.used_at < before}
        await self.close(lambda *key: key in idle)

    def stderr_tail(self, server_id: UUID) -> str:
        """Return what the server's latest child wrote to stderr."""
        tail = self._tails.get(server_id)
        return tail.text() if tail else ""

    def forget(self, server_id: UUID) -> None:
        """Drop what the server's children wrote."""
        self._tails.pop(server_id, None)

    def _tail(self, endpoint: Endpoint) -> Tail:
        self._tails.pop(endpoint.server_id, None)
        if len(self._tails) >= TAILS:
            del self._tails[next(iter(self._tails))]
        self._tails[endpoint.server_id] = tail = Tail(endpoint.secrets)
        return tail

    def _make_room(self, endpoint: Endpoint) -> None:
        """Give up the child that was idle for longest, when there are too many."""
        living = [key for key, seat in self._seats.items() if seat.connection.alive]
        if len(living) < self._children:
            return
        idle = [key for key in living if not self._seats[key].connection.busy]
        if not idle:
            raise unreachable(
                endpoint,
                f"{self._children} server processes are at work, no more are started",
                remedy="Try again when a session has ended.",
            )
        self._leave(min(idle, key=lambda key: self._seats[key].used_at))

    def _leave(self, key: tuple[UUID, str]) -> None:
        if seat := self._seats.pop(key, None):
            self._crew.spawn(seat.connection.close(), name="close a child")
