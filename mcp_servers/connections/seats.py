"""Seats: which holder has which child process, how many there may be, and when one is replaced."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from bonobot.lib.sayings import say
from mcp_servers.connections.changes import Hear
from mcp_servers.connections.children import Tail
from mcp_servers.connections.crew import Crew
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.errors import unreachable
from mcp_servers.connections.host import Host
from mcp_servers.connections.last_words import Keep
from mcp_servers.connections.stdio import StdioConnection

CHILDREN = 32
LIFETIME_S = 86_400.0
WITHOUT_SESSION = "server:"  # how the holders of calls without a session begin
RETIRED = "retired"
TAILS = 256
# A child that ended is replaced once; the next replacement is earned by this long a life.
EARNED_S = 60.0


@dataclass
class Seat:
    """The place of one holder's child."""

    connection: StdioConnection
    opened_at: float
    used_at: float
    replaced_at: float | None = None


class Seats:
    """The children of this process, by server and holder."""

    def __init__(
        self,
        crew: Crew,
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
        self._seats: dict[tuple[UUID, str], Seat] = {}
        self._tails: dict[UUID, Tail] = {}

    def connection(
        self, endpoint: Endpoint, holder: str, host: Host, hear: Hear | None = None
    ) -> StdioConnection:
        """Return the holder's connection, opened if there is none that lives.

        `hear` takes the change notices of one that is opened.

        Raises `UpstreamError`: what ended the last child, where it was replaced a moment ago; or
        that all places are taken.
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
        self._seats[key] = Seat(opened, now, now, replaced_at)
        return opened

    def has(self, endpoint: Endpoint, holder: str) -> bool:
        """Say whether the holder's child, of just this configuration, lives."""
        seat = self._seats.get((endpoint.server_id, holder))
        return (
            seat is not None
            and seat.connection.alive
            and seat.connection.endpoint.fingerprint == endpoint.fingerprint
        )

    async def close(self, mine: Callable[[UUID, str], bool]) -> None:
        """Close the children of those servers and holders that `mine` names."""
        keys = [key for key in self._seats if mine(*key)]
        closing = [self._seats.pop(key).connection.close() for key in keys]
        for retired in [one for one in self._retired if mine(one.endpoint.server_id, RETIRED)]:
            self._retired.remove(retired)
            closing.append(retired.close())
        async with asyncio.TaskGroup() as group:
            for one in closing:
                group.create_task(one)

    async def close_idle(self, before: float) -> None:
        """Close the children that were not used since `before`, or that lived long enough.

        None of them is closed in the middle of a call.
        """
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
        """Return the servers that have a child here."""
        return {server_id for server_id, _ in self._seats}

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
        if len(living) + len(self._retired) < self._children:
            return
        idle = [key for key in living if not self._seats[key].connection.busy]
        if not idle:
            raise unreachable(
                endpoint,
                say(
                    "{children} server processes are at work, no more are started",
                    children=self._children,
                ),
                remedy="Try again when a session has ended.",
            )
        self._leave(min(idle, key=lambda key: self._seats[key].used_at))

    def _is_old(self, key: tuple[UUID, str], seat: Seat) -> bool:
        """Say whether a child has lived long enough.

        A session's own child is left alone: its state is what the session works with. It ends with
        the session, or when it is idle.
        """
        lived_s = self._clock() - seat.opened_at
        return lived_s >= self._lifetime_s and key[1].startswith(WITHOUT_SESSION)

    def _retire(self, key: tuple[UUID, str]) -> None:
        """Take a child's seat; it answers what it was asked and is closed then."""
        self._retired.append(self._seats.pop(key).connection)

    def _leave(self, key: tuple[UUID, str]) -> None:
        if seat := self._seats.pop(key, None):
            self._crew.spawn(seat.connection.close(), name="close a child")
