"""Nudge a worker about a session, wake one that waits, and tell who watches it."""

from collections.abc import Awaitable, Callable
from uuid import UUID
from weakref import WeakKeyDictionary

from django.utils import timezone

from agents.models import Session
from bonobot.lib import bus, nudges
from bonobot.lib.runtime import Runtime, runtime

Taker = Callable[[UUID], Awaitable[object]]
_takers: WeakKeyDictionary[Runtime, Taker] = WeakKeyDictionary()

RUN_SESSION = "agents.tasks.run_session"
# Who runs sessions hears here that somebody wants one cancelled.
CANCELS = "cancels"


def nudge(session_id: UUID) -> None:
    """Tell a worker, after the commit, that this session needs running."""
    nudges.nudge(RUN_SESSION, str(session_id))
    told(session_id)


def wake(session_id: UUID) -> None:
    """Queue a session that waits, and tell a worker; what of it still waits parks it again."""
    parked = Session.objects.filter(pk=session_id, status=Session.Status.WAITING)
    if parked.update(status=Session.Status.QUEUED, updated_at=timezone.now()):
        nudge(session_id)


def takes_here(taker: Taker) -> None:
    """Say who runs sessions in this process."""
    _takers[runtime()] = taker


async def take_here(session_id: UUID) -> None:
    """Run a session in this process, where somebody here runs sessions and it is free."""
    if (taker := _takers.get(runtime())) is not None:
        await taker(session_id)


def told(session_id: UUID) -> None:
    """Tell who watches a session, after the commit, that its rows say something new."""
    bus.ring(place(session_id))


def hurry_cancels() -> None:
    """Tell all who run sessions, after the commit, that somebody wants one cancelled."""
    bus.ring(CANCELS)


def place(session_id: UUID) -> str:
    """Return where the bus carries what is new of a session."""
    return f"session:{session_id}"
