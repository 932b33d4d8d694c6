"""The next model request after a failure: retries, delays, fallbacks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.llm.interface import ModelEndpointConfig
from agents.sessions.model_retries_and_fallback import (
    JITTER,
    MAX_WAIT_S,
    NextRequest,
    TurnFailure,
    find_next_request,
)

A = ModelEndpointConfig("openai", id="a", retries=2)
B = ModelEndpointConfig("anthropic", id="b", retries=1)
CHAIN = (A, B)
BUSY = TurnFailure("a", "model_rate_limited", True)
REFUSED = TurnFailure("a", "model_auth", False)


def test_without_a_failure_the_first_endpoint_is_used_immediately() -> None:
    assert find_next_request(CHAIN) == NextRequest(A)


def test_the_same_endpoint_is_retried_with_increasing_delays() -> None:
    assert find_next_request(CHAIN, [BUSY]) == NextRequest(A, 1.0, 2)
    assert find_next_request(CHAIN, [BUSY] * 2) == NextRequest(A, 2.0, 3)


def test_after_its_retries_the_fallback_is_used() -> None:
    assert find_next_request(CHAIN, [BUSY] * 3) == NextRequest(B, is_fallback=True)
    also_busy = TurnFailure("b", "model_timeout", True)
    assert find_next_request(CHAIN, [*[BUSY] * 3, also_busy]) == NextRequest(B, 1.0, 2)
    assert find_next_request(CHAIN, [*[BUSY] * 3, also_busy, also_busy]) is None


def test_retry_after_is_respected_up_to_a_limit() -> None:
    short = TurnFailure("a", "model_rate_limited", True, retry_after=17)
    assert find_next_request(CHAIN, [short]) == NextRequest(A, 17.0, 2)
    too_long = TurnFailure("a", "model_rate_limited", True, retry_after=MAX_WAIT_S + 1)
    assert find_next_request(CHAIN, [too_long]) == NextRequest(B, is_fallback=True)
    assert find_next_request([A], [too_long]) is None


def test_refused_credentials_use_the_fallback_only_if_configured() -> None:
    assert find_next_request(CHAIN, [REFUSED]) is None
    for_any_failure = ModelEndpointConfig("openai", id="a", retries=2, fallback_on="any")
    assert find_next_request((for_any_failure, B), [REFUSED]) == NextRequest(B, is_fallback=True)


def test_the_endpoint_that_answered_is_kept() -> None:
    assert find_next_request(CHAIN, answered_by="b") == NextRequest(B)
    assert find_next_request(CHAIN, answered_by="gone") == NextRequest(A)


FAILURES = st.builds(
    TurnFailure,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["model_rate_limited", "model_auth", "model_no_answer", "model_error"]),
    st.booleans(),
    st.none() | st.floats(0, 10_000),
)


@given(st.lists(FAILURES, max_size=30), st.floats(0, 1))
def test_the_plan_always_ends_within_its_limits(failures: list[TurnFailure], share: float) -> None:
    next_request = find_next_request(CHAIN, failures, jitter_share=share)
    if next_request is not None:
        assert next_request.wait_s <= MAX_WAIT_S * (1 + JITTER)
        assert next_request.attempt <= next_request.endpoint.retries + 1
    of_chain = [item for item in failures if item.endpoint_id in ("a", "b")]
    additional = [TurnFailure(item, "model_error", True) for item in "aaabb"]
    assert find_next_request(CHAIN, of_chain + additional) is None or of_chain == []


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_an_endpoint_is_requested_at_most_as_often_as_configured(retries: int) -> None:
    endpoint = ModelEndpointConfig("openai", id="a", retries=retries)
    for count in range(retries):
        assert find_next_request([endpoint], [BUSY] * (count + 1)) is not None
    assert find_next_request([endpoint], [BUSY] * (retries + 1)) is None
