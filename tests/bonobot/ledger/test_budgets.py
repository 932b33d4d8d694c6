from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.ledger.budgets import (
    BudgetBalance,
    build_budget_key,
    convert_amount,
    describe_remedy,
    format_period,
    reserve_amount,
    settle_reservation,
)

amounts = st.integers(0, 10_000)


@pytest.mark.parametrize(
    ("unit", "amount", "text"),
    [
        ("microusd", 1_000_000, "1.00"),
        ("microusd", 37, "0.000037"),
        ("microusd", 1_234_567_890, "1,234.56789"),
        ("milliseconds", 1_500, "1.50"),
        ("tokens", 12_345, "12,345"),
        ("", 3, "3"),
    ],
)
def test_amounts_are_formatted_in_the_units_that_people_read(
    unit: str, amount: int, text: str
) -> None:
    assert f"{convert_amount(unit, amount):,}" == text


@given(st.integers(0, 20_000), st.lists(st.tuples(amounts, amounts, st.booleans()), max_size=40))
def test_nothing_is_admitted_beyond_the_limit(
    limit: int, calls: list[tuple[int, int, bool]]
) -> None:
    cell, running = BudgetBalance(), []
    for amount, actual, settles in calls:
        admitted = reserve_amount(cell, limit=limit, amount=amount)
        if admitted is None:
            assert cell.spent + cell.reserved + amount > limit
        else:
            assert admitted.spent + admitted.reserved <= limit
            cell = admitted
            running.append(amount)
        if settles and running:
            reserved = running.pop(0)
            cell = settle_reservation(cell, reserved=reserved, actual=min(actual, reserved))
        assert cell.reserved == sum(running)
        assert cell.spent + cell.reserved <= limit


@given(st.lists(amounts))
def test_without_a_limit_usage_is_still_counted(calls: list[int]) -> None:
    cell = BudgetBalance()
    for amount in calls:
        admitted = reserve_amount(cell, limit=None, amount=amount)
        assert admitted is not None
        cell = settle_reservation(admitted, reserved=amount, actual=amount)
    assert cell == BudgetBalance(spent=sum(calls))


def test_a_cost_above_the_reservation_is_counted_in_full() -> None:
    cell = reserve_amount(BudgetBalance(), limit=10, amount=10)
    assert cell is not None
    assert settle_reservation(cell, reserved=10, actual=25) == BudgetBalance(spent=25, reserved=0)
    assert reserve_amount(BudgetBalance(spent=25), limit=10, amount=0) is None


def test_settling_a_deleted_counter_doesnt_go_below_zero() -> None:
    assert settle_reservation(BudgetBalance(), reserved=7, actual=3) == BudgetBalance(
        spent=3, reserved=0
    )


@pytest.mark.parametrize(
    ("period", "expected"), [("day", "2026-12-01"), ("month", "2026-12"), ("total", "all")]
)
def test_a_budget_period_begins_at_midnight_utc(period: str, expected: str) -> None:
    tokyo = timezone(timedelta(hours=9))
    assert format_period(period, datetime(2026, 12, 1, 9, 0, tzinfo=tokyo)) == expected  # type: ignore[arg-type]


def test_a_key_has_the_owner_unit_and_period_of_the_budget() -> None:
    key = build_budget_key(
        UUID(int=1),
        scope="agent",
        scope_id=UUID(int=2),
        unit="tokens",
        period="day",
        at=datetime(2026, 11, 21, tzinfo=UTC),
    )
    assert key == f"budget:{UUID(int=1)}:agent:{UUID(int=2)}:tokens:day:2026-11-21"
    assert len(key) < 255


@pytest.mark.parametrize(
    ("period", "resets_on"), [("day", "2027-01-01"), ("month", "2027-01-01"), ("total", "")]
)
def test_the_remedy_of_a_budget_says_when_it_resets(period: str, resets_on: str) -> None:
    at = datetime(2026, 12, 31, 23, 0, tzinfo=UTC)
    key = build_budget_key(
        UUID(int=1),
        scope="organization",
        scope_id="",
        unit="calls",
        period=period,
        at=at,  # type: ignore[arg-type]
    )
    remedy = describe_remedy(key)
    assert remedy.endswith("sk someone with permission to raise the budget.")
    assert remedy.startswith(f"It resets on {resets_on} at 00:00 UTC." if resets_on else "Ask")
