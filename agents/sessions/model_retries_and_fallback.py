"""Choose the next model endpoint after a failure. Pure.

An endpoint is retried up to its limit if that may help, with exponential backoff and never before
the provider's `retry_after`. Then the next endpoint in the chain is used, if the failure allows
fallback. The endpoint that answered is used until the next message.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agents.llm.interface import ModelEndpointConfig

FIRST_WAIT_S = 1.0
MAX_BACKOFF_S = 30.0
# If a provider's `retry_after` is longer, don't retry.
MAX_WAIT_S = 120.0
# Maximum jitter of waits, so that sessions that failed together don't retry together.
JITTER = 0.25
# Failures not caused by the request itself: another endpoint may succeed.
UNAVAILABLE_CODES = frozenset(
    {
        *("model_unreachable", "model_timeout", "model_rate_limited", "model_no_answer"),
        *("model_no_credit", "provider_error", "provider_missing"),
    }
)


@dataclass(frozen=True)
class TurnFailure:
    """A failed model turn, as stored in its step."""

    endpoint_id: str
    code: str
    retryable: bool
    retry_after: float | None = None


@dataclass(frozen=True)
class NextRequest:
    """The next endpoint and the wait before its request; `attempt` counts from 1."""

    endpoint: ModelEndpointConfig
    wait_s: float = 0.0
    attempt: int = 1
    is_fallback: bool = False


def find_next_request(
    endpoints: Sequence[ModelEndpointConfig],
    failures: Sequence[TurnFailure] = (),
    *,
    answered_by: str = "",
    jitter_share: float = 0.0,
) -> NextRequest | None:
    """Return the next request after the failures since the last answer; None if none is left.

    `endpoints` are in fallback order, `answered_by` is the id of the one that answered last (for
    this message), and `jitter_share` (0 to 1) is the session's share of the jitter.
    """
    ids = [endpoint.id for endpoint in endpoints]
    index = ids.index(answered_by) if answered_by in ids else 0
    next_request = NextRequest(endpoints[index])
    for failure in failures:
        if failure.endpoint_id != endpoints[index].id:
            continue  # the chain was changed meanwhile
        delay_s = _compute_retry_delay(
            endpoints[index], failure, next_request.attempt, jitter_share
        )
        if delay_s is not None:
            next_request = NextRequest(endpoints[index], delay_s, next_request.attempt + 1)
        elif index + 1 < len(endpoints) and _should_fall_back(endpoints[index], failure):
            index += 1
            next_request = NextRequest(endpoints[index], is_fallback=True)
        else:
            return None
    return next_request


def _compute_retry_delay(
    endpoint: ModelEndpointConfig, failure: TurnFailure, attempt: int, jitter_share: float
) -> float | None:
    """Return the seconds to wait before a retry; None for no retry."""
    if not failure.retryable or attempt > endpoint.retries:
        return None
    backoff = min(FIRST_WAIT_S * 2 ** (attempt - 1), MAX_BACKOFF_S)
    retry_after_s = failure.retry_after or 0.0
    if retry_after_s > MAX_WAIT_S:
        return None
    return max(backoff, retry_after_s) * (1 + JITTER * jitter_share)


def _should_fall_back(endpoint: ModelEndpointConfig, failure: TurnFailure) -> bool:
    if endpoint.fallback_on == "any":
        return True
    return failure.retryable or failure.code in UNAVAILABLE_CODES
