"""Evidence: which calls brought what a caller had seen before it was asked about (FEATURES X9)."""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from agents.governance.flows import IDLE_S
from agents.models import Approval
from bonobot.ledger.models import AuditRow

ROWS_READ = 200
CALLS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Brought:
    """A label that the caller held, with the latest calls that brought it."""

    label: str
    calls: tuple[AuditRow, ...]


def evidence(approval: Approval) -> list[Brought]:
    """Return what the caller held, each with the calls that brought it (one query, or none)."""
    if not approval.held:
        return []
    rows = list(_calls(approval)[:ROWS_READ])
    return [
        Brought(label, tuple(row for row in rows if label in _labels(row))[:CALLS_SHOWN])
        for label in approval.held
    ]


def _calls(approval: Approval) -> Any:
    """Return the admitted calls with labels before the question, the latest first."""
    rows = AuditRow.objects.of(approval.organization_id).filter(
        event_type="call",
        decision__in=(AuditRow.Decision.ALLOW, AuditRow.Decision.ASK),
        opened_at__lte=approval.created_at,
        opened__contains='"labels":',
    )
    rows = rows.exclude(outcome=AuditRow.Outcome.REFUSED).order_by("-opened_at", "-seq")
    if approval.session_id is not None:
        return rows.filter(session_id=approval.session_id)
    since = approval.created_at - timedelta(seconds=IDLE_S)
    asked = rows.filter(opened_at__gte=since, session_id=None)
    own = asked.filter(actor_kind=approval.requested_by_kind, actor_id=approval.requested_by_id)
    return own | asked.filter(agent_id=approval.agent_id) if approval.agent_id else own


def _labels(row: AuditRow) -> set[str]:
    found: list[str] = json.loads(row.opened).get("details", {}).get("labels", [])
    return set(found)
