"""Unfinished results: a server asks for input first, or works on a task. Pure, and bounded.

MCP 2026-07-28: multi round-trip requests, and the tasks extension; and the error of 2025-11-25 by
which a server wants a web page visited first (-32042).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agents.governance.results import weight
from mcp_servers.connections.asked import METHODS

Kind = Literal["input", "url", "task"]

URL_NEEDED = -32042
MOST_REQUESTS = 16
LONGEST_KEY = 255
LONGEST_STATE = 64 * 1024
MOST_ASKED = 64 * 1024
ROUNDS = 10
LEAST_POLL_MS = 500
USUAL_POLL_MS = 2_000
MOST_POLL_MS = 3_600_000


class BadRequest(Exception):
    """A server asks for what it may not, or for too much; the text says what."""


@dataclass(frozen=True)
class Unfinished:
    """What a call needs to go on; `state` is None where the server sent none."""

    kind: Kind
    requests: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    state: str | None = None
    task_id: str = ""
    poll_ms: int = 0
    ttl_ms: int | None = None


def unfinished(result: Mapping[str, Any], may_ask: Collection[str]) -> Unfinished | None:
    """Return how a call goes on whose result isn't its last; raises `BadRequest`."""
    kind = result.get("resultType", "complete")
    if kind == "task":
        return task(result, may_ask)
    if kind == "url":  # what an error -32042 was made into; no server can send that
        return Unfinished("url", asked(result.get("inputRequests"), may_ask))
    if kind != "input_required":
        return None
    state = result.get("requestState")
    if state is not None and (not isinstance(state, str) or len(state) > LONGEST_STATE):
        raise BadRequest(f"its state is no text of at most {LONGEST_STATE} characters")
    requests = asked(result.get("inputRequests") or {}, may_ask)
    if state is None and not requests:
        raise BadRequest("it asks for input without saying which")
    return Unfinished("input", requests, state)


def task(result: Mapping[str, Any], may_ask: Collection[str]) -> Unfinished:
    """Return a task as it stands; raises `BadRequest`."""
    number, poll, ttl = (result.get(name) for name in ("taskId", "pollIntervalMs", "ttlMs"))
    if not isinstance(number, str) or not 0 < len(number) <= LONGEST_KEY:
        raise BadRequest("its task has no usable id")
    requests: Mapping[str, dict[str, Any]] = {}
    if result.get("status") == "input_required":
        requests = asked(result.get("inputRequests") or {}, may_ask)
    return Unfinished("task", requests, None, number, poll_ms(poll), _whole(ttl))


def asked(requests: Any, may_ask: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return what is asked, by its keys; raises `BadRequest`."""
    if not isinstance(requests, dict) or len(requests) > MOST_REQUESTS:
        raise BadRequest(f"it asks for more than {MOST_REQUESTS} things at once")
    if weight(requests, MOST_ASKED) > MOST_ASKED:
        raise BadRequest("it asks at too great length")
    found = {}
    for key, one in requests.items():
        method = one.get("method") if isinstance(one, dict) else None
        if not 0 < len(key) <= LONGEST_KEY or not isinstance(method, str):
            raise BadRequest("it asks without a key or a method")
        if METHODS.get(method) not in may_ask:
            raise BadRequest(f"it asks for `{method[:60]}`, which it was not offered")
        params = one.get("params")
        found[key] = {"method": method, "params": params if isinstance(params, dict) else {}}
    return found


def url_needed(data: Any) -> dict[str, dict[str, Any]]:
    """Return the visits that an error -32042 wants, as a modern server would ask for them."""
    wanted = data.get("elicitations") if isinstance(data, dict) else None
    listed = wanted if isinstance(wanted, list) else []
    return {
        str(place): {"method": "elicitation/create", "params": one}
        for place, one in enumerate(listed)
        if isinstance(one, dict) and one.get("mode") == "url"
    }


def poll_ms(value: Any) -> int:
    """Return how long to wait between two looks at a task, in milliseconds."""
    return max(LEAST_POLL_MS, min(_whole(value) or USUAL_POLL_MS, MOST_POLL_MS))


def _whole(value: Any) -> int | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return int(value) if fits else None
