"""Evidence: which calls brought what a caller has seen (FEATURES X9)."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from agents.governance.flows import IDLE_S
from agents.models import Approval, Session
from bonobot.ledger.models import AuditRow
from mcp_servers.labels import Label

# Calls that are looked through for what brought a session's labels, and a question's.
CALLS_READ = 2_000
ROWS_READ = 200
CALLS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Brought:
    """A label that a caller holds, with calls that brought it, if they are still found.

    Of a session it is the first one, of a question the latest ones before it.
    """

    label: Label
    calls: list[AuditRow] = field(default_factory=list)

    @property
    def call_id(self) -> UUID | None:
        """The first of the calls."""
        return self.calls[0].pk if self.calls else None

    @property
    def tool(self) -> str:
        """Its tool, by its server's name of it."""
        return self.calls[0].tool_name if self.calls else ""

    @property
    def at(self) -> datetime | None:
        """When it was asked for."""
        return self.calls[0].opened_at if self.calls else None


def evidence(approval: Approval) -> list[Brought]:
    """Return what the caller held when it was asked about (one query, or none)."""
    held = [Label(name) for name in approval.held]
    return _brought(_before(approval)[:ROWS_READ] if held else (), held, CALLS_SHOWN)


def evidence_of(session: Session, held: Collection[Label]) -> list[Brought]:
    """Return what brought the labels that a session holds (one query, or none)."""
    rows = _admitted(session.organization_id).filter(session_id=session.pk).order_by("seq")
    return _brought(rows[:CALLS_READ] if held else (), held, 1)


def _brought(rows: Iterable[AuditRow], held: Collection[Label], most: int) -> list[Brought]:
    found = {label: Brought(label) for label in held}
    for row in rows:
        labels = labels_of(row)
        for label, one in found.items():
            if label in labels and len(one.calls) < most:
                one.calls.append(row)
        if all(len(one.calls) == most for one in found.values()):
            break
    return list(found.values())


def _admitted(organization_id: UUID) -> Any:
    """Return the admitted calls with labels: of tools, and of webhooks from outside."""
    rows = AuditRow.objects.of(organization_id).filter(
        event_type__in=("call", "connection"), opened__contains='"labels":'
    )
    return rows.exclude(outcome=AuditRow.Outcome.REFUSED)


def _before(approval: Approval) -> Any:
    """Return the calls of the same caller before the question, the latest first."""
    rows = _admitted(approval.organization_id).filter(opened_at__lte=approval.created_at)
    if approval.session_id is not None:
        return rows.filter(session_id=approval.session_id)
    since = approval.created_at - timedelta(seconds=IDLE_S)
    asked = rows.filter(opened_at__gte=since, session_id=None)
    own = asked.filter(actor_kind=approval.requested_by_kind, actor_id=approval.requested_by_id)
    return own | asked.filter(agent_id=approval.agent_id) if approval.agent_id else own


def labels_of(row: AuditRow) -> set[str]:
    """Return the names of the labels that a call carried."""
    return set(json.loads(row.opened).get("details", {}).get("labels", ()))
