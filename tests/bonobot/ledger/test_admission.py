from dataclasses import replace
from uuid import UUID

import pytest

from bonobot.ledger.admission import StoredApproval, validate_approval
from bonobot.ledger.types import ApprovalReference

ORGANIZATION, OTHER = UUID(int=1), UUID(int=2)
NOW = 1_000_000
REFERENCE = ApprovalReference(UUID(int=3), "d" * 64)
APPROVAL = StoredApproval(ORGANIZATION, REFERENCE.digest, NOW)


@pytest.mark.parametrize(
    ("approval", "code"),
    [
        (APPROVAL, ""),
        (None, "approval_unknown"),
        (replace(APPROVAL, organization_id=OTHER), "approval_unknown"),
        (replace(APPROVAL, digest="e" * 64), "approval_mismatch"),
        (replace(APPROVAL, expires_us=NOW - 1), "approval_expired"),
        (replace(APPROVAL, spent_by=UUID(int=4)), "approval_spent"),
    ],
)
def test_an_approval_is_valid_once_for_its_own_call(
    approval: StoredApproval | None, code: str
) -> None:
    assert validate_approval(approval, REFERENCE, ORGANIZATION, NOW) == code
