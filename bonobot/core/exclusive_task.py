"""Celery tasks that run once per process."""

import logging
import threading
from typing import Any

from celery import Task

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
