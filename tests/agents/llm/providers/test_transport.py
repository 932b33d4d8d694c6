"""What threads wait for ends with their request."""

from concurrent.futures import CancelledError, Future

import pytest

from agents.llm.providers.transport import cancel_on_exit, find_request_scope


def test_what_a_thread_waits_for_is_cancelled_at_the_end():
    future = Future()
    with cancel_on_exit():
        waits = find_request_scope().track_future(future)
        waits.__enter__()
    assert future.cancelled()


def test_a_thread_that_was_between_two_waits_begins_no_other():
    with cancel_on_exit():
        mine = find_request_scope()
    future = Future()
    with pytest.raises(CancelledError), mine.track_future(future):
        raise AssertionError("it waits")
    assert future.cancelled()


def test_what_came_back_in_time_is_left_alone():
    future = Future()
    with cancel_on_exit(), find_request_scope().track_future(future):
        future.set_result("x")
    assert future.result() == "x"


def test_what_was_opened_is_closed_at_the_end_and_at_once_after_it():
    closed = []
    with cancel_on_exit():
        mine = find_request_scope()
        mine.add_closer(lambda: closed.append("first"))
        assert closed == []
    mine.add_closer(lambda: closed.append("late"))
    assert closed == ["first", "late"]


def test_outside_of_a_request_there_is_nothing_to_note():
    assert find_request_scope() is None
