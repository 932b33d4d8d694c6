"""Wake sessions, tell workers and watchers."""

from collections.abc import Awaitable, Callable
from uuid import UUID
from weakref import WeakKeyDictionary

from django.utils import timezone

from agents.models import Session
from bonobot.core import celery_tasks, redis_bus
from bonobot.core.runtime import Runtime, get_runtime

Taker = Callable[[UUID], Awaitable[object]]
_takers: WeakKeyDictionary[Runtime, Taker] = WeakKeyDictionary()

RUN_SESSION = "agents.tasks.run_session"
# Who runs sessions hears here that somebody wants one cancelled.
CANCELS = "cancels"


def notify_worker(session_id: UUID) -> None:
    """Tell a worker, after the commit, that this session needs running."""
    celery_tasks.enqueue_task_on_commit(RUN_SESSION, str(session_id))
    notify_watchers(session_id)


def wake(session_id: UUID) -> None:
    """Queue a session that waits, and tell a worker; what of it still waits parks it again."""
    parked = Session.objects.filter(pk=session_id, status=Session.Status.WAITING)
    if parked.update(status=Session.Status.QUEUED, updated_at=timezone.now()):
        notify_worker(session_id)


def register_local_runner(taker: Taker) -> None:
    """Say who runs sessions in this process."""
    _takers[get_runtime()] = taker


async def take_here(session_id: UUID) -> None:
    """Run a session in this process, where somebody here runs sessions and it is free."""
    if (taker := _takers.get(get_runtime())) is not None:
        await taker(session_id)


def notify_watchers(session_id: UUID) -> None:
    """Tell who watches a session, after the commit, that its rows say something new."""
    redis_bus.wake_listeners(build_bus_topic(session_id))


def notify_runners_of_cancel() -> None:
    """Tell all who run sessions, after the commit, that somebody wants one cancelled."""
    redis_bus.wake_listeners(CANCELS)


def build_bus_topic(session_id: UUID) -> str:
    """Return where the bus carries what is new of a session."""
    return f"session:{session_id}"
