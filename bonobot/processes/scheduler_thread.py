"""The scheduler as a thread of a worker (`bonobot worker --beat`).

On one machine it replaces the beat process, which takes as much memory as a worker. Its lease is
the same, so beat processes and such workers can be mixed: one leads, the others stand by.
"""

import logging
import os
import signal
from threading import Event, Thread
from typing import Any

from celery import Celery
from celery.beat import Service
from celery.bootsteps import StartStopStep
from celery.signals import beat_init
from click import Option
from django.db import connections

from bonobot.jobs.queues import SCHEDULER_OPTION

logger = logging.getLogger(__name__)

MAX_INTERVAL_S = 1


class InterruptibleService(Service):
    """Celery's loop of a scheduler, whose end doesn't wait for the next tick."""

    def __init__(self, app: Celery, **options: Any) -> None:
        """Take Celery's options."""
        super().__init__(app, **options)
        self._stopping = Event()

    def start(self, embedded_process: bool = False) -> None:
        """Send due tasks until `stop` is called; then save the schedule and release the lease."""
        beat_init.send(sender=self)
        scheduler: Any = self.scheduler  # `_do_sync` isn't in its type
        try:
            while not self._stopping.is_set():
                interval_s = scheduler.tick()
                if interval_s and not self._stopping.wait(interval_s) and scheduler.should_sync():
                    scheduler._do_sync()
        finally:
            self.sync()

    def stop(self, wait: bool = False) -> None:
        """End the loop after the current tick."""
        self._stopping.set()
        super().stop(wait)


class SchedulerThread(Thread):
    """Run the scheduler; if it fails, end the worker, so that its supervisor restarts it."""

    def __init__(self, app: Celery) -> None:
        super().__init__(name="scheduler", daemon=True)
        self._app = app
        options: dict[str, Any] = {
            "max_interval": MAX_INTERVAL_S,
            "scheduler_cls": app.conf.beat_scheduler,
            "remote_control": False,  # the worker answers Celery's control messages
        }
        self._service = InterruptibleService(app, **options)

    def run(self) -> None:
        """Send due tasks until `stop` is called."""
        self._app.set_current()
        try:
            self._service.start()
        except Exception:
            logger.exception("The scheduler failed, so this worker stops")
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            connections.close_all()  # those of this thread

    def stop(self) -> None:
        """End the thread and release the scheduler's lease."""
        self._service.stop()
        self.join()


class SchedulerStep(StartStopStep):
    """Celery's step that starts and stops the thread with its worker."""

    requires = ("celery.worker.components:Pool",)
    conditional = True

    def __init__(self, worker: Any, scheduler_thread: bool = False, **options: Any) -> None:
        super().__init__(worker, **options)
        self.enabled = scheduler_thread

    def create(self, worker: Any) -> Any:
        """Return the thread, which Celery starts before the worker takes messages."""
        return SchedulerThread(worker.app)


def add_scheduler_option(app: Celery) -> None:
    """Add the option to Celery's command `worker`, once."""
    if SchedulerStep in app.steps["worker"]:
        return
    app.user_options["worker"].add(
        Option(
            [SCHEDULER_OPTION], is_flag=True, help="Run the scheduler in a thread of this worker"
        )
    )
    app.steps["worker"].add(SchedulerStep)
