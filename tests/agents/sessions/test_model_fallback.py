"""Who is asked after a model failed, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.llm.interface import ModelEndpointConfig
from agents.sessions.model_fallback import (
    JITTER,
    MAX_WAIT_S,
    NextRequest,
    TurnFailure,
    find_next_request,
)

A = ModelEndpointConfig("openai", id="a", retries=2)
B = ModelEndpointConfig("anthropic", id="b", retries=1)
LINE = (A, B)
BUSY = TurnFailure("a", "model_rate_limited", True)
REFUSED = TurnFailure("a", "model_auth", False)


def test_without_a_failure_the_first_endpoint_is_used_immediately() -> None:
    assert find_next_request(LINE) == NextRequest(A)


def test_the_same_endpoint_is_retried_with_increasing_delays() -> None:
    assert find_next_request(LINE, [BUSY]) == NextRequest(A, 1.0, 2)
    assert find_next_request(LINE, [BUSY] * 2) == NextRequest(A, 2.0, 3)


def test_after_its_retries_the_fallback_is_used() -> None:
    assert find_next_request(LINE, [BUSY] * 3) == NextRequest(B, is_fallback=True)
    busy_too = TurnFailure("b", "model_timeout", True)
    assert find_next_request(LINE, [*[BUSY] * 3, busy_too]) == NextRequest(B, 1.0, 2)
    assert find_next_request(LINE, [*[BUSY] * 3, busy_too, busy_too]) is None


def test_retry_after_is_respected_up_to_a_limit() -> None:
    patient = TurnFailure("a", "model_rate_limited", True, retry_after=17)
    assert find_next_request(LINE, [patient]) == NextRequest(A, 17.0, 2)
    endless = TurnFailure("a", "model_rate_limited", True, retry_after=MAX_WAIT_S + 1)
    assert find_next_request(LINE, [endless]) == NextRequest(B, is_fallback=True)
    assert find_next_request([A], [endless]) is None


def test_refused_credentials_use_the_fallback_only_if_configured() -> None:
    assert find_next_request(LINE, [REFUSED]) is None
    every = ModelEndpointConfig("openai", id="a", retries=2, fallback_on="any")
    assert find_next_request((every, B), [REFUSED]) == NextRequest(B, is_fallback=True)


def test_the_endpoint_that_answered_is_kept() -> None:
    assert find_next_request(LINE, answered_by="b") == NextRequest(B)
    assert find_next_request(LINE, answered_by="gone") == NextRequest(A)


FAILURES = st.builds(
    TurnFailure,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["model_rate_limited", "model_auth", "model_no_answer", "model_error"]),
    st.booleans(),
    st.none() | st.floats(0, 10_000),
)


@given(st.lists(FAILURES, max_size=30), st.floats(0, 1))
def test_the_plan_always_ends_within_its_limits(failures: list[TurnFailure], share: float) -> None:
    found = find_next_request(LINE, failures, jitter_share=share)
    if found is not None:
        assert found.wait_s <= MAX_WAIT_S * (1 + JITTER)
        assert found.attempt <= found.endpoint.retries + 1
    own = [one for one in failures if one.endpoint_id in ("a", "b")]
    more = [TurnFailure(one, "model_error", True) for one in "aaabb"]
    assert find_next_request(LINE, own + more) is None or own == []


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_an_endpoint_is_requested_at_most_as_often_as_configured(retries: int) -> None:
    alone = ModelEndpointConfig("openai", id="a", retries=retries)
    for count in range(retries):
        assert find_next_request([alone], [BUSY] * (count + 1)) is not None
    assert find_next_request([alone], [BUSY] * (retries + 1)) is None
