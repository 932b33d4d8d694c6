"""GCRA: never more than the limit plus the burst, never less than the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.rate_limiter import (
    MICROSECONDS_PER_MINUTE,
    admit_request,
    calculate_burst,
    compute_interval,
)

LIMITS = st.tuples(st.integers(1, 10_000_000), st.integers(1, 100))
# (microseconds since the last request, share of the burst that this one costs)
REQUESTS = st.lists(st.tuples(st.integers(0, 20_000_000), st.integers(0, 100)), max_size=60)


@given(LIMITS, REQUESTS, st.integers(0, 10**16))
def test_no_window_admits_more_than_its_length_allows_plus_the_burst(
    limit: tuple[int, int], requests: list[tuple[int, int]], now: int
) -> None:
    every, burst = limit
    tat, admitted = 0, []
    for pause, share in requests:
        now += pause
        cost = burst * share // 100
        verdict = admit_request(tat, now, every, burst, cost)
        if verdict.allowed:
            tat = verdict.tat
            admitted.append((now, cost))
    for start, (started, _) in enumerate(admitted):
        for end in range(start, len(admitted)):
            total = sum(cost for _, cost in admitted[start : end + 1])
            assert total <= (admitted[end][0] - started) / every + burst


@given(LIMITS, REQUESTS, st.integers(0, 10**16))
def test_a_denial_returns_the_exact_wait_and_changes_nothing(
    limit: tuple[int, int], requests: list[tuple[int, int]], now: int
) -> None:
    every, burst = limit
    tat = 0
    for pause, share in requests:
        now += pause
        cost = burst * share // 100
        verdict = admit_request(tat, now, every, burst, cost)
        if verdict.allowed:
            assert verdict.retry_after == 0
        else:
            assert verdict.tat == tat
            assert admit_request(tat, now + verdict.retry_after, every, burst, cost).allowed
            assert not admit_request(tat, now + verdict.retry_after - 1, every, burst, cost).allowed
        tat = verdict.tat


@given(LIMITS, st.integers(0, 10**16))
def test_an_idle_limit_admits_its_burst_and_then_one_per_interval(
    limit: tuple[int, int], now: int
) -> None:
    every, burst = limit
    tat = 0
    for _ in range(burst):
        allowed, tat, _ = admit_request(tat, now, every, burst)
        assert allowed
    assert not admit_request(tat, now, every, burst).allowed
    assert admit_request(tat, now + every, every, burst).allowed


@given(LIMITS, st.integers(0, 10**16), st.integers(0, 10**16))
def test_a_free_call_is_admitted_without_using_the_limit(
    limit: tuple[int, int], tat: int, now: int
) -> None:
    every, burst = limit
    tat = min(tat, now + every * burst)
    verdict = admit_request(tat, now, every, burst, 0)
    assert verdict.allowed
    assert verdict.tat == max(tat, now)


def test_a_clock_that_goes_back_denies_only_what_is_still_used() -> None:
    _, tat, _ = admit_request(0, 1_000, 100, 1)
    assert admit_request(tat, 500, 100, 1) == (False, tat, 600)


@given(st.integers(1, 10_000_000))
def test_the_interval_never_admits_more_than_the_limit(per_minute: int) -> None:
    assert compute_interval(per_minute) * per_minute >= MICROSECONDS_PER_MINUTE
    assert (compute_interval(per_minute) - 1) * per_minute < MICROSECONDS_PER_MINUTE


@pytest.mark.parametrize(
    ("every", "burst", "cost"), [(0, 1, 1), (1, 0, 0), (1, 1, -1), (1, 5, 6), (-1, 1, 1)]
)
def test_invalid_limits_are_refused(every: int, burst: int, cost: int) -> None:
    with pytest.raises(ValueError, match="can't pass"):
        admit_request(0, 0, every, burst, cost)


def test_a_limit_of_zero_per_minute_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        compute_interval(0)


def test_the_burst_is_a_third_of_a_minute_and_never_above_the_rate():
    assert [calculate_burst(per_minute) for per_minute in (1, 5, 60, 600)] == [1, 5, 20, 200]
