"""Clean a result's text before a model reads it: what hides goes, the rest stays byte for byte."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mcp_servers.scanning.characters import Hidden, hidden

# Removing one run may bring two others together, so the rest is looked at again.
_PASSES = 4


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A text without what hid in it, and how many characters went by which rule."""

    text: str
    removed: dict[str, int]

    @property
    def total(self) -> int:
        """Return how many characters were removed."""
        return sum(self.removed.values())


def clean_result(text: str) -> Cleaned:
    """Return `text` without hidden characters and terminal sequences."""
    removed: Counter[str] = Counter()
    for _ in range(_PASSES):
        text, gone = _without(text, hidden(text))
        if not gone:
            return Cleaned(text, dict(removed))
        removed += gone
    # Still not at rest after several passes: nobody writes so; nothing invisible is excused.
    text, gone = _without(text, hidden(text, excused=False))
    return Cleaned(text, dict(removed + gone))


def _without(text: str, runs: Iterable[Hidden]) -> tuple[str, Counter[str]]:
    removed: Counter[str] = Counter()
    kept: list[str] = []
    at = 0
    for run in runs:
        kept.append(text[at : run.start])
        removed[run.rule] += run.end - run.start
        at = run.end
    return "".join((*kept, text[at:])) if removed else text, removed
