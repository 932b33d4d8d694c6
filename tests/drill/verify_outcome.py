"""What the drill has to find in the end: nothing lost, nothing done twice, everything settled."""

import json
from collections import Counter
from datetime import timedelta
from uuid import UUID

from django.db import connection
from django.utils import timezone

from agents.models import Session, Step
from bonobot.ledger.audit.abandoned_calls import settle_abandoned_calls
from bonobot.ledger.models import AuditRow, BudgetCell
from tests.drill.load_generator import Load
from tests.ledger_chain import verify_whole_chain


def findings(organization_id: UUID, load: Load) -> tuple[list[str], list[str]]:
    """Return what there is to tell, and what is wrong."""
    # The sweep does it after nine minutes; nobody is left who could.
    connection.close()  # it may be one of before the restart
    abandoned = settle_abandoned_calls(opened_before=timezone.now() - timedelta(seconds=1))
    charged = Counter(load.charged())
    notes, faults = _sessions(load, charged)
    notes += [
        f"{len(load.tally.answered)} calls of clients were answered, {len(load.tally.lost)} lost; "
        f"of those, {sum(key in charged for key in load.tally.lost)} were made",
        f"{load.tally.told} questions were answered by the person",
        f"{abandoned} calls of dead processes were closed at the end",
    ]
    faults += [f"{key} was charged {times} times" for key, times in charged.items() if times > 1]
    faults += [
        f"{key} was answered and never charged" for key in load.tally.answered - set(charged)
    ]
    report = verify_whole_chain(organization_id)
    notes.append("eport.rows audit entries, eport.seq entries")
    faults += [f"audit: {fault}" for fault in report.faults]
    rows = AuditRow.objects.filter(organization_id=organization_id, event_type="call")
    if still := rows.running().count():
        faults.append(f"{still} calls are open in the audit")
    recorded = {_key(text) for text in rows.values_list("opened", flat=True)}
    faults += [f"{key} was charged without a row" for key in set(charged) - recorded]
    for cell in BudgetCell.objects.filter(organization_id=organization_id).exclude(reserved=0):
        faults.append(f"budget {cell.key}: {cell.reserved} are still set aside")
    cells = BudgetCell.objects.filter(organization_id=organization_id)
    notes += [f"budget {cell.key.rpartition(':')[2]}: {cell.spent} spent" for cell in cells]
    return notes, faults


def _sessions(load: Load, charged: Counter[str]) -> tuple[list[str], list[str]]:
    faults, untold = [], 0
    statuses: Counter[str] = Counter()
    for session in Session.objects.all():
        statuses[session.status] += 1
        ends = session.steps.filter(kind=Step.Kind.END).count()
        if session.status != Session.Status.DONE or ends != 1:
            faults.append(f"session {session.pk} is {session.status}, with {ends} ends")
        keys = load.tally.sessions.get(str(session.pk))
        untold += keys is None
        faults += [
            f"{key} of a session was charged {charged[key]} times"
            for key in keys or ()
            if charged[key] != 1
        ]
    known = sum(statuses.values()) - untold
    if known != len(load.tally.sessions):
        faults.append(f"{len(load.tally.sessions) - known} sessions are missing")
    if untold > load.tally.untold:
        faults.append(f"{untold} sessions were begun though nobody was told")
    notes = f"{sum(statuses.values())} sessions: {dict(statuses)}"
    lost = f"of {load.tally.untold} beginnings nobody was told the outcome, {untold} had begun"
    return [notes, lost], faults


def _key(opened: str) -> str:
    found = json.loads(opened).get("details", {}).get("arguments", {})
    return str(found.get("key", "")) if isinstance(found, dict) else ""
