"""Abandoned calls: admitted by a process that died before it could settle them.

Whether such a call happened is unknown, so it is closed as `unknown` and settled at the amounts
that it had reserved: a budget errs on the side of having been spent, and nothing stays set aside
for ever. Calls of sessions are closed by whoever takes the session over, usually long before.
"""

from datetime import datetime
from uuid import UUID

from bonobot.ledger import sealing
from bonobot.ledger.entries import Settlement
from bonobot.ledger.models import AuditRow, Head
from bonobot.ledger.writer import writer

CODE = "abandoned"
AT_ONCE = 500


def settle_abandoned(*, opened_before: datetime) -> int:
    """Close the calls that were opened before a time and never settled; return how many.

    Choose a time that no call outlives: a call that is settled later keeps `unknown`.
    """
    # By way of the heads, so that the index by organization and outcome serves all of them.
    rows = AuditRow.objects.running().filter(
        organization_id__in=Head.objects.values("organization_id"), opened_at__lt=opened_before
    )
    futures = [writer().settle(_settlement(row)) for row in rows.order_by("opened_at")[:AT_ONCE]]
    return sum(future.result() for future in futures)


def settle_unknown(call_id: UUID) -> bool:
    """Close one call whose maker is known to be gone; False if it was closed, or never opened."""
    row = AuditRow.objects.running().filter(pk=call_id).first()
    return row is not None and writer().settle(_settlement(row)).result()


def _settlement(row: AuditRow) -> Settlement:
    return Settlement(
        call_id=row.id,
        organization_id=row.organization_id,
        outcome="unknown",
        code=CODE,
        duration_ms=0,
        actuals=tuple((key, amount, amount) for key, amount in sealing.reserved(row.opened)),
    )
