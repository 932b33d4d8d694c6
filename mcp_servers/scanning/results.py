"""Clean a result before a model reads it: what hides or runs goes, the rest stays as it is."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mcp_servers.scanning.active import without_active
from mcp_servers.scanning.characters import (
    Hidden,
    hidden,
    suspects,
    suspicious,
    without_suspects,
)
from mcp_servers.scanning.injected import flagged

# Removing one run may bring two others together, so the rest is looked at again.
_PASSES = 2
# More suspects than this, and more than one character in six: no language is written so.
_MOST_SUSPECTS = 4_096


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A text without what hid in it, and how many characters went by which rule."""

    text: str
    removed: dict[str, int]

    @property
    def total(self) -> int:
        """Return how many characters were removed."""
        return sum(self.removed.values())


@dataclass(frozen=True, slots=True)
class Inspected:
    """A text as our own models may read it.

    `sanitized` counts by rule the characters that were removed and the places that were made inert,
    `flagged` the places that read like orders to the model.
    """

    text: str
    sanitized: dict[str, int]
    flagged: dict[str, int]


def clean_result(text: str) -> Cleaned:
    """Return `text` without hidden characters and terminal sequences.

    Takes up to 0.3 s for 256 KiB made for the purpose: keep more than 16 KiB off the loop.
    """
    if not suspicious(text):
        return Cleaned(text, {})
    removed: Counter[str] = Counter()
    flooded = suspects(text) > max(_MOST_SUSPECTS, len(text) // 6)
    for _ in range(0 if flooded else _PASSES):
        text, gone = _without(text, hidden(text))
        if not gone:
            return Cleaned(text, dict(removed))
        removed += gone
    # Still not at rest, or far too many: nothing invisible is excused.
    cleaned = without_suspects(text)
    removed["flood"] = len(text) - len(cleaned)
    return Cleaned(cleaned, dict(+removed))


def inspect_result(text: str) -> Inspected:
    """Return `text` as our own models may read it: nothing hides in it, nothing runs or loads.

    What does is removed with a note in its place, or written so that nothing obeys it (`active`).
    Takes up to 1 s for 256 KiB made for the purpose: keep more than 16 KiB off the loop.
    """
    cleaned = clean_result(text)
    inert, found = without_active(cleaned.text)
    return Inspected(inert, {**cleaned.removed, **found}, flagged(cleaned.text))


def _without(text: str, runs: Iterable[Hidden]) -> tuple[str, Counter[str]]:
    removed: Counter[str] = Counter()
    kept: list[str] = []
    at = 0
    for run in runs:
        kept.append(text[at : run.start])
        removed[run.rule] += run.end - run.start
        at = run.end
    return "".join((*kept, text[at:])) if removed else text, removed
