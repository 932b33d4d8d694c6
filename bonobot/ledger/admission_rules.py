"""Rules for flow labels and one-time approvals at admission. No I/O.

A label is one bit, whose meaning the caller defines. A caller holds a label from the admission of
the call that adds it, so it applies to all later calls on every host.

An approval is bound to a digest of arguments, definition and rules, is used once, and expires.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from bonobot.ledger.types import ApprovalReference, FlowLabelEffect, Store

SECOND = 1_000_000
# A cell whose labels don't change is written at most this often to record its last use.
TOUCHED_EVERY = 600 * SECOND


@dataclass(frozen=True, slots=True)
class CallerFlowLabels:
    """The labels a caller holds, and when they were last used (microseconds since 1970)."""

    labels: int = 0
    touched: int = 0


def compute_held_labels(held: CallerFlowLabels, flow: FlowLabelEffect, now: int) -> int:
    """Return the labels still held: none after the idle time."""
    if flow.idle_s is not None and now - held.touched > flow.idle_s * SECOND:
        return 0
    return held.labels


def is_barred(held: CallerFlowLabels, flow: FlowLabelEffect, now: int) -> bool:
    """Return whether the caller holds all labels that block this call."""
    return bool(flow.barred) and compute_held_labels(held, flow, now) & flow.barred == flow.barred


def add(held: CallerFlowLabels, flow: FlowLabelEffect, now: int) -> CallerFlowLabels:
    """Return the labels after the call's admission; the same object if nothing changes."""
    before = compute_held_labels(held, flow, now)
    labels = before | flow.adds
    if labels == held.labels and (not labels or now - held.touched < TOUCHED_EVERY):
        return held
    return CallerFlowLabels(labels, now)


def pass_labels(
    cells: Mapping[str, CallerFlowLabels],
    flows: Iterable[FlowLabelEffect],
    stores: Iterable[Store],
    now: int,
) -> dict[str, CallerFlowLabels]:
    """Return the cells changed by an admitted call.

    Stores that the call writes get the caller's previous labels, and the caller gets the previous
    labels of the stores it reads. Without flows there is no caller that holds labels.
    """
    flows, stores = tuple(flows), tuple(stores)
    brought = held = 0
    for store in stores:
        brought |= cells[store.key].labels if store.reads else 0
    for flow in flows:
        held |= compute_held_labels(cells[flow.key], flow, now)
    after = {}
    for flow in flows:
        adding = replace(flow, adds=flow.adds | brought) if brought else flow
        after[flow.key] = add(cells[flow.key], adding, now)
    for store in stores:
        before = cells[store.key]
        if store.writes and held & ~before.labels:
            after[store.key] = CallerFlowLabels(before.labels | held, now)
    return {key: cell for key, cell in after.items() if cell is not cells[key]}


Verdict = Literal["", "approval_unknown", "approval_mismatch", "approval_expired", "approval_spent"]


@dataclass(frozen=True, slots=True)
class StoredApproval:
    """A stored approval; it expires at a time in microseconds since 1970."""

    organization_id: UUID
    digest: str
    expires: int
    spent_by: UUID | None = None


def validate_approval(
    granted: StoredApproval | None, permit: ApprovalReference, organization_id: UUID, now: int
) -> Verdict:
    """Return the error code if the approval can't be used, else an empty string."""
    if granted is None or granted.organization_id != organization_id:
        return "approval_unknown"
    if granted.digest != permit.digest:
        return "approval_mismatch"
    if granted.spent_by is not None:
        return "approval_spent"
    return "approval_expired" if now > granted.expires else ""
