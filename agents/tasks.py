"""Celery tasks of agents: they carry ids and hand sessions over to the process's one loop."""

from datetime import timedelta
from uuid import UUID

from celery import shared_task
from django.utils import timezone

from agents import asking, overspending, promises
from agents.approvals import expire_overdue
from agents.evaluation import replays, running
from agents.sessions.nudges import RUN_SESSION
from agents.sessions.requests import answered_while_parking
from agents.sessions.runner import session_runner
from agents.sessions.runners import forgotten
from agents.workflows import schedules
from bonobot.ledger.abandoned import settle_abandoned
from bonobot.lib.alone import Alone
from bonobot.lib.runtime import runtime

ABANDONED_AFTER = timedelta(minutes=9)


@shared_task(name=RUN_SESSION)
def run_session(session_id: str) -> None:
    """Take a session onto the loop; the task ends at once and holds no thread."""
    runtime().spawn(session_runner().take(UUID(session_id)), name=f"take session {session_id}")


@shared_task(name=replays.PLAY)
def play_recording(replay_id: str) -> None:
    """Take a replay onto the loop; the task ends at once and holds no thread."""
    runtime().spawn(running.take(UUID(replay_id)), name=f"take replay {replay_id}")


@shared_task(base=Alone)
def sweep() -> int:
    """Nudge for sessions and replays that nobody runs although someone should; return how many.

    Calls that a dead process left open are closed too: the bounds of calls and of model requests
    are far below `ABANDONED_AFTER`.
    """
    settle_abandoned(opened_before=timezone.now() - ABANDONED_AFTER)
    expire_overdue()
    asking.expire_overdue()
    promises.forget_old()
    found = [*answered_while_parking(), *forgotten()]
    for session_id in found:
        run_session.delay(str(session_id))
    waiting = replays.forgotten()
    for replay_id in waiting:
        play_recording.delay(str(replay_id))
    return len(found) + len(waiting)


@shared_task(base=Alone)
def run_due_workflows() -> int:
    """Begin the runs of workflows whose schedules are due; return how many."""
    return schedules.run_due()


@shared_task(base=Alone)
def watch_budgets() -> int:
    """Tell people of budgets that are nearly or wholly spent; return of how many."""
    return overspending.watch()
