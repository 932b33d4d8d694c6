"""Tasks that beat sends again and again, of which one at a time is enough in a process."""

import logging
import threading
from typing import Any

from celery import Task

logger = logging.getLogger(__name__)


class Alone(Task[Any, Any]):
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
