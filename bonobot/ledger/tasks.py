"""Celery tasks of the ledger."""

import time
from datetime import timedelta
from uuid import UUID

from celery import shared_task
from django.utils import timezone

from bonobot.core.celery_tasks import enqueue_task_on_commit
from bonobot.core.exclusive_task import ExclusiveTask
from bonobot.ledger import budget_balances
from bonobot.ledger.audit import signed_checkpoints
from bonobot.ledger.audit.verify_chain import verify_step
from bonobot.ledger.models import ApprovalCell, FlowCell
from bonobot.ledger.usage import build_rollups

# Long after approvals and labels have expired and past periods are of interest.
RETENTION = timedelta(days=90)
MICROSECONDS_PER_SECOND = 1_000_000
CONTINUE_VERIFICATION = "bonobot.ledger.tasks.continue_verification"
# A verification then frees the worker for other jobs and continues in another task.
MAX_RUN_S = 20.0


@shared_task(base=ExclusiveTask)
def export_signed_checkpoints() -> int:
    """Write signed checkpoints of changed hash chains to `BONOBOT_AUDIT_HEADS`."""
    return signed_checkpoints.export_checkpoints()


@shared_task(base=ExclusiveTask)
def count_usage() -> int:
    """Add newly completed calls to the usage totals; return how many rows that were.

    Then some days of those that aren't in the summaries yet are summed.
    """
    counted_rows = build_rollups.count_all_organizations()
    build_rollups.sum_missing_days()
    return counted_rows


@shared_task(base=ExclusiveTask)
def delete_expired_data() -> None:
    """Delete expired data outside the audit log.

    That is: expired approvals, cleared flow labels, budget cells of past periods, and rollups and
    summaries of hours whose days are kept.
    """
    build_rollups.delete_old_rollups()
    build_rollups.delete_old_summaries()
    budget_balances.delete_old_cells(timezone.now() - RETENTION)
    stale_before_us = int((timezone.now() - RETENTION).timestamp()) * MICROSECONDS_PER_SECOND
    ApprovalCell.objects.filter(expires__lt=stale_before_us).delete()
    FlowCell.objects.filter(labels=0, touched__lt=stale_before_us).delete()


@shared_task
def continue_verification(organization_id: str, restart: str = "") -> bool:
    """Continue the verification of a chain, or `restart` it, in stored steps.

    Return whether its end was reached; otherwise another task continues. If that message is lost,
    the next verification continues from the last step.
    """
    deadline = time.monotonic() + MAX_RUN_S
    progress = verify_step(UUID(organization_id), restart=bool(restart))
    while not progress.done and time.monotonic() < deadline:
        progress = verify_step(UUID(organization_id))
    if not progress.done:
        enqueue_task_on_commit(CONTINUE_VERIFICATION, organization_id)
    return progress.done
