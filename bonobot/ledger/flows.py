"""Flows: which labels a caller holds, and whether one more call may come on top of them.

Pure. A label is one bit; what the bits mean is the business of whoever asks for admission. Labels
are held from the admission of the call that brings them, so a call that is admitted later, on
whichever host, is judged with them (FEATURES X9).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bonobot.ledger.entries import Flow, Store

SECOND = 1_000_000
# A cell that only shows that its caller is still there is written this often, not at each call.
TOUCHED_EVERY = 600 * SECOND


@dataclass(frozen=True, slots=True)
class Held:
    """The labels that a caller holds, and when it last used them (microseconds since 1970)."""

    labels: int = 0
    touched: int = 0


def held_at(held: Held, flow: Flow, now: int) -> int:
    """Return the labels that still count: none after the flow's idle time."""
    if flow.idle_s is not None and now - held.touched > flow.idle_s * SECOND:
        return 0
    return held.labels


def barred(held: Held, flow: Flow, now: int) -> bool:
    """Tell whether all the labels are held on top of which this call must not come."""
    return bool(flow.barred) and held_at(held, flow, now) & flow.barred == flow.barred


def add(held: Held, flow: Flow, now: int) -> Held:
    """Return what is held once the call is admitted; the same object where nothing changes."""
    before = held_at(held, flow, now)
    labels = before | flow.adds
    if labels == held.labels and (not labels or now - held.touched < TOUCHED_EVERY):
        return held
    return Held(labels, now)


def pass_labels(
    cells: Mapping[str, Held], flows: Iterable[Flow], stores: Iterable[Store], now: int
) -> dict[str, Held]:
    """Return the cells as an admitted call leaves them; those that don't change are left out.

    What the caller held before goes into each store that the call writes; what the stores that it
    reads held before comes to the caller. Nobody who writes for a person alone holds anything.
    """
    flows, stores = tuple(flows), tuple(stores)
    brought = held = 0
    for store in stores:
        brought |= cells[store.key].labels if store.reads else 0
    for flow in flows:
        held |= held_at(cells[flow.key], flow, now)
    after = {
        flow.key: add(cells[flow.key], replace(flow, adds=flow.adds | brought), now)
        for flow in flows
    }
    for store in stores:
        before = cells[store.key]
        if store.writes and held & ~before.labels:
            after[store.key] = Held(before.labels | held, now)
    return {key: cell for key, cell in after.items() if cell is not cells[key]}
