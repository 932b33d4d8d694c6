"""Sealed requestState and task ids that clients keep.

A state is worth something only to the principal whom it was given to, at the same place, with the
same request, and until it expires (MCP 2026-07-28, multi round-trip requests: a state comes back
from an attacker). Nothing of it lives in a process, so any can take the call up.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from cryptography.fernet import InvalidToken
from django.utils import timezone
from mcp.shared.exceptions import MCPError

from agents.calls.pipeline import CallOutcome
from agents.calls.results import InvalidInputRequest, parse_incomplete_result
from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.client_request import GatewayRequest, build_invalid_params_error
from agents.gateway.errors import build_mcp_error
from agents.gateway.mcp_host import list_supported_requests
from bonobot.core.crypto import key_ring
from bonobot.core.problems import Problem
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json

LONGEST = 256 * 1024


def seal(
    visitor: AuthenticatedClient,
    subject: Any,
    held: Mapping[str, Any],
    *,
    lifetime: timedelta = key_ring.SEALED_STATE_LIFETIME,
) -> str:
    """Return `held` as a text that only `visitor` can give back, about the same `subject`."""
    until = timezone.now() + lifetime
    whole = {"of": _hash_subject(visitor, subject), "until": until.timestamp(), "held": dict(held)}
    return key_ring.seal(json.dumps(whole))


def unseal(visitor: AuthenticatedClient, subject: Any, text: Any) -> dict[str, Any]:
    """Return what a sealed text holds; raises `MCPError` (-32602) for any other text."""
    try:
        if not isinstance(text, str) or len(text) > LONGEST or not _is_canonical(text):
            raise ValueError
        whole = json.loads(key_ring.unseal(text))
    except (ValueError, InvalidToken):
        raise _build_invalid_state_error() from None
    if not isinstance(whole, dict) or whole.get("of") != _hash_subject(visitor, subject):
        raise _build_invalid_state_error()
    if whole["until"] < timezone.now().timestamp():
        raise build_invalid_params_error(
            "`requestState` is too old: send the request anew, without it"
        )
    held: dict[str, Any] = whole["held"]
    return held


def _build_invalid_state_error() -> MCPError:
    """Return the error of a state of somebody else, which answers like one that is no state."""
    return build_invalid_params_error(
        "`requestState` wasn't given out for this request: send it anew, without"
    )


def _is_canonical(text: str) -> bool:
    """Tell whether a text is the one way to write its bytes: decoders ignore bits and characters,
    so that a changed text could otherwise be taken for ours."""
    return urlsafe_b64encode(urlsafe_b64decode(text)) == text.encode()


def _hash_subject(visitor: AuthenticatedClient, subject: Any) -> str:
    return compute_digest(to_canonical_json({"visitor": visitor.key, "subject": subject}))


TASK = "task"
# Members of a task, beside what it has come to.
SHOWN = ("status", "statusMessage", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs")
# How long a task is known whose server doesn't say for how long it is.
LONGEST_MS = 30 * 24 * 3_600_000


def build_task_result(
    inbound: GatewayRequest, server_id: UUID, tool: str, outcome: CallOutcome
) -> dict[str, Any]:
    """Return what a client is told of a call that became a task; or raises `MCPError`."""
    try:
        found = parse_incomplete_result(
            outcome.result, list_supported_requests(inbound.capabilities)
        )
    except InvalidInputRequest as fault:
        raise build_protocol_error(fault) from None
    assert found is not None  # noqa: S101 - it is a task, or it would not be here
    held = {
        "server": str(server_id),
        "task": found.task_id,
        "tool": tool,
        "call": str(outcome.call_id),
    }
    lifetime = timedelta(milliseconds=min(found.ttl_ms or LONGEST_MS, LONGEST_MS))
    sealed = seal(inbound.visitor, TASK, held, lifetime=lifetime)
    return {"resultType": TASK, "taskId": sealed, **build_task_status(outcome.result)}


def build_task_status(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a server's task that say how it is."""
    return {"ttlMs": None} | {name: found[name] for name in SHOWN if name in found}


def build_protocol_error(fault: InvalidInputRequest) -> MCPError:
    """Return the error of a server that asks for what it may not."""
    problem = Problem(f"The server did wrong: {fault}.", code="protocol_error", status=502)
    return build_mcp_error(problem)
