"""Flows: which labels a caller holds, and whether one more call may come on top of them.

Pure. A label is one bit; what the bits mean is the business of whoever asks for admission. Labels
are held from the admission of the call that brings them, so a call that is admitted later, on
whichever host, is judged with them (FEATURES X9).
"""

from dataclasses import dataclass

from bonobot.ledger.entries import Flow

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
