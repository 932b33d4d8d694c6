"""The money and time of a call: estimated before it and calculated after it."""

from hypothesis import given
from hypothesis import strategies as st

from agents.calls.admit import estimate_amounts
from agents.calls.definitions import FREE, CallPrice
from agents.calls.settle_call import calculate_amounts, calculate_cost

prices = st.builds(CallPrice, st.integers(0, 10**9), st.integers(0, 10**9))
times = st.integers(0, 3_600_000)


def test_a_call_costs_its_price_and_its_seconds_rounded_up():
    assert calculate_cost(CallPrice(per_call=5_000, per_second=400), 2_500) == 6_000
    assert calculate_cost(CallPrice(per_second=1), 1) == 1


def test_a_free_server_reserves_no_money_budget():
    assert estimate_amounts(FREE, 60_000) == {"calls": 1, "milliseconds": 60_000}
    assert "microusd" in estimate_amounts(CallPrice(per_call=1), 60_000)


@given(prices, times, times, st.booleans(), st.booleans())
def test_no_call_costs_more_than_was_reserved(price, deadline, duration, sent, known):
    reserved = {"microusd": 0} | estimate_amounts(price, deadline)
    actual = calculate_amounts(
        price, deadline_ms=deadline, duration_ms=duration, was_sent=sent, is_outcome_known=known
    )
    assert all(0 <= actual[unit] <= reserved[unit] for unit in reserved)


@given(prices, times, times)
def test_an_unsent_call_costs_nothing_and_an_unknown_one_its_reservation(price, deadline, duration):
    unsent = calculate_amounts(
        price, deadline_ms=deadline, duration_ms=duration, was_sent=False, is_outcome_known=True
    )
    assert set(unsent.values()) == {0}
    unknown = calculate_amounts(
        price, deadline_ms=deadline, duration_ms=duration, was_sent=True, is_outcome_known=False
    )
    assert unknown == {"microusd": 0} | estimate_amounts(price, deadline)
