"""Stopping: which servers must not be held open any more, asked of whoever knows.

Connections know no rows; whoever knows them is told with `stop_by`, once, at the start. Every
process asks about what it holds, so that a switch that was turned elsewhere closes things here too.
"""

from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

Stopped = Callable[[Collection[UUID]], Awaitable[set[UUID]]]
_stopped: list[Stopped] = []


def stop_by(stopped: Stopped) -> None:
    """Have `stopped` say, from now on, which of the servers that are held open must be closed."""
    _stopped[:] = [stopped]


def stopper() -> Stopped | None:
    """Return who says it."""
    return _stopped[0] if _stopped else None
