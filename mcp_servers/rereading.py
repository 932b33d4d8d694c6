"""Reading catalogues again when something says that they changed (FEATURES D9, B3).

What says so: a server's change notice, a stream that came back, a call that was answered as if its
tool were unknown. The first is read at once, what follows within ten seconds together, a few
servers beside each other. What is new waits for approval, as after any discovery.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter
from uuid import UUID
from weakref import WeakKeyDictionary

from django.core.exceptions import ObjectDoesNotExist

from bonobot.ledger.actors import Actor
from bonobot.lib.lanes import lane
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import Runtime, runtime
from mcp_servers import staleness
from mcp_servers.connections.changes import ChangeNotice
from mcp_servers.connections.crew import Crew
from mcp_servers.connections.eras import HEADER_MISMATCH, INVALID_PARAMS
from mcp_servers.connections.errors import UpstreamError
from mcp_servers.discovery import discover

logger = logging.getLogger(__name__)

NOTICED = Actor(kind="system", id="notices", label="change notice")
CAUGHT_UP_S = 5.0


@dataclass
class _Wanted:
    """A server to be read again; `holders` are those whose connections said so."""

    noticed: bool
    holders: list[str] = field(default_factory=list)
    again: bool = False
    quiet: asyncio.Event = field(default_factory=asyncio.Event)


class Rereader:
    """The readings of this process; everything here runs on its loop."""

    def __init__(self) -> None:
        self._wanted: dict[UUID, _Wanted] = {}
        self._crew = Crew()

    def want(self, server_id: UUID, holder: str = "", *, noticed: bool = True) -> None:
        """Have a server's catalogue read again, through the connection of `holder` if it has one.

        Returns at once; what is said while a reading waits or runs is kept as a mere flag.
        """
        wanted = self._wanted.get(server_id)
        if wanted is None:
            wanted = self._wanted[server_id] = _Wanted(noticed)
            self._crew.spawn(self._read_all(server_id, wanted), name=f"reread {server_id}")
        wanted.again = True
        wanted.noticed |= noticed
        if holder and holder not in wanted.holders:
            wanted.holders.append(holder)

    async def caught_up(self, holder: str) -> None:
        """Wait until what `holder`'s connections said has been read, for 5 s at most.

        Not for what has to wait for its turn: a flood must not hold up who uses the server.
        """
        waiting = [one.quiet for one in self._wanted.values() if holder in one.holders]
        try:
            async with asyncio.timeout(CAUGHT_UP_S):
                for quiet in waiting:
                    await quiet.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Stop reading; what is marked is taken up by another process."""
        await self._crew.close()

    async def _read_all(self, server_id: UUID, wanted: _Wanted) -> None:
        try:
            while wanted.again and await self._claimed(server_id, wanted):
                continue
        finally:
            del self._wanted[server_id]
            wanted.quiet.set()

    async def _claimed(self, server_id: UUID, wanted: _Wanted) -> bool:
        """Mark, wait for our turn, and read; False when there was nothing to read."""
        orm = runtime().orm
        noticed, wanted.noticed = wanted.noticed, False
        if not await orm(staleness.mark, server_id, noticed=noticed):
            return False
        while True:
            claim = await orm(staleness.claim, server_id, anyway=bool(wanted.holders))
            if claim.taken:
                break
            if claim.wait_s is None:
                return False  # another process has read it since we marked it
            wanted.quiet.set()
            await asyncio.sleep(claim.wait_s)
        wanted.quiet.clear()
        wanted.again = False
        holder = wanted.holders[-1] if wanted.holders else ""
        await self._read(server_id, holder, claim)
        if not wanted.again:
            wanted.holders.clear()
        return True

    async def _read(self, server_id: UUID, holder: str, claim: staleness.Claim) -> None:
        began, read = perf_counter(), False
        try:
            async with lane("discovery"):
                began = perf_counter()
                await discover(server_id, actor=NOTICED, of=holder)
                read = True
        except Problem as problem:
            logger.warning("server %s could not be read again: %s", server_id, problem.code)
        except ObjectDoesNotExist:
            logger.info("server %s was removed before it was read again", server_id)
        finally:
            took_s = perf_counter() - began
            await runtime().orm(staleness.finish, server_id, claim, took_s=took_s, read=read)


_by_runtime: WeakKeyDictionary[Runtime, Rereader] = WeakKeyDictionary()


def rereader() -> Rereader:
    """Return this process's rereader; on the loop of `runtime()` only."""
    own = runtime()
    if (made := _by_runtime.get(own)) is None:
        made = _by_runtime[own] = Rereader()
        own.on_close(made.close)
    return made


def hear(server_id: UUID, notice: ChangeNotice) -> None:
    """Take a change notice; what one resource contains is no part of the catalogue."""
    if not notice.uri:
        rereader().want(server_id, notice.holder)


def doubt(server_id: UUID, problem: Problem, holder: str) -> None:
    """Have a server read again that answers a call as if it didn't know the tool as we do.

    An unknown tool is -32602, arguments that are no longer mirrored as it wants -32020.
    """
    if isinstance(problem, UpstreamError) and problem.rpc_code in (INVALID_PARAMS, HEADER_MISMATCH):
        rereader().want(server_id, holder, noticed=False)


async def reread(server_id: UUID, problem: Problem, holder: str) -> None:
    """Have it read again as `doubt` does; wait for that, if its turn is now, for 5 s at most."""
    doubt(server_id, problem, holder)
    await rereader().caught_up(holder)


async def take_up(server_ids: Iterable[UUID]) -> None:
    """Read those again that somebody marked and nobody read."""
    for server_id in server_ids:
        rereader().want(server_id, noticed=False)
