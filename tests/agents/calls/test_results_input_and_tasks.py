"""Results that aren't the last: what a server may ask for first, and how much of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.calls.results import (
    DEFAULT_POLL_MS,
    MAX_INPUT_REQUESTS,
    MAX_KEY_LENGTH,
    MAX_POLL_MS,
    MAX_REQUESTS_SIZE,
    MAX_STATE_LENGTH,
    MIN_POLL_MS,
    InvalidInputRequest,
    estimate_size,
    parse_incomplete_result,
    parse_input_requests,
    parse_poll_ms,
    parse_task,
    parse_url_elicitations,
)
from mcp_servers.client.server_requests import KINDS_BY_METHOD

ASK = {"method": "elicitation/create", "params": {"message": "Which one?"}}
MAY_ASK = frozenset({"elicitation"})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
# What a server may come up with: the members that count, with anything in them.
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
        found = parse_incomplete_result(result, allowed_requests)
    except InvalidInputRequest:
        return
    if found is None:
        assert result.get("resultType", "complete") not in ("task", "url", "input_required")
        return
    assert len(found.requests) <= MAX_INPUT_REQUESTS
    assert all(
        KINDS_BY_METHOD[one["method"]] in allowed_requests for one in found.requests.values()
    )
    assert all(isinstance(one["params"], dict) for one in found.requests.values())
    assert found.state is None or len(found.state) <= MAX_STATE_LENGTH
    if found.kind == "task":
        assert 0 < len(found.task_id) <= MAX_KEY_LENGTH
        assert MIN_POLL_MS <= found.poll_ms <= MAX_POLL_MS
        assert found.ttl_ms is None or found.ttl_ms >= 0
    elif found.kind == "input":  # else a call would be sent again and again as it is
        assert found.requests or found.state is not None


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "input_required"},
        {"resultType": "input_required", "requestState": 7},
        {"resultType": "input_required", "requestState": "x" * (MAX_STATE_LENGTH + 1)},
        {"resultType": "input_required", "inputRequests": [ASK]},
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
        parse_incomplete_result(result, MAY_ASK)


@pytest.mark.parametrize(
    "requests",
    [
        {str(number): ASK for number in range(MAX_INPUT_REQUESTS + 1)},
        {"a": {**ASK, "params": {"message": "x" * (MAX_REQUESTS_SIZE + 1)}}},
        {"": ASK},
        {"x" * (MAX_KEY_LENGTH + 1): ASK},
        {"a": {"method": 7}},
        {"a": "elicitation/create"},
        {"a": {"method": "sampling/createMessage"}},
        {"a": {"method": "tools/call"}},
    ],
)
def test_too_many_or_undeclared_input_requests_are_refused(requests):
    with pytest.raises(InvalidInputRequest):
        parse_input_requests(requests, MAY_ASK)


def test_a_task_can_request_input_only_in_its_input_required_state():
    told = {"taskId": "7", "inputRequests": {"a": ASK}, "ttlMs": 60_000.0}
    assert parse_task({**told, "status": "working"}, MAY_ASK).requests == {}
    found = parse_task({**told, "status": "input_required"}, MAY_ASK)
    assert (found.requests, found.task_id, found.ttl_ms) == ({"a": ASK}, "7", 60_000)


@pytest.mark.parametrize(
    ("said", "found"),
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
def test_the_poll_interval_of_a_task_is_bounded(said, found):
    assert parse_poll_ms(said) == found


@given(JSON | st.fixed_dictionaries({"elicitations": JSON | st.lists(JSON)}))
def test_an_error_that_requires_urls_requests_only_urls(data):
    assert all(one["params"]["mode"] == "url" for one in parse_url_elicitations(data).values())


def test_the_urls_of_an_error_are_requested_in_order():
    visit = {"mode": "url", "url": "https://example.com/", "message": "Go there."}
    found = parse_url_elicitations({"elicitations": [visit, {"mode": "form"}, "x", visit]})
    assert found == {key: {"method": "elicitation/create", "params": visit} for key in ("0", "3")}


@given(JSON, st.integers(0, 60))
def test_size_estimation_stops_after_its_limit(value, enough):
    whole, found = estimate_size(value, 10**9), estimate_size(value, enough)
    assert found == whole if whole <= enough else enough < found <= whole
