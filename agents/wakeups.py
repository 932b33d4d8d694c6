"""Wake waiting sessions, workers, watchers and open pages when something changes."""

from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import transaction
from django.db.models import UUIDField
from django.utils import timezone

from agents.models import Session
from bonobot.core import celery_tasks, message_bus
from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter
from bonobot.core.db.transactions import lock_rows
from bonobot.core.message_bus import wake_listeners
from bonobot.core.runtime import Runtime, get_runtime

LocalRunner = Callable[[UUID], Awaitable[object]]
_local_runners: WeakKeyDictionary[Runtime, LocalRunner] = WeakKeyDictionary()

RUN_SESSION = "agents.tasks.run_session"
# Bus topic that session runners listen to for cancel requests.
CANCEL_TOPIC = "cancels"


def notify_worker(session_id: UUID) -> None:
    """Enqueue a session for a worker after the commit."""
    celery_tasks.enqueue_task_on_commit(RUN_SESSION, str(session_id))
    notify_watchers(session_id)


def wake_session(session_id: UUID) -> None:
    """Queue a waiting session for a worker; it suspends again if it still has to wait.

    Call it in the transaction that ends what the session waits for. A session that is being
    suspended meanwhile may have seen it pending, and may not be visible as waiting yet. So a
    session that doesn't wait is checked again after the commit.
    """
    if not _queue_waiting_session(session_id):
        transaction.on_commit(partial(_wake_suspended_session, session_id), robust=True)


def _queue_waiting_session(session_id: UUID) -> bool:
    """Queue a session if it waits; return whether it did."""
    waiting_sessions = Session.objects.filter(pk=session_id, status=Session.Status.WAITING)
    if not waiting_sessions.update(status=Session.Status.QUEUED, updated_at=timezone.now()):
        return False
    notify_worker(session_id)
    return True


def _wake_suspended_session(session_id: UUID) -> None:
    """Wake a session if it waits, after the transaction that may be suspending it right now.

    The lock waits for that transaction. Only this row is locked, so there can be no deadlock.
    """
    with transaction.atomic():
        lock_rows(Session.objects.filter(pk=session_id))
        _queue_waiting_session(session_id)


def register_local_runner(runner: LocalRunner) -> None:
    """Register the function that runs sessions in this process."""
    _local_runners[get_runtime()] = runner


async def run_locally(session_id: UUID) -> None:
    """Run a session in this process, if it has a runner."""
    if (runner := _local_runners.get(get_runtime())) is not None:
        await runner(session_id)


def notify_watchers(session_id: UUID) -> None:
    """Notify watchers of a session, after the commit, that it changed."""
    message_bus.wake_listeners(build_session_topic(session_id))


def notify_runners_of_cancel() -> None:
    """Notify all session runners, after the commit, of a cancel request."""
    message_bus.wake_listeners(CANCEL_TOPIC)


def notify_of_answer(session_id: UUID) -> None:
    """Notify the process that runs a session, after the commit, that a person answered.

    A waiting session is queued by `wake_session` instead.
    """
    message_bus.wake_listeners(build_answers_topic(session_id))


def build_answers_topic(session_id: UUID) -> str:
    """Return the bus topic of the answers to a session's approvals and elicitation requests."""
    return f"answers:{session_id}"


def build_session_topic(session_id: UUID) -> str:
    return f"session:{session_id}"


def build_pages_topic(organization_id: UUID) -> str:
    """Return the bus topic of an organization's open admin pages."""
    return f"pages:{organization_id}"


def wake_pages(organization_id: UUID) -> None:
    """Let the organization's open pages look for changes after the transaction commits."""
    wake_listeners(build_pages_topic(organization_id))


_PARENT = PreparedQuery(
    lambda: Session.objects.filter(
        children=QueryParameter("session", output_field=UUIDField())
    ).values_list("pk")
)


def wake_parent(session_id: UUID) -> None:
    """Wake the session that waits for this one, if any; call it in the transaction that ends it."""
    for (parent_id,) in _PARENT.fetch(session=session_id):
        wake_session(parent_id)
