"""Runner heartbeats and session leases.

A runner sends a heartbeat every five seconds while its event loop responds. A session names its
runner and a fence that each new holder increments; a holder with an older fence can't write.
Heartbeats are written and compared with the database's clock, so the hosts' clocks don't matter.
`dead_runners` releases the sessions of runners without heartbeats, and of ended processes.
"""

import asyncio
import logging
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import (
    BigIntegerField,
    DateTimeField,
    DurationField,
    F,
    Q,
    QuerySet,
    UUIDField,
    Value,
)
from django.db.models.expressions import Combinable
from django.db.models.functions import Now
from django.utils import timezone

from agents.models import Runner, Session
from agents.wakeups import notify_worker
from bonobot.core.db.prepared_queries import PreparedQuery, PreparedUpdate, QueryParameter
from bonobot.core.process_identity import identify_this_process

logger = logging.getLogger(__name__)

LEASE_DURATION = timedelta(seconds=15)
HEARTBEAT_INTERVAL_S = 5.0


class LeaseState:
    """State shared by a runner and the loop of one of its sessions, within the process.

    `has_lapsed`: the process stalled for longer than its lease, so another may hold the session.
    `is_canceled`: a request to cancel ends the run.
    `stopping`: set when this process hands the session over to another one.
    `cancels_live_requests`: what servers request on live connections is canceled.
    `may_be_queued`: the session may be queued again once the run has ended.
    """

    def __init__(self, renewed_at: float | None = None) -> None:
        """Create the state of a lease renewed at `renewed_at` (monotonic; default: now)."""
        self.stopping = asyncio.Event()
        self.is_calling = False
        self.has_lapsed = False
        self.is_canceled = False
        self.cancels_live_requests = False
        self.may_be_queued = True
        # The number of the session's last step, once loaded.
        self.last_seq: int | None = None
        self._renewed_at = monotonic() if renewed_at is None else renewed_at

    @property
    def is_stopping(self) -> bool:
        """Whether this process hands the session over as soon as no call is running."""
        return self.stopping.is_set()

    def mark_renewed(self, renewed_at: float) -> None:
        """Record a renewal that started at a time of this process's monotonic clock."""
        self.has_lapsed = self.is_stale(renewed_at)
        self._renewed_at = renewed_at

    def is_stale(self, now: float | None = None) -> bool:
        """Tell whether this process may have stalled past its lease; only the rows are certain."""
        now = monotonic() if now is None else now
        return self.has_lapsed or now - self._renewed_at >= LEASE_DURATION.total_seconds()

    @contextmanager
    def track_calls(self) -> Iterator[None]:
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
    state: LeaseState = field(default_factory=LeaseState, compare=False)

    @property
    def is_first(self) -> bool:
        """Whether this is the session's first lease."""
        return self.fence == 1


class LeaseLost(Exception):
    """Another runner holds the session now; this one must stop."""


def register_runner() -> UUID:
    """Create this process's runner row and return its id."""
    columns = _identify_own_runners()
    return Runner.objects.create(heartbeat_at=_get_heartbeat_time(), **columns).pk


def renew_runner_leases(runner_id: UUID) -> bool:
    """Renew all leases of this runner; False if its row was deleted."""
    active_runner = Runner.objects.filter(pk=runner_id, stopped_at=None)
    return bool(active_runner.update(heartbeat_at=_get_heartbeat_time()))


def renew_session_lease(lease: SessionLease) -> bool:
    """Renew the lease, then tell whether it is still held.

    In this order no other runner can claim the session between the check and the caller's action.
    """
    return renew_runner_leases(lease.runner_id) and query_leased_session(lease).exists()


def query_leased_session(lease: SessionLease) -> "QuerySet[Session]":
    """Query the session if the lease is still held; empty otherwise."""
    return Session.objects.filter(
        pk=lease.session_id,
        fence=lease.fence,
        runner_id=lease.runner_id,
        status=Session.Status.RUNNING,
    )


def stop_runner(runner_id: UUID) -> None:
    """Mark this runner as stopped; its sessions can be claimed at once."""
    Runner.objects.filter(pk=runner_id).update(stopped_at=timezone.now())


def get_heartbeat_deadline() -> "Combinable | datetime":
    """Return the time before which a heartbeat is too old."""
    now = _get_heartbeat_time()
    if isinstance(now, datetime):
        return now - LEASE_DURATION
    return now - Value(LEASE_DURATION, output_field=DurationField())


def _get_heartbeat_time() -> "Now | datetime":
    """Return the current time by PostgreSQL's clock; SQLite is used by one host, with one clock."""
    return Now() if connection.vendor == "postgresql" else timezone.now()


def has_live_runner() -> bool:
    """Tell whether a live runner of another process could claim a queued session.

    This process is recognized by its identity: its runner may be registering again at this moment.
    """
    live_runners = Runner.objects.filter(stopped_at=None, heartbeat_at__gt=get_heartbeat_deadline())
    return live_runners.exclude(**_identify_own_runners()).exists()


def _identify_own_runners() -> dict[str, Any]:
    """Return the columns that identify this process in its runner's row."""
    process = identify_this_process()
    return {
        "host": socket.gethostname(),
        "pid": process.pid,
        "machine": process.machine,
        "process_start": process.started,
    }


def _build_abandoned_filter() -> Q:
    without_runner = Q(runner=None) | Q(runner__stopped_at__isnull=False)
    return Q(status=Session.Status.RUNNING) & without_runner


def build_suspect_filter(min_crashes: int = 1) -> Q:
    """Return a filter for sessions whose worker died, and that did nothing since.

    One that ran while its worker died `min_crashes` times in a row may be the cause.
    """
    return Q(crashes__gte=min_crashes, crash_progress=F("turns") + F("calls"))


def _must_wait_for_suspect(session_id: UUID) -> bool:
    """Tell whether another session that may crash its worker has to run alone first."""
    suspects = Session.objects.filter(build_suspect_filter(min_crashes=2))
    return (
        suspects.filter(pk=session_id).exists()
        and suspects.filter(status=Session.Status.RUNNING).exclude(pk=session_id).exists()
    )


_CLAIMABLE_SESSION = PreparedQuery(
    lambda: Session.objects.filter(
        Q(status=Session.Status.QUEUED) | _build_abandoned_filter(),
        pk=QueryParameter("session", output_field=UUIDField()),
    ).values_list("fence", "crashes")
)


def select_fenced_session() -> QuerySet[Session]:
    """Return the rows of a prepared update: the session, if nobody has claimed it since."""
    return Session.objects.filter(
        pk=QueryParameter("session", output_field=UUIDField()),
        fence=QueryParameter("fence", output_field=BigIntegerField()),
    )


_CLAIM = PreparedUpdate(
    select_fenced_session,
    lambda: {
        "runner_id": QueryParameter("runner", output_field=UUIDField()),
        "fence": F("fence") + 1,
        "status": Session.Status.RUNNING,
        "updated_at": QueryParameter("now", output_field=DateTimeField()),
    },
)


def claim_session(session_id: UUID, runner_id: UUID) -> SessionLease | None:
    """Claim a queued or abandoned session; None if it is neither, or a suspect has to wait.

    Of several sessions that may have crashed their worker twice, one runs at a time.
    """
    claimable_session = _CLAIMABLE_SESSION.fetch_first(session=session_id)
    if claimable_session is None:
        return None
    fence, crashes = claimable_session
    if crashes > 1 and _must_wait_for_suspect(session_id):
        return None
    # The fence in the condition lets only one of two concurrent claims succeed.
    claimed_count = _CLAIM.execute(
        session=session_id, fence=fence, runner=runner_id, now=timezone.now()
    )
    return SessionLease(session_id, runner_id, fence + 1) if claimed_count else None


def release_session(lease: SessionLease) -> None:
    """Queue a session again that this runner can't finish, and notify a worker."""
    leased_session = Session.objects.filter(
        pk=lease.session_id, fence=lease.fence, status=Session.Status.RUNNING
    )
    if leased_session.update(runner=None, status=Session.Status.QUEUED, updated_at=timezone.now()):
        notify_worker(lease.session_id)


def release_orphaned_sessions(runner_id: UUID, running_ids: Collection[UUID]) -> list[UUID]:
    """Queue sessions again that this runner holds but doesn't run; return their ids.

    A claim is committed before its task starts, so recently claimed sessions are skipped.
    """
    orphaned_sessions = Session.objects.filter(
        runner_id=runner_id,
        status=Session.Status.RUNNING,
        updated_at__lt=timezone.now() - LEASE_DURATION,
    ).exclude(pk__in=running_ids)
    session_ids = list(orphaned_sessions.values_list("pk", flat=True))
    for session_id in session_ids:
        if orphaned_sessions.filter(pk=session_id).update(
            runner=None, status=Session.Status.QUEUED, updated_at=timezone.now()
        ):
            notify_worker(session_id)
    return session_ids


def list_unattended_sessions(min_queued_time: timedelta = timedelta(seconds=10)) -> list[UUID]:
    """Return queued or abandoned sessions that no runner has claimed, for the sweep to wake."""
    is_overdue = Q(status=Session.Status.QUEUED, updated_at__lt=timezone.now() - min_queued_time)
    return list(
        Session.objects.filter(is_overdue | _build_abandoned_filter()).values_list("pk", flat=True)[
            :500
        ]
    )


def announce_unattended_sessions(min_queued_time: timedelta) -> None:
    """Notify workers of queued or abandoned sessions that no runner has claimed."""
    for session_id in list_unattended_sessions(min_queued_time):
        notify_worker(session_id)
