"""The Celery scheduler with leader election.

A lease is a row, claimed and renewed by a conditional UPDATE. A process that can't renew it stops
leading when the lease expires by its own clock, which is before another may claim it, so there are
never two leaders.
"""

import logging
import time
from datetime import timedelta
from time import monotonic
from typing import Any
from uuid import uuid4

from django.db import DatabaseError, close_old_connections
from django.db.models import Q
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry

from bonobot.jobs.models import Lease
from bonobot.jobs.schedules import sync

logger = logging.getLogger(__name__)

LEASE_S = 15.0
RENEW_S = 5.0


class LeaderLease:
    """One lease, as held by this process."""

    def __init__(self, name: str) -> None:
        """Create the lease without claiming it."""
        self.name = name
        self.holder = uuid4()
        self._until = 0.0
        self._look_at = 0.0

    @property
    def leads(self) -> bool:
        """Whether this process holds the lease by its own clock."""
        return monotonic() < self._until

    def renew(self) -> bool:
        """Claim or renew the lease, at most every 5 s; return whether this process holds it."""
        began = monotonic()
        if began >= self._look_at:
            self._look_at = began + RENEW_S
            try:
                self._until = began + LEASE_S if self._claimed() else 0.0
            except DatabaseError as error:
                logger.warning("The lease %r can't be renewed now: %s", self.name, error)
        return self.leads

    def let_go(self) -> None:
        """Release the lease, so that another process can claim it immediately."""
        self._until = 0.0
        Lease.objects.filter(name=self.name, holder=self.holder).delete()

    def _claimed(self) -> bool:
        now = timezone.now()
        until = now + timedelta(seconds=LEASE_S)
        free = Q(holder=self.holder) | Q(until__lt=now)
        if Lease.objects.filter(free, name=self.name).update(holder=self.holder, until=until):
            return True
        made = Lease(name=self.name, holder=self.holder, until=until)
        Lease.objects.bulk_create([made], ignore_conflicts=True)
        return Lease.objects.filter(name=self.name, holder=self.holder).exists()


# How often the scheduler saves when it last sent tasks, which also shows that it is alive.
WRITTEN_EVERY_S = 30
# How often a standby scheduler tries to become the leader.
STANDBY_S = 2.0


class DatabaseScheduleEntry(ModelEntry):
    """An entry that saves only its own columns, so that concurrent edits aren't overwritten."""

    def save(self) -> None:
        """Save when the task was last sent and how often."""
        PeriodicTask.objects.filter(pk=self.model.pk).update(
            last_run_at=self.model.last_run_at, total_run_count=self.model.total_run_count
        )


class BonobotScheduler(DatabaseScheduler):
    """The database scheduler; syncs rows with the code and survives database outages."""

    Entry = DatabaseScheduleEntry
    sync_every = WRITTEN_EVERY_S

    ticked_at = time.monotonic()
    leader = LeaderLease("beat")
    _led = False
    _written = False  # since it leads

    @classmethod
    def age_s(cls) -> float:
        """Return the seconds since this process's last tick."""
        return time.monotonic() - cls.ticked_at

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send due tasks if this process leads; record the time for health checks."""
        BonobotScheduler.ticked_at = time.monotonic()
        close_old_connections()
        if not self.leader.renew():
            self._led = False
            return STANDBY_S
        if not self._led:
            self._take_over()
        wait: float = super().tick(*args, **kwargs)
        return min(wait, RENEW_S)

    def close(self) -> None:
        """Save pending state and release the lease."""
        super().close()
        try:
            self.leader.let_go()
        except DatabaseError:
            logger.warning("The lease can't be given back now; it runs out", exc_info=True)

    def setup_schedule(self) -> None:
        """Do nothing: the leader reads the rows, and Celery's default entries aren't used."""

    def _take_over(self) -> None:
        """Load the rows as the last leader left them."""
        logger.info("beat leads")
        self._initial_read = self._heap_invalidated = True
        self._heap: list[Any] = []
        self._dirty.clear()
        # Read before the rows, so that no change is missed.
        self._last_timestamp = self.Changes.last_change()
        self._led, self._written = True, False

    def should_sync(self) -> bool:
        """Return whether to save state; the first time immediately, to show that it is alive."""
        return bool(self._dirty and not self._written) or bool(super().should_sync())

    def sync(self) -> None:
        """Save when tasks were sent."""
        self._written = self._written or bool(self._dirty)
        super().sync()

    def all_as_schedule(self) -> dict[str, Any]:
        """Return the rows as entries; the last known ones while the database is unavailable."""
        try:
            sync(self.app.conf.beat_schedule)
            found: dict[str, Any] = super().all_as_schedule()
        except DatabaseError:
            if self._schedule is None:
                raise
            logger.warning("The schedule can't be read now; the last one holds", exc_info=True)
            return dict(self._schedule)
        return found
