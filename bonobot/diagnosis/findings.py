"""Findings: what was looked at, how it stands, and what to do about it."""

from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: State
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding for programs."""
        return asdict(self)
