"""Beat: Celery's scheduler over the rows of `schedules`; of several one leads and sends."""

import logging
import time
from typing import Any

from django.db import DatabaseError, close_old_connections
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry

from bonobot.leading import RENEW_S, Leader
from bonobot.schedules import sync

logger = logging.getLogger(__name__)

# How often beat writes when it last sent what: its sign of life.
WRITTEN_EVERY_S = 30
# How soon one that stands by looks whether the leader is gone.
STANDBY_S = 2.0


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
    leader = Leader("beat")
    _led = False
    _written = False  # since it leads

    @classmethod
    def age_s(cls) -> float:
        """Return how many seconds ago this process's scheduler last looked what is due."""
        return time.monotonic() - cls.ticked_at

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, if we lead; the moment is the program's sign of life."""
        Schedules.ticked_at = time.monotonic()
        close_old_connections()
        if not self.leader.renew():
            self._led = False
            return STANDBY_S
        if not self._led:
            self._take_over()
        wait: float = super().tick(*args, **kwargs)
        return min(wait, RENEW_S)

    def close(self) -> None:
        """Write what is left to write, and let another one lead."""
        super().close()
        try:
            self.leader.let_go()
        except DatabaseError:
            logger.warning("The lease can't be given back now; it runs out", exc_info=True)

    def setup_schedule(self) -> None:
        """Leave the rows unread until we lead; the entries Celery would add have no use here."""

    def _take_over(self) -> None:
        """Begin with the rows as the last leader left them."""
        logger.info("beat leads")
        self._initial_read = self._heap_invalidated = True
        self._heap: list[Any] = []
        self._dirty.clear()
        # Looked up before the rows are read, so that no change falls between.
        self._last_timestamp = self.Changes.last_change()
        self._led, self._written = True, False

    def should_sync(self) -> bool:
        """Tell whether to write what was sent: the first of it at once, a sign of life."""
        return bool(self._dirty and not self._written) or bool(super().should_sync())

    def sync(self) -> None:
        """Write when what was sent was sent."""
        self._written = self._written or bool(self._dirty)
        super().sync()

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
