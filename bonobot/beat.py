"""Beat: Celery's scheduler over the rows of `schedules`; run exactly one."""

import logging
import time
from typing import Any

from django.db import DatabaseError
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry

from bonobot.schedules import sync

logger = logging.getLogger(__name__)

# How often beat writes when it last sent what: its sign of life.
WRITTEN_EVERY_S = 30


class Entry(ModelEntry):
    """An entry that writes its own columns alone, so that an edit meanwhile isn't undone."""

    def save(self) -> None:
        """Write when it was last sent, and how often."""
        PeriodicTask.objects.filter(pk=self.model.pk).update(
            last_run_at=self.model.last_run_at, total_run_count=self.model.total_run_count
        )


class Schedules(DatabaseScheduler):
    """The database's scheduler, whose rows follow the code, and which outlives a database."""

    Entry = Entry
    sync_every = WRITTEN_EVERY_S

    ticked_at = time.monotonic()

    @classmethod
    def age_s(cls) -> float:
        """Return how many seconds ago this process's scheduler last looked what is due."""
        return time.monotonic() - cls.ticked_at

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due; the moment is the program's sign of life."""
        Schedules.ticked_at = time.monotonic()
        wait: float = super().tick(*args, **kwargs)
        return wait

    def setup_schedule(self) -> None:
        """Read the rows; the entries that Celery would add by itself have no use here."""
        _ = self.schedule

    def all_as_schedule(self) -> dict[str, Any]:
        """Return the rows as entries; the last ones known while the database is away."""
        try:
            sync(self.app.conf.beat_schedule)
            found: dict[str, Any] = super().all_as_schedule()
        except DatabaseError:
            if self._schedule is None:
                raise
            logger.warning("The schedule can't be read now; the last one holds", exc_info=True)
            return dict(self._schedule)
        return found
