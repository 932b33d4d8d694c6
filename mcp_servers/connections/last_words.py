"""Last words: what a child wrote to stderr, handed on to be kept beyond the child and its process.

Connections know no rows; whoever keeps them is told with `keep_with`, once, at the start.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from mcp_servers.connections.children import Tail
from mcp_servers.connections.crew import Crew
from mcp_servers.connections.endpoint import Endpoint

EVERY_S = 3.0  # at most so often while the child writes
PATIENCE_S = 5.0
CLOSED = "Bonobot closed it"


@dataclass(frozen=True)
class Words:
    """The state of one child's output; `ended` says how it ended, "" while it runs."""

    child_id: UUID
    server_id: UUID
    organization_id: UUID
    text: str = field(repr=False)
    ended: str = ""


Keep = Callable[[Words], Awaitable[None]]
_keep: list[Keep] = []


def keep_with(keep: Keep) -> None:
    """Have every child's last words handed to `keep`, from now on."""
    _keep[:] = [keep]


def keeper() -> Keep | None:
    """Return who keeps last words, if anybody does."""
    return _keep[-1] if _keep else None


class Notes:
    """Hands on what one child writes: at most every three seconds, and once more at its end."""

    def __init__(self, endpoint: Endpoint, tail: Tail, crew: Crew, keep: Keep | None) -> None:
        self._endpoint = endpoint
        self._tail = tail
        self._crew = crew
        self._keep = keep
        self._child_id = uuid4()
        self._writing: asyncio.Task[None] | None = None
        self._written = False

    def written(self) -> None:
        """Take note that the child wrote something (called by the loop)."""
        self._written = True
        if self._keep is not None and (self._writing is None or self._writing.done()):
            self._writing = self._crew.spawn(self._soon(self._keep), name="keep stderr")

    async def end(self, how: str) -> None:
        """Hand on the last of it; a child that was silent and closed by us leaves no trace."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait({self._writing})
        if self._keep is not None and (self._written or how):
            last = self._crew.spawn(
                _kept(self._keep, self._words(how or CLOSED)), name="keep stderr"
            )
            await asyncio.wait({last}, timeout=PATIENCE_S)

    async def _soon(self, keep: Keep) -> None:
        await asyncio.sleep(EVERY_S)
        await keep(self._words())

    def _words(self, ended: str = "") -> Words:
        return Words(
            self._child_id,
            self._endpoint.server_id,
            self._endpoint.organization_id,
            self._tail.text(),
            ended,
        )


async def _kept(keep: Keep, words: Words) -> None:
    await keep(words)
