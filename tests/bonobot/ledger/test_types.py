from uuid import UUID

import pytest

from bonobot.ledger.types import MAX_AMOUNT, Actor, BudgetReservation, RateCharge, Settlement


def test_an_actor_has_a_kind_id_and_label() -> None:
    assert str(Actor("cli", "root", "")) == "cli:root"
    assert str(Actor("user", "1", "Alice")) == "user:Alice"


def test_an_unknown_kind_of_actor_is_refused() -> None:
    with pytest.raises(ValueError, match="robot"):
        Actor("robot", "1", "Alice")  # type: ignore[arg-type]


@pytest.mark.parametrize("amount", [-1, MAX_AMOUNT + 1])
def test_amounts_that_are_too_large_to_add_up_are_refused(amount: int) -> None:
    with pytest.raises(ValueError, match="amount"):
        BudgetReservation("budget:x", None, amount)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        BudgetReservation("budget:x", -1, 0)


@pytest.mark.parametrize(("per_minute", "burst", "cost"), [(0, 1, 1), (1, 0, 0), (60, 2, 3)])
def test_a_charge_above_its_limit_is_refused(per_minute: int, burst: int, cost: int) -> None:
    with pytest.raises(ValueError, match="burst"):
        RateCharge("rate:x", per_minute, burst, cost)


def test_an_unknown_outcome_is_refused() -> None:
    with pytest.raises(ValueError, match="fine"):
        Settlement(
            call_id=UUID(int=1),
            organization_id=UUID(int=1),
            outcome="fine",  # type: ignore[arg-type]
            duration_ms=1,
        )
