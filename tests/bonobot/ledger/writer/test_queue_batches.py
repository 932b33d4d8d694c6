"""How many callers the writer waits for."""

from itertools import repeat

from hypothesis import given
from hypothesis import strategies as st

from bonobot.ledger.writer.queue import MAX_EXPECTED, BatchSizeEstimate


def learned(came: "list[int] | repeat[int]") -> BatchSizeEstimate:
    crowd = BatchSizeEstimate()
    for number in came:
        crowd.update(number)
    return crowd


def test_who_calls_alone_is_never_made_to_wait() -> None:
    assert learned(repeat(1, 50)).expected == 1


def test_one_more_is_expected_where_all_came() -> None:
    assert learned([2]).expected == 3
    assert learned([2, 3, 7]).expected == 8


def test_one_less_is_expected_where_fewer_came() -> None:
    assert learned([8, 2]).expected == 8
    assert learned([8, 2, 2]).expected == 7


def test_a_crowd_that_went_away_is_forgotten() -> None:
    assert learned([MAX_EXPECTED, *repeat(1, MAX_EXPECTED)]).expected == 1


@given(st.lists(st.integers(1, 300)))
def test_what_is_expected_has_bounds(came: list[int]) -> None:
    assert 1 <= learned(came).expected <= MAX_EXPECTED
