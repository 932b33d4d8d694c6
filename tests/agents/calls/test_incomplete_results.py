"""Incomplete results: which input a server can request, and its limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.calls.incomplete_results import (
    DEFAULT_POLL_MS,
    MAX_INPUT_REQUESTS,
    MAX_KEY_LENGTH,
    MAX_POLL_MS,
    MAX_REQUESTS_SIZE,
    MAX_STATE_LENGTH,
    MIN_POLL_MS,
    InvalidInputRequest,
    get_earlier_call_ids,
    parse_incomplete_result,
    parse_input_requests,
    parse_poll_ms,
    parse_task,
    parse_url_elicitations,
)
from agents.calls.result_text import estimate_size
from mcp_servers.client.server_request_kinds import KINDS_BY_METHOD

REQUEST = {"method": "elicitation/create", "params": {"message": "Which one?"}}
ALLOWED = frozenset({"elicitation"})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
# Results of a hostile server: the fields that matter, with any value.
RESULTS = st.fixed_dictionaries(
    {},
    optional={
        "resultType": st.sampled_from(["complete", "input_required", "task", "url"]) | JSON,
        "requestState": st.text(max_size=8) | JSON,
        "inputRequests": st.dictionaries(
            st.text(max_size=4),
            st.fixed_dictionaries(
                {"method": st.sampled_from([*KINDS_BY_METHOD, "tools/call"])},
                optional={"params": JSON},
            ),
        )
        | JSON,
        "taskId": st.text(max_size=MAX_KEY_LENGTH + 1) | JSON,
        "status": st.sampled_from(["working", "input_required"]) | JSON,
        "pollIntervalMs": JSON,
        "ttlMs": JSON,
    },
)


@given(RESULTS, st.sets(st.sampled_from(sorted(set(KINDS_BY_METHOD.values())))))
def test_only_allowed_input_requests_are_accepted(result, allowed_requests):
    try:
        incomplete = parse_incomplete_result(result, allowed_requests)
    except InvalidInputRequest:
        return
    if incomplete is None:
        assert result.get("resultType", "complete") not in ("task", "url", "input_required")
        return
    assert len(incomplete.requests) <= MAX_INPUT_REQUESTS
    assert all(
        KINDS_BY_METHOD[request["method"]] in allowed_requests
        for request in incomplete.requests.values()
    )
    assert all(isinstance(request["params"], dict) for request in incomplete.requests.values())
    assert incomplete.state is None or len(incomplete.state) <= MAX_STATE_LENGTH
    if incomplete.kind == "task":
        assert 0 < len(incomplete.task_id) <= MAX_KEY_LENGTH
        assert MIN_POLL_MS <= incomplete.poll_ms <= MAX_POLL_MS
        assert incomplete.ttl_ms is None or incomplete.ttl_ms >= 0
    elif incomplete.kind == "input":  # otherwise the call would be resent unchanged forever
        assert incomplete.requests or incomplete.state is not None


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "input_required"},
        {"resultType": "input_required", "requestState": 7},
        {"resultType": "input_required", "requestState": "x" * (MAX_STATE_LENGTH + 1)},
        {"resultType": "input_required", "inputRequests": [REQUEST]},
        {"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}},
        {"resultType": "url", "inputRequests": None},
        {"resultType": "task"},
        {"resultType": "task", "taskId": ""},
        {"resultType": "task", "taskId": "x" * (MAX_KEY_LENGTH + 1)},
        {"resultType": "task", "taskId": "1", "status": "input_required", "inputRequests": 7},
    ],
)
def test_unusable_input_requests_are_refused(result):
    with pytest.raises(InvalidInputRequest):
        parse_incomplete_result(result, ALLOWED)


@pytest.mark.parametrize(
    "requests",
    [
        {str(number): REQUEST for number in range(MAX_INPUT_REQUESTS + 1)},
        {"a": {**REQUEST, "params": {"message": "x" * (MAX_REQUESTS_SIZE + 1)}}},
        {"": REQUEST},
        {"x" * (MAX_KEY_LENGTH + 1): REQUEST},
        {"a": {"method": 7}},
        {"a": "elicitation/create"},
        {"a": {"method": "sampling/createMessage"}},
        {"a": {"method": "tools/call"}},
    ],
)
def test_too_many_or_undeclared_input_requests_are_refused(requests):
    with pytest.raises(InvalidInputRequest):
        parse_input_requests(requests, ALLOWED)


def test_a_task_can_request_input_only_in_its_input_required_state():
    payload = {"taskId": "7", "inputRequests": {"a": REQUEST}, "ttlMs": 60_000.0}
    assert parse_task({**payload, "status": "working"}, ALLOWED).requests == {}
    task = parse_task({**payload, "status": "input_required"}, ALLOWED)
    assert (task.requests, task.task_id, task.ttl_ms) == ({"a": REQUEST}, "7", 60_000)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, DEFAULT_POLL_MS),
        (True, DEFAULT_POLL_MS),
        ("1000", DEFAULT_POLL_MS),
        (-1, DEFAULT_POLL_MS),
        (0, DEFAULT_POLL_MS),
        (1, MIN_POLL_MS),
        (1_500.7, 1_500),
        (10**30, MAX_POLL_MS),
    ],
)
def test_the_poll_interval_of_a_task_is_bounded(value, expected):
    assert parse_poll_ms(value) == expected


@given(JSON | st.fixed_dictionaries({"elicitations": JSON | st.lists(JSON)}))
def test_an_error_that_requires_urls_requests_only_urls(data):
    assert all(
        request["params"]["mode"] == "url" for request in parse_url_elicitations(data).values()
    )


def test_the_urls_of_an_error_are_requested_in_order():
    elicitation = {"mode": "url", "url": "https://example.com/", "message": "Go there."}
    requests = parse_url_elicitations(
        {"elicitations": [elicitation, {"mode": "form"}, "x", elicitation]}
    )
    assert requests == {
        key: {"method": "elicitation/create", "params": elicitation} for key in ("0", "3")
    }


@given(JSON, st.integers(0, 60))
def test_size_estimation_stops_after_its_limit(value, limit):
    complete, estimated = estimate_size(value, 10**9), estimate_size(value, limit)
    assert estimated == complete if complete <= limit else limit < estimated <= complete


@pytest.mark.parametrize(
    ("stored", "expected"), [({"call_ids": ["a"]}, ["a"]), ({"legs": ["a"]}, ["a"]), ({}, [])]
)
def test_earlier_call_ids_are_read_by_their_present_and_their_previous_name(stored, expected):
    assert get_earlier_call_ids(stored) == expected
