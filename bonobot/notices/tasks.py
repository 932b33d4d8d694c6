"""Celery tasks of notices."""

from celery import shared_task

from bonobot.lib.alone import Alone
from bonobot.notices import delivering, outbox


@shared_task(base=Alone)
def deliver_due() -> int:
    """Deliver the notices that are due; return how many were tried."""
    return delivering.deliver_due()


@shared_task(base=Alone)
def prune_notices() -> int:
    """Delete what ended long ago; return how many rows."""
    return outbox.prune()
