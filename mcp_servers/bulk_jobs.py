"""Run one action on many servers in a worker.

Each item is claimed by a conditional update and settled once, so a task message may arrive twice or
never, and another worker resumes a job whose worker died. Actions run as the person who started the
job, with that person's current permissions.
"""

import logging
from asyncio import TaskGroup, sleep
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from bonobot.accounts.deletions import list_deletions
from bonobot.accounts.models import Deletion, User
from bonobot.accounts.principals import Principal, build_user_principal
from bonobot.accounts.roles import Action
from bonobot.core.celery_tasks import enqueue_task_on_commit
from bonobot.core.concurrency_limits import get_concurrency_limit
from bonobot.core.db import object_version
from bonobot.core.db.object_version import VersionConflict
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InternalError, NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.search import query_object_changes
from mcp_servers import services
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.discovery import run_discovery
from mcp_servers.models import BulkJob, BulkJobItem, HealthCheck, Server

logger = logging.getLogger(__name__)

RUN_TASK = "mcp_servers.tasks.run_bulk_job"
# The worker of a job renews its lease; another worker takes over a job whose lease expired.
LEASE = timedelta(seconds=45)
# A new job that no worker claims within this time counts as abandoned.
PICKUP_LIMIT = timedelta(seconds=10)
REQUIRED_ACTIONS = {BulkJob.Kind.APPROVE: Action.APPROVE_DEFINITIONS}
CHECKS = {
    BulkJob.Kind.TEST: HealthCheck.Kind.TEST,
    BulkJob.Kind.REFRESH: HealthCheck.Kind.DISCOVERY,
}
UNFINISHED_STATES = (BulkJobItem.State.WAITING, BulkJobItem.State.RUNNING)


def start_bulk_job(
    principal: Principal,
    kind: str,
    servers: Sequence[Server],
    confirmed: Mapping[UUID, Mapping[str, Any]] | None = None,
) -> BulkJob:
    """Create a bulk job and enqueue it; `confirmed` is what was confirmed for each server.

    Raises `Forbidden` without the permission for this action.
    """
    job_kind = BulkJob.Kind(kind)
    principal.require(REQUIRED_ACTIONS.get(job_kind, Action.MANAGE_SERVERS))
    confirmed_by_server = confirmed or {}
    with transaction.atomic():
        job: BulkJob = BulkJob.objects.create(
            organization_id=principal.organization_id,
            kind=job_kind,
            requested_by=_find_person(principal),
        )
        BulkJobItem.objects.bulk_create(
            BulkJobItem(
                job=job,
                server_id=server.pk,
                server_name=server.name,
                confirmed=confirmed_by_server.get(server.pk, {}),
            )
            for server in servers
        )
        enqueue_task_on_commit(RUN_TASK, str(job.pk))
    return job


def _find_person(principal: Principal) -> User | None:
    """Return the principal's user, or None."""
    is_person = principal.kind == "user"
    return User.objects.filter(pk=principal.id).first() if is_person else None


def count_items(jobs: QuerySet[BulkJob]) -> list[tuple[BulkJob, dict[str, int]]]:
    """Return jobs with the number of items, in `total` and by state (one query)."""
    states = {
        f"in_{state}": Count("items", filter=Q(items__state=state))
        for state in BulkJobItem.State.values
    }
    return [
        (job, {name.removeprefix("in_"): getattr(job, name) for name in ("in_total", *states)})
        for job in jobs.annotate(in_total=Count("items"), **states)
    ]


def list_abandoned_jobs() -> list[UUID]:
    """Return jobs without a worker: their message was lost or their worker died."""
    now = timezone.now()
    unclaimed = Q(lease_expires_at=None, created_at__lt=now - PICKUP_LIMIT) | Q(
        lease_expires_at__lt=now
    )
    return list(BulkJob.objects.filter(unclaimed, finished_at=None).values_list("pk", flat=True))


def is_stalled(job: BulkJob) -> bool:
    """Return whether an unfinished job has no worker."""
    due_at = job.lease_expires_at or job.created_at + PICKUP_LIMIT
    return job.finished_at is None and due_at < timezone.now()


def retry_failed_items(principal: Principal, job: BulkJob) -> BulkJob:
    """Start a job for the failed items of another job, with what was confirmed there.

    Raises `Conflict` (`nothing_failed`) if no such server exists any more, `Forbidden`.
    """
    confirmed = {
        item.server_id: item.confirmed for item in job.items.filter(state=BulkJobItem.State.FAILED)
    }
    organization_servers = Server.objects.for_organization(principal.organization_id)
    servers = list(organization_servers.filter(pk__in=confirmed).order_by("name"))
    if not servers:
        raise Conflict(
            "No failed servers are left to retry.",
            code="nothing_failed",
            remedy="Select servers in the list.",
        )
    return start_bulk_job(principal, job.kind, servers, confirmed)


def list_restorable_servers(principal: Principal, job: BulkJob) -> list[Deletion]:
    """Return the servers that a job deleted and that the principal can restore now."""
    deleted_ids = job.items.filter(state=BulkJobItem.State.DONE).values_list("server_id", flat=True)
    if job.kind != BulkJob.Kind.REMOVE or job.finished_at is None:
        return []
    deletions = list_deletions(principal).filter(
        kind="mcp_server", object_id__in=[str(server_id) for server_id in deleted_ids]
    )
    return list(deletions.defer("rows"))


async def run_bulk_job(job_id: UUID) -> None:
    """Run a job to its end, unless another worker does."""
    run_aside = get_runtime().run_background_orm
    if (job := await run_aside(_claim_job, job_id)) is None:
        return
    pending_items = await run_aside(list, job.items.filter(state=BulkJobItem.State.WAITING))
    async with TaskGroup() as lease_group:
        lease_task = lease_group.create_task(_renew_lease_periodically(job))
        async with TaskGroup() as group:
            for item in pending_items:
                group.create_task(_process_item(job, item))
        lease_task.cancel()
    await run_aside(_finish_job, job)


async def _renew_lease_periodically(job: BulkJob) -> None:
    """Renew the lease until canceled."""
    while True:
        await sleep(LEASE.total_seconds() / 3)
        await get_runtime().run_background_orm(_renew_lease, job.pk)


def _renew_lease(job_id: UUID) -> None:
    BulkJob.objects.filter(pk=job_id).update(lease_expires_at=timezone.now() + LEASE)


def _claim_job(job_id: UUID) -> BulkJob | None:
    now = timezone.now()
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=now)
    rows = BulkJob.objects.filter(free, pk=job_id, finished_at=None)
    if not rows.update(lease_expires_at=now + LEASE):
        return None
    # Left by a worker that died; the actions are idempotent.
    BulkJobItem.objects.filter(job_id=job_id, state=BulkJobItem.State.RUNNING).update(
        state=BulkJobItem.State.WAITING
    )
    job: BulkJob = BulkJob.objects.select_related("requested_by", "organization").get(pk=job_id)
    return job


async def _process_item(job: BulkJob, item: BulkJobItem) -> None:
    """Process one item; a failure is stored in it and does not affect others."""
    aside = get_runtime().run_background_orm
    async with get_concurrency_limit("discovery"):
        if not await aside(_start_item, item):
            return
        try:
            detail = await _perform_action(job, item)
        except Problem as problem:
            detail = f"{problem} {problem.remedy}".strip()
            await aside(_settle_item, item, BulkJobItem.State.FAILED, problem.code, detail)
        except Exception:
            logger.exception("an item of bulk job %s broke off", job.pk)
            code = InternalError.code
            await aside(
                _settle_item,
                item,
                BulkJobItem.State.FAILED,
                code,
                "An internal error occurred. It was logged.",
            )
        else:
            await aside(_settle_item, item, BulkJobItem.State.DONE, "", detail)


async def _perform_action(job: BulkJob, item: BulkJobItem) -> str:
    """Perform the action on one server; return what its result is, blank if that is evident."""
    aside = get_runtime().run_background_orm
    principal, server = await aside(_load_principal_and_server, job, item)
    if job.kind in CHECKS:
        principal.require(Action.MANAGE_SERVERS)
        kind = CHECKS[BulkJob.Kind(job.kind)]
        await run_discovery(server.pk, actor=principal.actor, kind=kind)
    elif job.kind == BulkJob.Kind.APPROVE:
        shown_digests = {UUID(pk): digest for pk, digest in item.confirmed.items()}
        return await aside(_approve_shown_definitions, principal, server, shown_digests)
    elif job.kind == BulkJob.Kind.REMOVE:
        await aside(_delete_unchanged_server, job, principal, server)
    else:
        enabled = job.kind == BulkJob.Kind.ENABLE
        await aside(services.set_server_enabled, principal, server, enabled=enabled)
    return ""


def _load_principal_and_server(job: BulkJob, item: BulkJobItem) -> tuple[Principal, Server]:
    if job.requested_by is None or not job.requested_by.is_active:
        raise NotFound(
            "The person who started this job is no longer active.", remedy="Start again."
        )
    principal = build_user_principal(job.requested_by, job.organization)
    server: Server = Server.objects.get_or_404(job.organization_id, pk=item.server_id)
    return principal, server


def _delete_unchanged_server(job: BulkJob, principal: Principal, server: Server) -> None:
    """Delete a server; raises `VersionConflict` if it was changed since the job was started."""
    with object_version.open_scope():
        object_version.add_precondition(partial(_check_unchanged, job, server))
        services.delete_server(principal, server)


def _check_unchanged(job: BulkJob, server: Server) -> None:
    changes = query_object_changes(job.organization_id, [str(server.pk)])
    if changes.filter(opened_at__gt=job.created_at).exists():
        raise Conflict(
            "The server was changed after this job was started.",
            code=VersionConflict.code,
            remedy="Review the server, then delete it.",
        )


def _approve_shown_definitions(
    principal: Principal, server: Server, shown_digests: Mapping[UUID, str]
) -> str:
    """Approve exactly the definitions that were shown at confirmation; return how many."""
    approved: tuple[str, ...] = ()
    if shown_digests:
        approved = approve_definitions(principal, server, dict(shown_digests)).approved
    if pending_count := server.definitions.awaiting_review().count():
        return format_message(
            "{approved} approved, {pending} still pending review.",
            approved=len(approved),
            pending=pending_count,
        )
    return format_message("{approved} approved.", approved=len(approved))


def _start_item(item: BulkJobItem) -> bool:
    pending_items = BulkJobItem.objects.filter(pk=item.pk, state=BulkJobItem.State.WAITING)
    return bool(pending_items.update(state=BulkJobItem.State.RUNNING))


def _settle_item(item: BulkJobItem, state: str, code: str = "", detail: str = "") -> None:
    running = BulkJobItem.objects.filter(pk=item.pk, state=BulkJobItem.State.RUNNING)
    running.update(state=state, code=code[:64], detail=detail[:2_000])


def _finish_job(job: BulkJob) -> None:
    if not job.items.filter(state__in=UNFINISHED_STATES).exists():
        BulkJob.objects.filter(pk=job.pk).update(finished_at=timezone.now())
