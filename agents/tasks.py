"""Celery tasks of agents; sessions and replays run on the event loop of the process."""

from datetime import timedelta
from uuid import UUID

from celery import shared_task
from django.utils import timezone

from agents import access_requests as access_requests
from agents.approvals.services import expire_overdue
from agents.budgets import alerts as budget_alerts
from agents.calls import deferred_calls
from agents.elicitations import services as elicitations
from agents.evaluation import replays
from agents.sessions.leases import list_unattended_sessions
from agents.sessions.services import requeue_answered_sessions
from agents.sessions.worker import get_session_runner
from agents.wakeups import RUN_SESSION, notify_worker
from agents.workflows import triggers
from bonobot.core.exclusive_task import ExclusiveTask
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.abandoned_calls import settle_abandoned_calls

ABANDONED_AFTER = timedelta(minutes=9)


@shared_task(name=RUN_SESSION)
def run_session(session_id: str) -> None:
    """Take a session onto the loop; the task ends at once and holds no thread.

    A worker that is stopping may still receive messages: it leaves them to others.
    """
    if get_session_runner().is_draining:
        notify_worker(UUID(session_id))
        return
    get_runtime().spawn(
        get_session_runner().claim_and_run(UUID(session_id)), name=f"take session {session_id}"
    )


@shared_task(name=replays.REPLAY_TASK)
def run_replay(replay_id: str) -> None:
    """Take a replay onto the loop; the task ends at once and holds no thread."""
    get_runtime().spawn(replays.run_replay(UUID(replay_id)), name=f"take replay {replay_id}")


@shared_task(base=ExclusiveTask)
def sweep() -> int:
    """Resume sessions and replays that no worker is running; return how many.

    Calls that a dead process left open are closed too: the bounds of calls and of model requests
    are far below `ABANDONED_AFTER`.
    """
    settle_abandoned_calls(opened_before=timezone.now() - ABANDONED_AFTER)
    expire_overdue()
    elicitations.expire_overdue()
    access_requests.expire_overdue()
    deferred_calls.delete_expired()
    get_runtime().call(get_session_runner().release_dead_runners)
    session_ids = [*requeue_answered_sessions(), *list_unattended_sessions()]
    for session_id in session_ids:
        run_session.delay(str(session_id))
    replay_ids = replays.list_stalled_replays()
    for replay_id in replay_ids:
        run_replay.delay(str(replay_id))
    return len(session_ids) + len(replay_ids)


@shared_task(base=ExclusiveTask)
def run_due_workflows() -> int:
    """Start scheduled workflow runs that are due; return how many."""
    return triggers.start_due_runs()


@shared_task(base=ExclusiveTask)
def send_budget_alerts() -> int:
    """Send notifications about budgets that are almost exhausted or exhausted.

    Returns their number.
    """
    return budget_alerts.notify_spent_budgets()
