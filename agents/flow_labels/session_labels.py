"""Pass flow labels between a session and the token that writes to it or reads it.

A token that writes to a session passes its labels on, and a token that reads a session gets the
session's labels. People who read on a page hold no labels. Cells are only updated if labels are
missing, so at most once a day for the same labels.

Admissions lock the audit log first and then the cells. So label a session that may be running
outside of `record_change`, which writes the audit log at its end.
"""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from agents.flow_labels.call_effects import build_flow_keys
from agents.flow_labels.services import list_current_labels
from agents.models import Session
from bonobot.accounts.principals import Principal
from bonobot.core.db.transactions import lock_rows
from bonobot.ledger.admission import CallerFlowLabels, compute_held_labels
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.models import FlowCell
from bonobot.ledger.types import Actor, FlowLabelEffect
from mcp_servers.flow_labels import FlowLabel, build_flow_key, decode_labels, encode_labels
from mcp_servers.flow_labels.token_labels import IDLE_S


def label_session(principal: Principal, session: Session) -> None:
    """Add the labels of the token that writes to a session (one query for a token)."""
    if principal.kind != "token":
        return
    current_bits = encode_labels(
        list_current_labels(principal, session_id=None, agent_id=session.agent_id)
    )
    add_session_labels(principal.actor, session, current_bits)


def label_imported_session(principal: Principal, session: Session) -> None:
    """Add the labels of content of unknown origin: untrusted, and possibly private."""
    labels = encode_labels((FlowLabel.PRIVATE_DATA, FlowLabel.UNTRUSTED_CONTENT))
    add_session_labels(principal.actor, session, labels)


def label_reader(principal: Principal, *sessions: Session) -> None:
    """Add the sessions' labels to the token that reads them (one query for a token)."""
    if principal.kind != "token":
        return
    by_key = {build_session_key(session): session for session in sessions}
    for cell in FlowCell.objects.filter(pk__in=by_key).exclude(labels=0):
        session = by_key[cell.key]
        keys = build_flow_keys(principal, agent_id=session.agent_id)
        source = LabelOrigin("session", str(session.pk), session.title)
        add_reader_labels(principal, cell.labels, keys, source)


def label_session_reader(principal: Principal, session_id: UUID) -> None:
    """Add a session's labels to the token that reads it (2 queries for a token)."""
    if principal.kind == "token":
        label_reader(principal, *Session.objects.filter(pk=session_id))


@dataclass(frozen=True, slots=True)
class LabelOrigin:
    """The row that labels come from or are added to, for the audit log."""

    resource_type: str
    id: str
    name: str


def add_session_labels(actor: Actor, session: Session, labels: int) -> None:
    """Add labels to a session's cell."""
    if labels:
        source = LabelOrigin("session", str(session.pk), session.title)
        change = _LabelChange(
            session.organization_id, actor, action="session_labeled", source=source
        )
        _add_labels(change, labels, [build_session_key(session)])


def add_reader_labels(
    principal: Principal, labels: int, keys: Collection[str], source: LabelOrigin
) -> None:
    """Add the labels of what a token reads to its cells."""
    action = "session_labels_read" if source.resource_type == "session" else "text_labels_read"
    change = _LabelChange(
        principal.organization_id, principal.actor, action=action, source=source, idle_s=IDLE_S
    )
    _add_labels(change, labels, keys)


@dataclass(frozen=True, slots=True)
class _LabelChange:
    organization_id: UUID
    actor: Actor
    action: str
    source: LabelOrigin
    idle_s: int | None = None


def _add_labels(change: _LabelChange, labels: int, keys: Collection[str]) -> None:
    """Add labels to the cells of these keys and record it, unless all have them."""
    if not _is_missing_labels(labels, keys, change.idle_s):
        return
    with transaction.atomic():
        # Record first, then update the cells: admissions lock in this order.
        record_finished_change(
            organization_id=change.organization_id,
            actor=change.actor,
            action=change.action,
            resource_type=change.source.resource_type,
            resource_id=change.source.id,
            resource_name=change.source.name,
            details={"labels": list(decode_labels(labels))},
            governed=False,
        )
        add_cell_labels(change.organization_id, keys, labels, idle_s=change.idle_s)


def add_cell_labels(
    organization_id: UUID, keys: Collection[str], labels: int, *, idle_s: int | None = None
) -> None:
    """Add labels to the cells of these keys, in the transaction of the change (4 queries).

    After `idle_s` without use, a cell has lost its earlier labels.
    """
    cells = [FlowCell(key=key, organization_id=organization_id) for key in sorted(keys)]
    FlowCell.objects.bulk_create(cells, ignore_conflicts=True)
    rows = FlowCell.objects.filter(pk__in=[*keys])
    lock_rows(rows)  # or labels that others add at the same time would be lost
    for cell in rows.order_by("pk"):
        now, flow = _get_now_us(), FlowLabelEffect(cell.key, idle_s=idle_s)
        current_labels = compute_held_labels(CallerFlowLabels(cell.labels, cell.touched), flow, now)
        FlowCell.objects.filter(pk=cell.key).update(labels=current_labels | labels, touched=now)


def _is_missing_labels(labels: int, keys: Iterable[str], idle_s: int | None) -> bool:
    """Return whether any of these cells misses a label (one query)."""
    cells = FlowCell.objects.in_bulk(list(keys))
    for key in keys:
        cell, flow = cells.get(key), FlowLabelEffect(key, idle_s=idle_s)
        if cell is None or labels & ~compute_held_labels(
            CallerFlowLabels(cell.labels, cell.touched), flow, _get_now_us()
        ):
            return True
    return False


def build_session_key(session: Session) -> str:
    """Return the ledger key of the labels of a session and its child sessions."""
    return build_flow_key(session.organization_id, "session", session.root_id or session.pk)


def _get_now_us() -> int:
    return time.time_ns() // 1_000
