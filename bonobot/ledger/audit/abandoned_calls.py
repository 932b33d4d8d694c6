"""Close calls of dead processes as unknown.

Whether such a call happened is unknown, so it is closed as `unknown` and settled at the amounts
that it had reserved: a budget errs on the side of having been spent, and nothing stays set aside
for ever. Those of sessions are closed by whoever takes the session over, usually long before.
"""

from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet

from bonobot.ledger.audit import entry_encoding
from bonobot.ledger.models import AuditRow, Head
from bonobot.ledger.types import Settlement
from bonobot.ledger.writer.writer_thread import get_writer

CODE = "abandoned"
AT_ONCE = 500


def settle_abandoned(*, opened_before: datetime) -> int:
    """Close the calls that were opened before a time and never settled; return how many.

    Choose a time that no call outlives: a call that is settled later keeps `unknown`.
    """
    return _settle(_query_running_calls().filter(opened_at__lt=opened_before))


def settle_session(session_id: UUID) -> int:
    """Close what a session's dead holder opened; return how much that was.

    For its new holder, who has opened nothing yet.
    """
    return _settle(_query_running_calls().filter(session_id=session_id))


def _query_running_calls() -> QuerySet[AuditRow]:
    # By way of the heads, so that the index by organization and outcome serves all of them.
    heads = Head.objects.values("organization_id")
    return AuditRow.objects.running().filter(organization_id__in=heads)


def _settle(rows: QuerySet[AuditRow]) -> int:
    futures = [
        get_writer().settle(_build_settlement(row)) for row in rows.order_by("opened_at")[:AT_ONCE]
    ]
    return sum(future.result() for future in futures)


def _build_settlement(row: AuditRow) -> Settlement:
    return Settlement(
        call_id=row.id,
        organization_id=row.organization_id,
        outcome="unknown",
        code=CODE,
        duration_ms=0,
        actuals=tuple(
            (key, amount, amount) for key, amount in entry_encoding.parse_reservations(row.opened)
        ),
    )
