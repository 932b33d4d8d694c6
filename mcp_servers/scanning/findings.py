"""The finding of a scan."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Tier = Literal["hard", "soft"]


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """A finding: hard (never callable) or soft (waits for review).

    `path` is a JSON path (`… (key)` for a key), `start` and `end` are character positions in that
    string, `excerpt` makes hidden characters visible.
    """

    tier: Tier
    rule: str
    path: str
    excerpt: str
    start: int = 0
    end: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the stored form."""
        return asdict(self)
