"""Celery tasks that run once per process, and enqueueing after commit."""

import logging
import threading
from functools import partial
from typing import Any

from celery import Task, current_app
from django.db import transaction
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)


class ExclusiveTask(Task[Any, Any]):
    """A task that processes what is due; skipped while another run is active in this process.

    So each such task uses at most one worker thread and leaves the others to session messages.
    """

    abstract = True

    def __init__(self) -> None:
        """Create the lock."""
        self._running = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run unless the task is already running; a direct call always runs."""
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        if not self._running.acquire(blocking=False):
            logger.info("%s still runs here: the next one looks again", self.name)
            return None
        try:
            return self.run(*args, **kwargs)
        finally:
            self._running.release()


def enqueue_task_on_commit(task: str, *arguments: str) -> None:
    """Enqueue a task, given by its path, after the transaction commits."""
    transaction.on_commit(partial(_send_task, task, arguments))


def _send_task(task: str, arguments: tuple[str, ...]) -> None:
    try:
        current_app.send_task(task, list(arguments))
    except OperationalError as error:
        logger.warning("no broker: %s %s waits for the sweep (%s)", task, arguments, error)
