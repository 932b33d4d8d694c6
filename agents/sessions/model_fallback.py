"""Which endpoint next after a failure. Pure.

An endpoint is asked again as often as it allows, where that may help, later each time and never
before the provider wants it. Then the endpoint behind it is asked, if the failure is one that falls
over. Whoever has answered goes on answering until the next message.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agents.llm.interface import ModelEndpointConfig

FIRST_WAIT_S = 1.0
LONGEST_BACKOFF_S = 30.0
# A provider that wants us to wait longer is not waited for.
LONGEST_WAIT_S = 120.0
# Waits differ by up to this share, so that sessions that failed together don't return together.
SPREAD = 0.25
# Failures that say nothing of the request itself: somebody else may do better with it.
UNAVAILABLE = frozenset(
    {
        *("model_unreachable", "model_timeout", "model_rate_limited", "model_no_answer"),
        "provider_missing",
    }
)


@dataclass(frozen=True)
class TurnFailure:
    """A model turn that failed, as its step tells it."""

    endpoint_id: str
    code: str
    retryable: bool
    retry_after: float | None = None


@dataclass(frozen=True)
class NextRequest:
    """The endpoint to ask, after a wait; `attempt` counts its requests from 1."""

    endpoint: ModelEndpointConfig
    wait_s: float = 0.0
    attempt: int = 1
    fell_over: bool = False


def find_next_request(
    line: Sequence[ModelEndpointConfig],
    failures: Sequence[TurnFailure] = (),
    *,
    answered_by: str = "",
    share: float = 0.0,
) -> NextRequest | None:
    """Return what follows the failures since the last answer; None where nothing is left.

    `line` are the endpoints in their order, `answered_by` is the id of the one that answered last
    (for this message), `share` of the spread is the session's own (0 to 1).
    """
    ids = [one.id for one in line]
    at = ids.index(answered_by) if answered_by in ids else 0
    found = NextRequest(line[at])
    for failure in failures:
        if failure.endpoint_id != line[at].id:
            continue  # of a line that was changed meanwhile
        again = _compute_retry_delay(line[at], failure, found.attempt, share)
        if again is not None:
            found = NextRequest(line[at], again, found.attempt + 1)
        elif at + 1 < len(line) and _should_fall_back(line[at], failure):
            at += 1
            found = NextRequest(line[at], fell_over=True)
        else:
            return None
    return found


def _compute_retry_delay(
    endpoint: ModelEndpointConfig, failure: TurnFailure, attempt: int, share: float
) -> float | None:
    """Return how long to wait before the same endpoint is asked again; None if it isn't."""
    if not failure.retryable or attempt > endpoint.retries:
        return None
    backoff = min(FIRST_WAIT_S * 2 ** (attempt - 1), LONGEST_BACKOFF_S)
    wanted = failure.retry_after or 0.0
    if wanted > LONGEST_WAIT_S:
        return None
    return max(backoff, wanted) * (1 + SPREAD * share)


def _should_fall_back(endpoint: ModelEndpointConfig, failure: TurnFailure) -> bool:
    if endpoint.falls_over == "any":
        return True
    return failure.retryable or failure.code in UNAVAILABLE
