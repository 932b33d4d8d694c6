"""Celery tasks of the ledger: what leaves the database on a schedule."""

from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from bonobot.ledger import anchors, counting, retention, usage
from bonobot.ledger.actors import Actor
from bonobot.ledger.models import FlowCell, Head, PermitRow

SYSTEM = Actor(kind="system", id="retention", label="retention")
# Long after nobody can spend a permit, hold a label or look at what a past period took.
KEPT = timedelta(days=90)
MICROSECONDS = 1_000_000


@shared_task
def export_heads() -> int:
    """Write the signed ends of the chains that moved to `BONOBOT_AUDIT_HEADS`."""
    return anchors.export()


@shared_task
def count_usage() -> int:
    """Add what ended since the last time to the rollups; return how many rows that were."""
    return counting.count_all()


@shared_task
def prune_audit() -> int:
    """Remove audit rows older than `BONOBOT_AUDIT_DAYS` (0: none), and what nobody needs any more.

    That is: permits long expired, labels long let go, budgets' cells of periods long past, and
    rollups of hours whose days are kept.
    """
    counting.forget()
    usage.forget(timezone.now() - KEPT)
    stale = int((timezone.now() - KEPT).timestamp()) * MICROSECONDS
    PermitRow.objects.filter(expires__lt=stale).delete()
    FlowCell.objects.filter(labels=0, touched__lt=stale).delete()
    if not settings.BONOBOT_AUDIT_DAYS:
        return 0
    before = timezone.now() - timedelta(days=settings.BONOBOT_AUDIT_DAYS)
    organizations = Head.objects.values_list("organization_id", flat=True)
    return sum(retention.prune(one, before=before, actor=SYSTEM).rows for one in organizations)
