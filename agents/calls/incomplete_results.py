"""Parse incomplete results. No I/O.

Covers multi round-trip requests and the tasks extension of MCP 2026-07-28, and error -32042 of
MCP 2025-11-25 (URL elicitation required).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agents.calls.result_text import estimate_size
from mcp_servers.client.server_request_kinds import KINDS_BY_METHOD

Kind = Literal["input", "url", "task"]

URL_NEEDED = -32042
MAX_INPUT_REQUESTS = 16
MAX_KEY_LENGTH = 255
MAX_STATE_LENGTH = 64 * 1024
MAX_REQUESTS_SIZE = 64 * 1024
MAX_ROUNDS = 10
MIN_POLL_MS = 500
DEFAULT_POLL_MS = 2_000
MAX_POLL_MS = 3_600_000


class InvalidInputRequest(Exception):
    """A server asked for something it may not, or for too much; the message says what."""


@dataclass(frozen=True)
class IncompleteResult:
    """What a call needs to continue; `state` is the server's request state, if any."""

    kind: Kind
    requests: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    state: str | None = None
    task_id: str = ""
    poll_ms: int = 0
    ttl_ms: int | None = None


def get_earlier_call_ids(stored: Mapping[str, Any]) -> list[str]:
    """Return the ids of a call's earlier round trips from a stored state or request.

    Those of the previous release have the name `legs`; the next release reads only `call_ids`.
    """
    return [*stored.get("call_ids", stored.get("legs", ()))]


def parse_incomplete_result(
    result: Mapping[str, Any], allowed_requests: Collection[str]
) -> IncompleteResult | None:
    """Return what an incomplete result asks for, or None; raises `InvalidInputRequest`."""
    kind = result.get("resultType", "complete")
    if kind == "task":
        return parse_task(result, allowed_requests)
    if kind == "url":  # created from error -32042; servers can't send it
        return IncompleteResult(
            "url", parse_input_requests(result.get("inputRequests"), allowed_requests)
        )
    if kind != "input_required":
        return None
    state = result.get("requestState")
    if state is not None and (not isinstance(state, str) or len(state) > MAX_STATE_LENGTH):
        raise InvalidInputRequest(
            f"its state must be a string of at most {MAX_STATE_LENGTH} characters"
        )
    requests = parse_input_requests(result.get("inputRequests") or {}, allowed_requests)
    if state is None and not requests:
        raise InvalidInputRequest("it requested input without specifying it")
    return IncompleteResult("input", requests, state)


def parse_task(result: Mapping[str, Any], allowed_requests: Collection[str]) -> IncompleteResult:
    """Return the state of a task; raises `InvalidInputRequest`."""
    task_id, poll_interval, ttl = (
        result.get(name) for name in ("taskId", "pollIntervalMs", "ttlMs")
    )
    if not isinstance(task_id, str) or not 0 < len(task_id) <= MAX_KEY_LENGTH:
        raise InvalidInputRequest("its task has no valid ID")
    requests: Mapping[str, dict[str, Any]] = {}
    if result.get("status") == "input_required":
        requests = parse_input_requests(result.get("inputRequests") or {}, allowed_requests)
    return IncompleteResult(
        "task", requests, None, task_id, parse_poll_ms(poll_interval), _parse_whole_number(ttl)
    )


def parse_input_requests(
    requests: Any, allowed_requests: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return the input requests by key; raises `InvalidInputRequest`."""
    if not isinstance(requests, dict) or len(requests) > MAX_INPUT_REQUESTS:
        raise InvalidInputRequest(f"it sent more than {MAX_INPUT_REQUESTS} requests at once")
    if estimate_size(requests, MAX_REQUESTS_SIZE) > MAX_REQUESTS_SIZE:
        raise InvalidInputRequest("its requests are too large")
    parsed = {}
    for key, input_request in requests.items():
        method = input_request.get("method") if isinstance(input_request, dict) else None
        if not 0 < len(key) <= MAX_KEY_LENGTH or not isinstance(method, str):
            raise InvalidInputRequest("it sent a request without a key or a method")
        if KINDS_BY_METHOD.get(method) not in allowed_requests:
            raise InvalidInputRequest(
                f"it requested `{method[:60]}`, which the client doesn't support"
            )
        params = input_request.get("params")
        parsed[key] = {"method": method, "params": params if isinstance(params, dict) else {}}
    return parsed


def parse_url_elicitations(data: Any) -> dict[str, dict[str, Any]]:
    """Return the URL elicitations of an error -32042 as input requests by key."""
    elicitations = data.get("elicitations") if isinstance(data, dict) else None
    items = elicitations if isinstance(elicitations, list) else []
    return {
        str(index): {"method": "elicitation/create", "params": elicitation}
        for index, elicitation in enumerate(items)
        if isinstance(elicitation, dict) and elicitation.get("mode") == "url"
    }


def parse_poll_ms(value: Any) -> int:
    """Return the poll interval of a task in milliseconds."""
    return max(MIN_POLL_MS, min(_parse_whole_number(value) or DEFAULT_POLL_MS, MAX_POLL_MS))


def _parse_whole_number(value: Any) -> int | None:
    is_valid = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return int(value) if is_valid else None
