"""Close the calls of crashed processes as unknown.

Whether such a call happened is unknown, so it is closed as `unknown` and settled at its reserved
amounts. Calls of sessions are usually closed earlier, by the process that takes the session over.
"""

from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet

from bonobot.ledger.audit import entry_encoding
from bonobot.ledger.models import AuditRow, Head
from bonobot.ledger.types import Settlement
from bonobot.ledger.writer.writer_thread import get_writer

ABANDONED_CODE = "abandoned"
BATCH_SIZE = 500


def settle_abandoned_calls(*, opened_before: datetime) -> int:
    """Close the calls that were opened before a time and never settled; return how many.

    Choose a time that no call outlives: a call that ends later stays `unknown`.
    """
    return _settle_calls(_query_running_calls().filter(opened_at__lt=opened_before))


def settle_session_calls(session_id: UUID) -> int:
    """Close the open calls of a session's crashed process; return how many.

    The session's new process calls this before it makes any call.
    """
    return _settle_calls(_query_running_calls().filter(session_id=session_id))


def _query_running_calls() -> QuerySet[AuditRow]:
    # Filter by organizations, so that the index on organization and outcome is used.
    heads = Head.objects.values("organization_id")
    return AuditRow.objects.running().filter(organization_id__in=heads)


def _settle_calls(rows: QuerySet[AuditRow]) -> int:
    futures = [
        get_writer().settle_call(_build_settlement(row))
        for row in rows.order_by("opened_at")[:BATCH_SIZE]
    ]
    return sum(future.result() for future in futures)


def _build_settlement(row: AuditRow) -> Settlement:
    return Settlement(
        call_id=row.id,
        organization_id=row.organization_id,
        outcome="unknown",
        code=ABANDONED_CODE,
        duration_ms=0,
        actuals=tuple(
            (key, amount, amount) for key, amount in entry_encoding.parse_reservations(row.opened)
        ),
    )
