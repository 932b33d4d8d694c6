"""Nudge a worker: a message that may be lost, since the sweep finds what was forgotten."""

import logging
from functools import partial
from uuid import UUID

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)

RUN_SESSION = "agents.tasks.run_session"


def nudge(session_id: UUID) -> None:
    """Tell a worker, after the commit, that this session needs running."""
    transaction.on_commit(partial(_send, str(session_id)))


def _send(session_id: str) -> None:
    try:
        current_app.send_task(RUN_SESSION, [session_id])
    except OperationalError as error:
        logger.warning("no broker: session %s waits for the sweep (%s)", session_id, error)
