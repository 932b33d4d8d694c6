"""Permits: one call that a person allowed, spent inside its admission.

Pure. A permit is bound to a digest of all that was allowed (arguments, definition, rules), used
once, and worthless after its time (FEATURES X4).
"""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from bonobot.ledger.entries import Permit

Verdict = Literal["", "approval_unknown", "approval_mismatch", "approval_expired", "approval_spent"]


@dataclass(frozen=True, slots=True)
class Granted:
    """A permit as it is stored; `expires` in microseconds since 1970."""

    organization_id: UUID
    digest: str
    expires: int
    spent_by: UUID | None = None


def judge(granted: Granted | None, permit: Permit, organization_id: UUID, now: int) -> Verdict:
    """Return the code of why the permit can't be spent; empty if it can."""
    if granted is None or granted.organization_id != organization_id:
        return "approval_unknown"
    if granted.digest != permit.digest:
        return "approval_mismatch"
    if granted.spent_by is not None:
        return "approval_spent"
    return "approval_expired" if now > granted.expires else ""
