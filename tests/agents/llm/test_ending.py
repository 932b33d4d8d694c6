"""What threads wait for ends with their request."""

from concurrent.futures import CancelledError, Future

import pytest

from agents.llm.providers.ending import ending_with_us, under_way


def test_what_a_thread_waits_for_is_cancelled_at_the_end():
    future = Future()
    with ending_with_us():
        waits = under_way().waiting(future)
        waits.__enter__()
    assert future.cancelled()


def test_a_thread_that_was_between_two_waits_begins_no_other():
    with ending_with_us():
        mine = under_way()
    future = Future()
    with pytest.raises(CancelledError), mine.waiting(future):
        raise AssertionError("it waits")
    assert future.cancelled()


def test_what_came_back_in_time_is_left_alone():
    future = Future()
    with ending_with_us(), under_way().waiting(future):
        future.set_result("x")
    assert future.result() == "x"


def test_what_was_opened_is_closed_at_the_end_and_at_once_after_it():
    closed = []
    with ending_with_us():
        mine = under_way()
        mine.at_end(lambda: closed.append("first"))
        assert closed == []
    mine.at_end(lambda: closed.append("late"))
    assert closed == ["first", "late"]


def test_outside_of_a_request_there_is_nothing_to_note():
    assert under_way() is None
