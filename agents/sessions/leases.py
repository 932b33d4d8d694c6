"""Runner heartbeats and session leases.

A runner sends a heartbeat every five seconds while its event loop responds. A session names its
runner and a fence that each new holder increments; a holder with an older fence can't write.
"""

import logging
import os
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.utils import timezone

from agents.models import Runner, Session
from agents.session_wakeups import notify_worker

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=15)
BEAT_S = 5.0


class LeaseState:
    """State shared by a runner and the loop of one of its sessions, within the process.

    `has_lapsed`: the process stalled for longer than its lease, so another may hold the session.
    """

    def __init__(self, beaten_at: float | None = None) -> None:
        """Create the state of a lease renewed at `renewed_at` (monotonic; default: now)."""
        self.leaving = False
        self.is_calling = False
        self.lapsed = False
        # The number of the session's last step, once loaded.
        self.last_seq: int | None = None
        self._beaten_at = monotonic() if beaten_at is None else beaten_at

    def beaten(self, at: float) -> None:
        """Record a renewal that started at a time of this process's monotonic clock."""
        self.lapsed = self.stale(at)
        self._beaten_at = at

    def stale(self, now: float | None = None) -> bool:
        """Tell whether this process may have stalled past its lease; only the rows are certain."""
        now = monotonic() if now is None else now
        return self.lapsed or now - self._beaten_at >= LEASE.total_seconds()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Mark calls as running, so that a stopping runner waits for them."""
        self.is_calling = True
        try:
            yield
        finally:
            self.is_calling = False


@dataclass(frozen=True)
class SessionLease:
    """A runner's right to write to a session, with its fence."""

    session_id: UUID
    runner_id: UUID
    fence: int
    presence: LeaseState = field(default_factory=LeaseState, compare=False)

    @property
    def is_first(self) -> bool:
        """Whether this is the session's first lease."""
        return self.fence == 1


class LeaseLost(Exception):
    """Another runner holds the session now; this one must stop."""


def register() -> UUID:
    """Create this process's runner row and return its id."""
    runner = Runner.objects.create(
        host=socket.gethostname(), pid=os.getpid(), beat_at=timezone.now()
    )
    return runner.pk


def renew_runner_leases(runner_id: UUID) -> bool:
    """Renew all leases of this runner; False if its row was deleted."""
    mine = Runner.objects.filter(pk=runner_id, stopped_at=None)
    return bool(mine.update(beat_at=timezone.now()))


def renew_session_lease(hold: SessionLease) -> bool:
    """Renew the lease, then tell whether it is still held.

    In this order no other runner can claim the session between the check and the caller's action.
    """
    return renew_runner_leases(hold.runner_id) and filter_leased_session(hold).exists()


def filter_leased_session(hold: SessionLease) -> "QuerySet[Session]":
    """Query the session if the lease is still held; empty otherwise."""
    return Session.objects.filter(
        pk=hold.session_id,
        fence=hold.fence,
        runner_id=hold.runner_id,
        status=Session.Status.RUNNING,
    )


def stop_runner(runner_id: UUID) -> None:
    """Mark this runner as stopped; its sessions can be claimed at once."""
    Runner.objects.filter(pk=runner_id).update(stopped_at=timezone.now())


def get_heartbeat_deadline() -> datetime:
    """Return the time before which a heartbeat is too old."""
    return timezone.now() - LEASE


def has_live_runner(*, besides: UUID | None = None) -> bool:
    """Tell whether a live runner, other than `exclude_runner_id`, could claim a queued session."""
    alive = Runner.objects.filter(stopped_at=None, beat_at__gt=get_heartbeat_deadline())
    others = alive if besides is None else alive.exclude(pk=besides)
    return others.exists()


def _build_abandoned_filter() -> Q:
    free = Q(runner=None) | Q(runner__stopped_at__isnull=False)
    return Q(status=Session.Status.RUNNING) & (
        free | Q(runner__beat_at__lt=get_heartbeat_deadline())
    )


def claim(session_id: UUID, runner_id: UUID) -> SessionLease | None:
    """Claim a queued or abandoned session; None if it is neither."""
    open_to_claim = Q(status=Session.Status.QUEUED) | _build_abandoned_filter()
    fence = (
        Session.objects.filter(open_to_claim, pk=session_id).values_list("fence", flat=True).first()
    )
    if fence is None:
        return None
    # The fence in the condition lets only one of two concurrent claims succeed.
    mine = Session.objects.filter(pk=session_id, fence=fence).update(
        runner_id=runner_id,
        fence=F("fence") + 1,
        status=Session.Status.RUNNING,
        updated_at=timezone.now(),
    )
    return SessionLease(session_id, runner_id, fence + 1) if mine else None


def release_session(hold: SessionLease) -> None:
    """Queue a session again that this runner can't finish, and notify a worker."""
    mine = Session.objects.filter(
        pk=hold.session_id, fence=hold.fence, status=Session.Status.RUNNING
    )
    if mine.update(runner=None, status=Session.Status.QUEUED, updated_at=timezone.now()):
        notify_worker(hold.session_id)


def release_orphaned_sessions(runner_id: UUID, running: Collection[UUID]) -> list[UUID]:
    """Queue sessions again that this runner holds but doesn't run; return their ids.

    A claim is committed before its task starts, so recently claimed sessions are skipped.
    """
    idle = Session.objects.filter(
        runner_id=runner_id, status=Session.Status.RUNNING, updated_at__lt=get_heartbeat_deadline()
    ).exclude(pk__in=running)
    found = list(idle.values_list("pk", flat=True))
    for session_id in found:
        idle.filter(pk=session_id).update(
            runner=None, status=Session.Status.QUEUED, updated_at=timezone.now()
        )
    return found


def list_unattended_sessions(queued_before: timedelta = timedelta(seconds=10)) -> list[UUID]:
    """Return queued or abandoned sessions that no runner has claimed, for the sweep to wake."""
    waiting = Q(status=Session.Status.QUEUED, updated_at__lt=timezone.now() - queued_before)
    return list(
        Session.objects.filter(waiting | _build_abandoned_filter()).values_list("pk", flat=True)[
            :500
        ]
    )
