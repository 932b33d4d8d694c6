"""How many callers the writer waits for."""

from itertools import repeat

from hypothesis import given
from hypothesis import strategies as st

from bonobot.ledger.writer.queue import MAX_EXPECTED, BatchSizeEstimate


def build_estimate(sizes: "list[int] | repeat[int]") -> BatchSizeEstimate:
    estimate = BatchSizeEstimate()
    for number in sizes:
        estimate.update(number)
    return estimate


def test_a_single_caller_never_waits() -> None:
    assert build_estimate(repeat(1, 50)).expected == 1


def test_the_expected_batch_size_grows_when_more_callers_came() -> None:
    assert build_estimate([2]).expected == 2
    assert build_estimate([2, 3, 7]).expected == 7


def test_the_expected_batch_size_stays_while_all_callers_come() -> None:
    assert build_estimate([8, *repeat(8, 20)]).expected == 8


def test_the_expected_batch_size_shrinks_by_one_when_fewer_callers_came() -> None:
    assert build_estimate([8, 2]).expected == 7
    assert build_estimate([8, 2, 2]).expected == 6


def test_the_expected_batch_size_is_reset_after_a_pause() -> None:
    assert build_estimate([MAX_EXPECTED, *repeat(1, MAX_EXPECTED)]).expected == 1


@given(st.lists(st.integers(1, 300)))
def test_the_expected_batch_size_is_bounded(sizes: list[int]) -> None:
    assert 1 <= build_estimate(sizes).expected <= MAX_EXPECTED
