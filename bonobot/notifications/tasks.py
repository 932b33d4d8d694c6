"""Celery tasks of notifications."""

from celery import shared_task

from bonobot.core.exclusive_task import ExclusiveTask
from bonobot.notifications import delivery


@shared_task(base=ExclusiveTask)
def send_due_notifications() -> int:
    """Deliver due notifications; return how many were tried."""
    return delivery.send_due_notifications()


@shared_task(base=ExclusiveTask)
def prune_notifications() -> int:
    """Delete old completed notifications; return how many rows."""
    return delivery.prune_notifications()
