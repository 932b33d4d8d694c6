"""Celery tasks of agents: they carry ids and hand sessions over to the process's one loop."""

from uuid import UUID

from celery import shared_task

from agents.sessions.nudges import RUN_SESSION
from agents.sessions.runner import session_runner
from agents.sessions.runners import forgotten
from bonobot.lib.runtime import runtime


@shared_task(name=RUN_SESSION)
def run_session(session_id: str) -> None:
    """Take a session onto the loop; the task ends at once and holds no thread."""
    runtime().spawn(session_runner().take(UUID(session_id)), name=f"take session {session_id}")


@shared_task
def sweep() -> int:
    """Nudge for sessions that nobody runs although someone should; return how many."""
    found = forgotten()
    for session_id in found:
        run_session.delay(str(session_id))
    return len(found)
