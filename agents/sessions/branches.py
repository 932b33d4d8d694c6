"""Branches: a message that says what it `replaces` supersedes that message and all behind it.

Nothing is removed: the steps stay in their rows and the calls in the audit, and the session still
holds the labels that they brought. They are no longer part of the conversation. Pure.
"""

from collections.abc import Iterable, Sequence

from agents.models import Step


def current(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that the conversation consists of, in their order."""
    kept: list[Step] = []
    for step in steps:
        if step.kind == Step.Kind.MESSAGE and (replaced := step.payload.get("replaces")):
            kept = [one for one in kept if one.seq < replaced]
        kept.append(step)
    return kept


def superseded(steps: Sequence[Step]) -> set[int]:
    """Return the numbers of those that a later message took the place of."""
    return {one.seq for one in steps} - {one.seq for one in current(steps)}


def was_replaced(seq: int, replacing: Iterable[tuple[int, int]]) -> bool:
    """Tell whether a step is superseded, by the messages (what each replaces, its own number)."""
    return any(first <= seq < message for first, message in replacing)
