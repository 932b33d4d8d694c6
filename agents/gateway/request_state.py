"""Encrypted `requestState` and task ids that clients keep.

A state is only valid for the same principal, target and request, and until it expires; clients may
send forged states (MCP 2026-07-28, multi round-trip requests). No process keeps any of it, so any
process can continue the call.
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

from agents.calls.incomplete_results import InvalidInputRequest, parse_incomplete_result
from agents.calls.pipeline import CallOutcome
from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.client_request import (
    GatewayRequest,
    build_invalid_params_error,
    list_supported_requests,
)
from agents.gateway.errors import build_mcp_error
from bonobot.core.crypto import key_ring
from bonobot.core.problems import Problem
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json

MAX_STATE_LENGTH = 256 * 1024
TASK = "task"
# The fields of a task's status.
TASK_STATUS_FIELDS = (
    "status",
    "statusMessage",
    "createdAt",
    "lastUpdatedAt",
    "ttlMs",
    "pollIntervalMs",
)
# Maximum lifetime of a task id, and the default if the server gives no TTL.
MAX_TASK_TTL_MS = 30 * 24 * 3_600_000


def encrypt_state(
    caller: AuthenticatedClient,
    subject: Any,
    payload: Mapping[str, Any],
    *,
    lifetime: timedelta = key_ring.SEALED_STATE_LIFETIME,
) -> str:
    """Return `payload` encrypted, valid only for the same `caller` and `subject`."""
    expires_at = timezone.now() + lifetime
    envelope = {
        "of": _hash_subject(caller, subject),
        "until": expires_at.timestamp(),
        "held": dict(payload),
    }
    return key_ring.seal(json.dumps(envelope))


def decrypt_state(caller: AuthenticatedClient, subject: Any, text: Any) -> dict[str, Any]:
    """Return the payload of an encrypted state; raises `MCPError` (-32602) for any other text."""
    try:
        if not isinstance(text, str) or len(text) > MAX_STATE_LENGTH or not _is_canonical(text):
            raise ValueError
        envelope = json.loads(key_ring.unseal(text))
    except (ValueError, RecursionError, InvalidToken):
        raise _build_invalid_state_error() from None
    if not isinstance(envelope, dict) or envelope.get("of") != _hash_subject(caller, subject):
        raise _build_invalid_state_error()
    if envelope["until"] < timezone.now().timestamp():
        raise build_invalid_params_error(
            "`requestState` has expired: send the request again without it"
        )
    payload: dict[str, Any] = envelope["held"]
    return payload


def _build_invalid_state_error() -> MCPError:
    """Return the error for an invalid state; another caller's state gives the same error."""
    return build_invalid_params_error(
        "`requestState` is invalid for this request: send the request again without it"
    )


def _is_canonical(text: str) -> bool:
    """Tell whether a text is the canonical Base64 of its bytes: decoders ignore some bits and
    characters, so a changed text could be accepted otherwise."""
    return urlsafe_b64encode(urlsafe_b64decode(text)) == text.encode()


def _hash_subject(caller: AuthenticatedClient, subject: Any) -> str:
    return compute_digest(to_canonical_json({"visitor": caller.key, "subject": subject}))


def build_task_result(
    inbound: GatewayRequest, server_id: UUID, tool: str, outcome: CallOutcome
) -> dict[str, Any]:
    """Return the result of a call that became a task; raises `MCPError`."""
    try:
        task = parse_incomplete_result(
            outcome.result, list_supported_requests(inbound.capabilities)
        )
    except InvalidInputRequest as error:
        raise build_protocol_error(error) from None
    assert task is not None  # noqa: S101 - it is a task, or it would not be here
    payload = {
        "server": str(server_id),
        "task": task.task_id,
        "tool": tool,
        "call": str(outcome.call_id),
    }
    lifetime = timedelta(milliseconds=min(task.ttl_ms or MAX_TASK_TTL_MS, MAX_TASK_TTL_MS))
    task_id = encrypt_state(inbound.caller, TASK, payload, lifetime=lifetime)
    return {"resultType": TASK, "taskId": task_id, **build_task_status(outcome.result)}


def build_task_status(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status fields of a server's task."""
    return {"ttlMs": None} | {name: task[name] for name in TASK_STATUS_FIELDS if name in task}


def build_protocol_error(error: InvalidInputRequest) -> MCPError:
    """Return the error for an invalid input request of a server."""
    problem = Problem(
        f"The server violated the protocol: {error}.", code="protocol_error", status=502
    )
    return build_mcp_error(problem)
