"""Flow labels and one-time approvals at admission; pure.

Pure. A label is one bit; what the bits mean is the business of whoever asks for admission. Labels
are held from the admission of the call that brings them, so a call that is admitted later, on
whichever host, is judged with them.

Pure. A permit is bound to a digest of all that was allowed (arguments, definition, rules), used
once, and worthless after its time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from bonobot.ledger.types import ApprovalReference, FlowLabelEffect, Store

SECOND = 1_000_000
# A cell that only shows that its caller is still there is written this often, not at each call.
TOUCHED_EVERY = 600 * SECOND


@dataclass(frozen=True, slots=True)
class CallerFlowLabels:
    """The labels that a caller holds, and when it last used them (microseconds since 1970)."""

    labels: int = 0
    touched: int = 0


def compute_held_labels(held: CallerFlowLabels, flow: FlowLabelEffect, now: int) -> int:
    """Return the labels that still count: none after the flow's idle time."""
    if flow.idle_s is not None and now - held.touched > flow.idle_s * SECOND:
        return 0
    return held.labels


def is_barred(held: CallerFlowLabels, flow: FlowLabelEffect, now: int) -> bool:
    """Tell whether all the labels are held on top of which this call must not come."""
    return bool(flow.barred) and compute_held_labels(held, flow, now) & flow.barred == flow.barred


def add(held: CallerFlowLabels, flow: FlowLabelEffect, now: int) -> CallerFlowLabels:
    """Return what is held once the call is admitted; the same object where nothing changes."""
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
    """Return the cells as an admitted call leaves them; those that don't change are left out.

    What the caller held before goes into each store that the call writes; what the stores that it
    reads held before comes to the caller. Nobody who writes for a person alone holds anything.
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
    """A permit as it is stored; `expires` in microseconds since 1970."""

    organization_id: UUID
    digest: str
    expires: int
    spent_by: UUID | None = None


def validate_approval(
    granted: StoredApproval | None, permit: ApprovalReference, organization_id: UUID, now: int
) -> Verdict:
    """Return the code of why the permit can't be spent; empty if it can."""
    if granted is None or granted.organization_id != organization_id:
        return "approval_unknown"
    if granted.digest != permit.digest:
        return "approval_mismatch"
    if granted.spent_by is not None:
        return "approval_spent"
    return "approval_expired" if now > granted.expires else ""
