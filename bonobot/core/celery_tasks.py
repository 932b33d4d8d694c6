"""Nudge a task; one of a kind per process."""

import logging
import threading
from functools import partial
from typing import Any

from celery import Task, current_app
from django.db import transaction
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)


class ExclusiveTask(Task[Any, Any]):
    """A task that looks for what is due: while one runs in this process, another has nothing to do.

    So each of them takes one of the worker's threads at most, for however long, and the others are
    there for messages of sessions.
    """

    abstract = True

    def __init__(self) -> None:
        """Begin with none running."""
        self._running = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run, unless it runs here already; called directly, as any function."""
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
    """Have a worker carry out a task, named by its path, after the commit."""
    transaction.on_commit(partial(_send, task, arguments))


def _send(task: str, arguments: tuple[str, ...]) -> None:
    try:
        current_app.send_task(task, list(arguments))
    except OperationalError as error:
        logger.warning("no broker: %s %s waits for the sweep (%s)", task, arguments, error)
