"""Pending waits of threads and open connections end with their request."""

from concurrent.futures import CancelledError, Future

import pytest

from agents.llm.providers.transport import find_request_scope, open_request_scope


def test_pending_waits_of_a_thread_are_canceled_at_the_end():
    future = Future()
    with open_request_scope():
        waits = find_request_scope().track_future(future)
        waits.__enter__()
    assert future.cancelled()


def test_a_thread_starts_no_wait_after_the_request_ended():
    with open_request_scope():
        scope = find_request_scope()
    future = Future()
    with pytest.raises(CancelledError), scope.track_future(future):
        raise AssertionError("it waits")
    assert future.cancelled()


def test_finished_waits_arent_affected():
    future = Future()
    with open_request_scope(), find_request_scope().track_future(future):
        future.set_result("x")
    assert future.result() == "x"


def test_opened_connections_are_closed_at_the_end():
    closed = []
    with open_request_scope():
        scope = find_request_scope()
        scope.add_closer(lambda: closed.append("first"))
        assert closed == []
    scope.add_closer(lambda: closed.append("late"))
    assert closed == ["first", "late"]


def test_outside_a_request_nothing_is_tracked():
    assert find_request_scope() is None
