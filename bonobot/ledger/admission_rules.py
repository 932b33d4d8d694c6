"""Rules for flow labels and one-time approvals at admission. No I/O.

A label is one bit, whose meaning the caller defines. A caller holds a label from the admission of
the call that adds it, so it applies to all later calls on every host.

An approval is bound to a digest of arguments, definition and rules, is used once, and expires.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from bonobot.core.records import record
from bonobot.ledger.types import ApprovalReference, FlowLabelEffect, Store

MICROSECONDS_PER_SECOND = 1_000_000
# A cell whose labels don't change is written at most this often to record its last use.
TOUCH_INTERVAL_US = 600 * MICROSECONDS_PER_SECOND


@record()
class CallerFlowLabels:
    """The labels a caller holds, and when they were last used (microseconds since 1970)."""

    labels: int = 0
    last_used_us: int = 0


def compute_held_labels(caller_labels: CallerFlowLabels, flow: FlowLabelEffect, now: int) -> int:
    """Return the labels still held: none after the idle time."""
    if (
        flow.idle_s is not None
        and now - caller_labels.last_used_us > flow.idle_s * MICROSECONDS_PER_SECOND
    ):
        return 0
    return caller_labels.labels


def is_blocked(caller_labels: CallerFlowLabels, flow: FlowLabelEffect, now: int) -> bool:
    """Return whether the caller holds all labels that block this call."""
    return (
        bool(flow.blocking_labels)
        and compute_held_labels(caller_labels, flow, now) & flow.blocking_labels
        == flow.blocking_labels
    )


def add_labels(
    caller_labels: CallerFlowLabels, flow: FlowLabelEffect, now: int, store_labels: int = 0
) -> CallerFlowLabels:
    """Return the labels after the call's admission; the same object if nothing changes."""
    labels = compute_held_labels(caller_labels, flow, now) | flow.added_labels | store_labels
    if labels == caller_labels.labels and (
        not labels or now - caller_labels.last_used_us < TOUCH_INTERVAL_US
    ):
        return caller_labels
    return CallerFlowLabels(labels, now)


def propagate_labels(
    cells: Mapping[str, CallerFlowLabels],
    flows: Sequence[FlowLabelEffect],
    stores: Sequence[Store],
    now: int,
) -> dict[str, CallerFlowLabels]:
    """Return the cells changed by an admitted call.

    Stores that the call writes get the caller's previous labels, and the caller gets the previous
    labels of the stores it reads. Without flows there is no caller that holds labels.
    """
    if not flows and not stores:
        return {}
    store_labels = caller_labels = 0
    for store in stores:
        store_labels |= cells[store.key].labels if store.reads else 0
    for flow in flows:
        caller_labels |= compute_held_labels(cells[flow.key], flow, now)
    new_cells = {}
    for flow in flows:
        new_cells[flow.key] = add_labels(cells[flow.key], flow, now, store_labels)
    for store in stores:
        before = cells[store.key]
        if store.writes and caller_labels & ~before.labels:
            new_cells[store.key] = CallerFlowLabels(before.labels | caller_labels, now)
    return {key: cell for key, cell in new_cells.items() if cell is not cells[key]}


Verdict = Literal["", "approval_unknown", "approval_mismatch", "approval_expired", "approval_spent"]


@dataclass(frozen=True, slots=True)
class StoredApproval:
    """A stored approval; it expires at a time in microseconds since 1970."""

    organization_id: UUID
    digest: str
    expires_us: int
    spent_by: UUID | None = None


def validate_approval(
    stored_approval: StoredApproval | None,
    approval: ApprovalReference,
    organization_id: UUID,
    now: int,
) -> Verdict:
    """Return the error code if the approval can't be used, else an empty string."""
    if stored_approval is None or stored_approval.organization_id != organization_id:
        return "approval_unknown"
    if stored_approval.digest != approval.digest:
        return "approval_mismatch"
    if stored_approval.spent_by is not None:
        return "approval_spent"
    return "approval_expired" if now > stored_approval.expires_us else ""
