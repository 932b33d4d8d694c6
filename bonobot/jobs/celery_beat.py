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
from bonobot.jobs.schedules import HEARTBEAT, sync_schedules

logger = logging.getLogger(__name__)

LEASE_DURATION_S = 15.0
RENEW_INTERVAL_S = 5.0
# How often the scheduler saves when it last sent tasks, which also shows that it is alive.
SYNC_INTERVAL_S = 30
# How often a standby scheduler tries to become the leader.
STANDBY_INTERVAL_S = 2.0


class LeaderLease:
    """One lease, as held by this process."""

    def __init__(self, name: str) -> None:
        """Create the lease without claiming it."""
        self.name = name
        self.holder = uuid4()
        self._held_until = 0.0
        self._next_renewal_at = 0.0

    @property
    def is_leader(self) -> bool:
        """Whether this process holds the lease by its own clock."""
        return monotonic() < self._held_until

    def renew(self) -> bool:
        """Claim or renew the lease, at most every 5 s; return whether this process holds it."""
        now = monotonic()
        if now >= self._next_renewal_at:
            self._next_renewal_at = now + RENEW_INTERVAL_S
            try:
                self._held_until = now + LEASE_DURATION_S if self._claim_row() else 0.0
            except DatabaseError as error:
                logger.warning("The lease %r can't be renewed now: %s", self.name, error)
        return self.is_leader

    def release(self) -> None:
        """Release the lease, so that another process can claim it immediately."""
        self._held_until = 0.0
        Lease.objects.filter(name=self.name, holder=self.holder).delete()

    def _claim_row(self) -> bool:
        now = timezone.now()
        expires_at = now + timedelta(seconds=LEASE_DURATION_S)
        is_claimable = Q(holder=self.holder) | Q(expires_at__lt=now)
        if Lease.objects.filter(is_claimable, name=self.name).update(
            holder=self.holder, expires_at=expires_at
        ):
            return True
        lease = Lease(name=self.name, holder=self.holder, expires_at=expires_at)
        Lease.objects.bulk_create([lease], ignore_conflicts=True)
        return Lease.objects.filter(name=self.name, holder=self.holder).exists()


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
    sync_every = SYNC_INTERVAL_S

    ticked_at = time.monotonic()
    leader = LeaderLease("beat")
    _is_leading = False
    _has_synced = False  # since it leads

    @classmethod
    def measure_tick_age_s(cls) -> float:
        """Return the seconds since this process's last tick."""
        return time.monotonic() - cls.ticked_at

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send due tasks if this process leads; record the time for health checks."""
        BonobotScheduler.ticked_at = time.monotonic()
        close_old_connections()
        if not self.leader.renew():
            self._is_leading = False
            return STANDBY_INTERVAL_S
        if not self._is_leading:
            self._take_over()
        wait: float = super().tick(*args, **kwargs)
        return min(wait, RENEW_INTERVAL_S)

    def close(self) -> None:
        """Save pending state and release the lease."""
        super().close()
        try:
            self.leader.release()
        except DatabaseError:
            logger.warning("The lease can't be given back now; it runs out", exc_info=True)

    def setup_schedule(self) -> None:
        """Do nothing: the leader reads the rows, and Celery's default entries aren't used."""

    def _take_over(self) -> None:
        """Load the rows as the last leader left them."""
        logger.info("This scheduler is active")
        self._initial_read = self._heap_invalidated = True
        self._heap: list[Any] = []
        self._dirty.clear()
        # Read before the rows, so that no change is missed.
        self._last_timestamp = self.Changes.last_change()
        self._is_leading, self._has_synced = True, False

    def should_sync(self) -> bool:
        """Return whether to save state; the first heartbeat immediately."""
        is_first_heartbeat = HEARTBEAT in self._dirty and not self._has_synced
        return is_first_heartbeat or bool(super().should_sync())

    def sync(self) -> None:
        """Save when tasks were sent."""
        self._has_synced = self._has_synced or HEARTBEAT in self._dirty
        super().sync()

    def all_as_schedule(self) -> dict[str, Any]:
        """Return the rows as entries; the last known ones while the database is unavailable."""
        try:
            sync_schedules(self.app.conf.beat_schedule)
            entries: dict[str, Any] = super().all_as_schedule()
        except DatabaseError:
            if self._schedule is None:
                raise
            logger.warning("The schedule can't be read now; the last one holds", exc_info=True)
            return dict(self._schedule)
        return entries
