from dataclasses import replace
from uuid import UUID

import pytest

from bonobot.ledger.admission_rules import StoredApproval, validate_approval
from bonobot.ledger.types import ApprovalReference

ORGANIZATION, OTHER = UUID(int=1), UUID(int=2)
NOW = 1_000_000
PERMIT = ApprovalReference(UUID(int=3), "d" * 64)
GRANTED = StoredApproval(ORGANIZATION, PERMIT.digest, NOW)


@pytest.mark.parametrize(
    ("granted", "code"),
    [
        (GRANTED, ""),
        (None, "approval_unknown"),
        (replace(GRANTED, organization_id=OTHER), "approval_unknown"),
        (replace(GRANTED, digest="e" * 64), "approval_mismatch"),
        (replace(GRANTED, expires_us=NOW - 1), "approval_expired"),
        (replace(GRANTED, spent_by=UUID(int=4)), "approval_spent"),
    ],
)
def test_an_approval_is_valid_once_for_its_own_call(
    granted: StoredApproval | None, code: str
) -> None:
    assert validate_approval(granted, PERMIT, ORGANIZATION, NOW) == code
