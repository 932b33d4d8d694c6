"""Runner heartbeat and session leases.

A runner beats once in five seconds, only while its loop ticks. A session names its runner and a
fence that each new holder raises by one; whoever holds an older fence can write nothing any more.
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
    """What a runner and the loop of one of its sessions tell each other, within the process.

    `lapsed`: the process stood still for longer than its lease, so others may hold the session.
    """

    def __init__(self, beaten_at: float | None = None) -> None:
        """Begin with nothing out and nobody leaving; the lease was renewed then, or just now."""
        self.leaving = False
        self.is_calling = False
        self.lapsed = False
        # The number of the session's last step, once it was looked up.
        self.last_seq: int | None = None
        self._beaten_at = monotonic() if beaten_at is None else beaten_at

    def beaten(self, at: float) -> None:
        """Note a renewal that was begun at a time of this process's clock."""
        self.lapsed = self.stale(at)
        self._beaten_at = at

    def stale(self, now: float | None = None) -> bool:
        """Tell whether this process stood still for longer than a lease; the rows tell more."""
        now = monotonic() if now is None else now
        return self.lapsed or now - self._beaten_at >= LEASE.total_seconds()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Say that calls are out, which a runner that stops lets come back."""
        self.is_calling = True
        try:
            yield
        finally:
            self.is_calling = False


@dataclass(frozen=True)
class SessionLease:
    """A holder's right to write: the session, who holds it, and the fence it was given."""

    session_id: UUID
    runner_id: UUID
    fence: int
    presence: LeaseState = field(default_factory=LeaseState, compare=False)

    @property
    def is_first(self) -> bool:
        """Tell whether nobody held the session before."""
        return self.fence == 1


class LeaseLost(Exception):
    """The lease was lost: someone else holds the session, and this holder must stop."""


def register() -> UUID:
    """Make this process's runner row and return its id."""
    runner = Runner.objects.create(
        host=socket.gethostname(), pid=os.getpid(), beat_at=timezone.now()
    )
    return runner.pk


def renew_runner_leases(runner_id: UUID) -> bool:
    """Renew the lease on everything this runner holds; False when its row is gone."""
    mine = Runner.objects.filter(pk=runner_id, stopped_at=None)
    return bool(mine.update(beat_at=timezone.now()))


def renew_session_lease(hold: SessionLease) -> bool:
    """Renew the lease, then tell whether the session is still this holder's.

    In this order nobody can take the session between the answer and what is done upon it.
    """
    return renew_runner_leases(hold.runner_id) and filter_leased_session(hold).exists()


def filter_leased_session(hold: SessionLease) -> "QuerySet[Session]":
    """Return the session as long as it is this holder's; nothing once it is somebody else's."""
    return Session.objects.filter(
        pk=hold.session_id,
        fence=hold.fence,
        runner_id=hold.runner_id,
        status=Session.Status.RUNNING,
    )


def stop_runner(runner_id: UUID) -> None:
    """Say that this runner stopped in an orderly way; what it still holds is free at once."""
    Runner.objects.filter(pk=runner_id).update(stopped_at=timezone.now())


def get_heartbeat_deadline() -> datetime:
    """Return the moment before which a heartbeat is too old."""
    return timezone.now() - LEASE


def has_live_runner(*, besides: UUID | None = None) -> bool:
    """Tell whether some process, other than `besides`, would take a queued session."""
    alive = Runner.objects.filter(stopped_at=None, beat_at__gt=get_heartbeat_deadline())
    others = alive if besides is None else alive.exclude(pk=besides)
    return others.exists()


def _build_abandoned_filter() -> Q:
    free = Q(runner=None) | Q(runner__stopped_at__isnull=False)
    return Q(status=Session.Status.RUNNING) & (
        free | Q(runner__beat_at__lt=get_heartbeat_deadline())
    )


def claim(session_id: UUID, runner_id: UUID) -> SessionLease | None:
    """Take a queued or abandoned session; None when it is somebody else's, or needs nothing."""
    open_to_claim = Q(status=Session.Status.QUEUED) | _build_abandoned_filter()
    fence = (
        Session.objects.filter(open_to_claim, pk=session_id).values_list("fence", flat=True).first()
    )
    if fence is None:
        return None
    # The fence in the condition makes two claims of the same state exclude each other.
    mine = Session.objects.filter(pk=session_id, fence=fence).update(
        runner_id=runner_id,
        fence=F("fence") + 1,
        status=Session.Status.RUNNING,
        updated_at=timezone.now(),
    )
    return SessionLease(session_id, runner_id, fence + 1) if mine else None


def release_session(hold: SessionLease) -> None:
    """Queue a session again that this holder can't finish (an orderly stop), and tell a worker."""
    mine = Session.objects.filter(
        pk=hold.session_id, fence=hold.fence, status=Session.Status.RUNNING
    )
    if mine.update(runner=None, status=Session.Status.QUEUED, updated_at=timezone.now()):
        notify_worker(hold.session_id)


def release_orphaned_sessions(runner_id: UUID, running: Collection[UUID]) -> list[UUID]:
    """Queue again what this runner holds without running it, and return it.

    A claim is committed before its task begins, so only what was claimed a while ago counts.
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
    """Return sessions that nobody runs although someone should: the sweep nudges for them."""
    waiting = Q(status=Session.Status.QUEUED, updated_at__lt=timezone.now() - queued_before)
    return list(
        Session.objects.filter(waiting | _build_abandoned_filter()).values_list("pk", flat=True)[
            :500
        ]
    )
