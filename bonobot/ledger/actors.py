"""Actors: who did it, copied into the ledger so that it outlives their account."""

from dataclasses import dataclass
from typing import Literal, get_args

ActorKind = Literal["user", "token", "cli", "session", "system", "gateway"]
KINDS: frozenset[str] = frozenset(get_args(ActorKind))


@dataclass(frozen=True, slots=True)
class Actor:
    """Someone or something that acts: its kind, its id there, and its name at that time."""

    kind: ActorKind
    id: str
    label: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"`kind` must be one of {sorted(KINDS)}, not {self.kind!r}.")

    def __str__(self) -> str:
        return f"{self.kind}:{self.label or self.id}"
