"""Release the sessions of runners that died: queue them again, or quarantine suspects."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import BooleanField, ExpressionWrapper, F, Q
from django.utils import timezone

from agents.models import Runner, Session
from agents.sessions.leases import build_suspect_filter, get_heartbeat_deadline
from agents.sessions.quarantine import quarantine_session
from agents.wakeups import notify_worker
from bonobot.core.process_identity import ProcessIdentity, has_ended

logger = logging.getLogger(__name__)
OPEN_STATUSES = (Session.Status.QUEUED, Session.Status.RUNNING, Session.Status.WAITING)


@dataclass(frozen=True)
class OtherRunner:
    """Another runner that isn't stopped; `is_silent`: it sent no heartbeat during a lease."""

    runner: Runner
    is_silent: bool

    @property
    def has_ended(self) -> bool:
        """Whether its process has certainly ended (no query)."""
        runner = self.runner
        return has_ended(ProcessIdentity(runner.machine, runner.pid, runner.process_start))


def list_other_runners(
    own_runner_id: UUID | None, session_id: UUID | None = None
) -> list[OtherRunner]:
    """Return the other runners that aren't stopped, or only the holder of a session (a query)."""
    runners = Runner.objects.filter(stopped_at=None)
    if own_runner_id is not None:
        runners = runners.exclude(pk=own_runner_id)
    if session_id is not None:
        runners = runners.filter(sessions=session_id)
    is_silent = ExpressionWrapper(
        Q(heartbeat_at__lt=get_heartbeat_deadline()), output_field=BooleanField()
    )
    return [OtherRunner(runner, runner.silent) for runner in runners.annotate(silent=is_silent)]


def release_dead_runners(
    runners: Iterable[OtherRunner], *, trust_heartbeats: bool = True
) -> list[UUID]:
    """Queue the sessions of dead runners again and notify workers; return the sessions' ids.

    `trust_heartbeats`: also release runners without heartbeats. False while the caller itself may
    have missed them, because the database was away: others couldn't write them then, either.
    """
    return [
        session_id
        for runner in runners
        if runner.has_ended or (trust_heartbeats and runner.is_silent)
        for session_id in _release_sessions(runner.runner)
    ]


def _release_sessions(runner: Runner) -> list[UUID]:
    """Stop a dead runner and queue its sessions again; return their ids.

    The condition on its heartbeat lets one of several callers do it, and none if it was sent.
    """
    now = timezone.now()
    with transaction.atomic():
        unchanged_runner = Runner.objects.filter(
            pk=runner.pk, heartbeat_at=runner.heartbeat_at, stopped_at=None
        )
        if not unchanged_runner.update(stopped_at=now):
            return []
        sessions = Session.objects.filter(runner_id=runner.pk, status=Session.Status.RUNNING)
        session_ids = list(sessions.order_by("pk").values_list("pk", flat=True))
        # A session that waits for its child did nothing meanwhile, so it didn't kill the worker.
        parents = Session.objects.filter(children__status__in=OPEN_STATUSES)
        suspects = sessions.filter(build_suspect_filter()).exclude(pk__in=parents.values("pk"))
        suspect_ids = list(suspects.order_by("pk").values_list("pk", flat=True))
        sessions.exclude(pk__in=suspect_ids).update(
            crashes=1,
            crash_progress=F("turns") + F("calls"),
            runner=None,
            status=Session.Status.QUEUED,
            updated_at=now,
        )
        quarantined_ids = _release_suspects(runner.pk, suspect_ids)
        queued_ids = [pk for pk in session_ids if pk not in quarantined_ids]
        for session_id in queued_ids:
            notify_worker(session_id)
    logger.warning(
        "worker %s died: %d sessions continue, %d are quarantined",
        runner,
        len(queued_ids),
        len(quarantined_ids),
    )
    return queued_ids


def _release_suspects(runner_id: UUID, suspect_ids: Sequence[UUID]) -> set[UUID]:
    """Queue or quarantine the sessions that may have killed a runner; return the quarantined."""
    suspects = Session.objects.filter(
        pk__in=suspect_ids, runner_id=runner_id, status=Session.Status.RUNNING
    )
    limit = settings.BONOBOT_QUARANTINE_CRASHES + (len(suspect_ids) > 1)
    quarantined_ids = set()
    for session in suspects.order_by("organization_id", "pk"):
        if session.crashes + 1 >= limit:
            quarantine_session(session)
            quarantined_ids.add(session.pk)
    suspects.exclude(pk__in=quarantined_ids).update(
        crashes=F("crashes") + 1,
        runner=None,
        status=Session.Status.QUEUED,
        updated_at=timezone.now(),
    )
    return quarantined_ids
