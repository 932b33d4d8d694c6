"""Finding: one thing in a stranger's text that a person should know or that may not pass."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Tier = Literal["hard", "soft"]


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """Hard: never callable. Soft: waits for a person.

    `path` is a JSON path (a key's own text: `… (key)`), `start` and `end` count characters in the
    string there, `excerpt` shows what hides.
    """

    tier: Tier
    rule: str
    path: str
    excerpt: str
    start: int = 0
    end: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return what is stored and shown."""
        return asdict(self)
