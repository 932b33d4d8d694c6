"""Pass flow labels between a session and the token that writes to it or reads it.

A token that writes to a session passes its labels on, and a token that reads a session gets the
session's labels. People who read on a page hold no labels. Cells are only updated if labels are
missing, so at most once a day for the same labels.
"""

import time
from collections.abc import Collection, Iterable
from uuid import UUID

from django.db import transaction

from agents.flow_labels.rules import IDLE_S, build_flow_key, build_flow_keys
from agents.flow_labels.services import list_current_labels
from agents.models import Session
from bonobot.accounts.principals import Principal
from bonobot.ledger.admission_rules import CallerFlowLabels, compute_held_labels
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.models import FlowCell
from bonobot.ledger.types import FlowLabelEffect
from mcp_servers.flow_labels import FlowLabel, decode_labels, encode_labels


def label_session(principal: Principal, session: Session) -> None:
    """Add the labels of the token that writes to a session (one query for a token)."""
    if principal.kind != "token":
        return
    current_bits = encode_labels(
        list_current_labels(principal, session_id=None, agent_id=session.agent_id)
    )
    if current_bits:
        _add_labels(principal, current_bits, [_build_session_key(session)], session, None)


def label_imported_session(principal: Principal, session: Session) -> None:
    """Add the labels of content of unknown origin: untrusted, and possibly private."""
    labels = encode_labels((FlowLabel.PRIVATE_DATA, FlowLabel.UNTRUSTED_CONTENT))
    _add_labels(principal, labels, [_build_session_key(session)], session, None)


def label_reader(principal: Principal, *sessions: Session) -> None:
    """Add the sessions' labels to the token that reads them (one query for a token)."""
    if principal.kind != "token":
        return
    by_key = {_build_session_key(session): session for session in sessions}
    for cell in FlowCell.objects.filter(pk__in=by_key).exclude(labels=0):
        session = by_key[cell.key]
        keys = build_flow_keys(principal, agent_id=session.agent_id)
        _add_labels(principal, cell.labels, keys, session, IDLE_S)


def label_session_reader(principal: Principal, session_id: UUID) -> None:
    """Add a session's labels to the token that reads it (2 queries for a token)."""
    if principal.kind == "token":
        label_reader(principal, *Session.objects.filter(pk=session_id))


def _add_labels(
    principal: Principal, labels: int, keys: Collection[str], session: Session, idle_s: int | None
) -> None:
    """Add labels to the cells of these keys and record it, unless all have them."""
    if not _is_missing_labels(labels, keys, idle_s):
        return
    with transaction.atomic():
        # Record first, then update the cells: admissions lock in this order.
        record_finished_change(
            organization_id=principal.organization_id,
            actor=principal.actor,
            action="session_labels_read" if idle_s else "session_labeled",
            resource_type="session",
            resource_id=str(session.pk),
            resource_name=session.title,
            details={"labels": list(decode_labels(labels))},
            governed=False,
        )
        for key in sorted(keys):
            cell, _ = FlowCell.objects.get_or_create(
                pk=key, defaults={"organization_id": principal.organization_id}
            )
            now = _get_now_us()
            current_bits = compute_held_labels(
                CallerFlowLabels(cell.labels, cell.touched),
                FlowLabelEffect(key, idle_s=idle_s),
                now,
            )
            FlowCell.objects.filter(pk=key).update(labels=current_bits | labels, touched=now)


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


def _build_session_key(session: Session) -> str:
    return build_flow_key(session.organization_id, "session", session.root_id or session.pk)


def _get_now_us() -> int:
    return time.time_ns() // 1_000
