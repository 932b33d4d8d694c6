"""Rows of an outbox: claimed by one process, and retried with growing delays.

A claim advances `next_attempt_at` by a conditional UPDATE, so that one process delivers. If it
dies, the row is due again after the lease.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db.models import F, QuerySet
from django.utils import timezone

CLAIM_LEASE = timedelta(minutes=5)
RETRY_DELAYS_MIN = (1, 5, 15, 60, 180, 360, 720)


def compute_retry_delay(
    attempts: int, delays_min: Sequence[int] = RETRY_DELAYS_MIN
) -> timedelta | None:
    """Return the delay after this many failed attempts; None to give up."""
    return timedelta(minutes=delays_min[attempts - 1]) if attempts <= len(delays_min) else None


def claim_row(rows: QuerySet[Any], row: Any) -> bool:
    """Claim a due row among `rows`; return whether this process got it."""
    lease_end = timezone.now() + CLAIM_LEASE
    claimable = rows.filter(pk=row.pk, next_attempt_at=row.next_attempt_at)
    if not claimable.update(next_attempt_at=lease_end, attempts=F("attempts") + 1):
        return False
    row.next_attempt_at, row.attempts = lease_end, row.attempts + 1
    return True
