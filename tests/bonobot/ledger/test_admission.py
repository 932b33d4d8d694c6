from dataclasses import replace
from uuid import UUID

import pytest

from bonobot.ledger.admission import BudgetExhausted, StoredApproval, validate_approval
from bonobot.ledger.budgets import BudgetBalance
from bonobot.ledger.types import ApprovalReference, BudgetReservation

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


@pytest.mark.parametrize(
    ("spent", "text"),
    [
        (1_500_000, "The agent's budget of dollars per day is used up: 1.50 of 1.00."),
        (
            900_000,
            "The agent's budget of dollars per day isn't enough: up to 0.20 may be needed, 0.90 of "
            "1.00 are used, and 0.00 are reserved for running calls.",
        ),
    ],
)
def test_a_refusal_says_that_a_budget_is_used_up_or_what_is_left_of_it(spent, text):
    key = "budget:1:agent:2:microusd:day:2026-12-01"
    refusal = BudgetExhausted(BudgetReservation(key, 1_000_000, 200_000), BudgetBalance(spent))
    assert (str(refusal), refusal.rule) == (text, key)
