"""Nudge a worker: a message that may be lost, since a sweep finds what was forgotten."""

import logging
from functools import partial

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)


def nudge(task: str, *arguments: str) -> None:
    """Have a worker carry out a task, named by its path, after the commit."""
    transaction.on_commit(partial(_send, task, arguments))


def _send(task: str, arguments: tuple[str, ...]) -> None:
    try:
        current_app.send_task(task, list(arguments))
    except OperationalError as error:
        logger.warning("no broker: %s %s waits for the sweep (%s)", task, arguments, error)
