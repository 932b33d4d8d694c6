"""Enqueueing of Celery tasks after a commit."""

import logging
from functools import partial

from django.db import transaction

logger = logging.getLogger(__name__)


def enqueue_task_on_commit(task: str, *arguments: str) -> None:
    """Enqueue a task, given by its path, after the transaction commits."""
    transaction.on_commit(partial(_send_task, task, arguments))


def _send_task(task: str, arguments: tuple[str, ...]) -> None:
    # Commands that only read rows import this module, but not Celery.
    from celery import current_app
    from kombu.exceptions import OperationalError

    try:
        current_app.send_task(task, list(arguments))
    except OperationalError as error:
        logger.warning("no broker: %s %s waits for the sweep (%s)", task, arguments, error)
