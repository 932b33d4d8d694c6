"""Nudge a worker about a session."""

from uuid import UUID

from bonobot.lib import nudges

RUN_SESSION = "agents.tasks.run_session"


def nudge(session_id: UUID) -> None:
    """Tell a worker, after the commit, that this session needs running."""
    nudges.nudge(RUN_SESSION, str(session_id))
