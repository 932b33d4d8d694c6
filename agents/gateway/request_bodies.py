"""Read the bodies of POST requests, and check their protocol version.

The SDK chooses a request's era by its `MCP-Protocol-Version` header alone, so a request whose
header and body name different versions is rejected before that.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from mcp_servers.client.jsonrpc import VERSION_KEY
from mcp_servers.client.protocol_versions import HANDSHAKE_VERSIONS, HEADER_MISMATCH

VERSION_HEADER = b"mcp-protocol-version"
# The SDK's limit, with which it rejects larger bodies.
MAX_BODY_SIZE = 4 * 1024 * 1024

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


async def read_body(receive: Receive) -> tuple[bytes | None, Receive]:
    """Return a request's body, and a `receive` that returns it again and then what follows.

    The body is None if it is too large or incomplete.
    """
    message = await receive()
    replay = replay_messages([message], receive)
    if message["type"] == "http.request" and not message.get("more_body", False):
        body = message.get("body", b"")
        return (body if len(body) <= MAX_BODY_SIZE else None), replay
    return await _read_parts(replay)


async def _read_parts(receive: Receive) -> tuple[bytes | None, Receive]:
    messages, size, is_complete = [], 0, False
    while not is_complete and size <= MAX_BODY_SIZE:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            break
        size += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
    body = b"".join([message.get("body", b"") for message in messages])
    has_body = is_complete and size <= MAX_BODY_SIZE
    return (body if has_body else None), replay_messages(messages, receive)


def replay_messages(messages: Sequence[dict[str, Any]], receive: Receive) -> Receive:
    """Return a `receive` that returns `messages` first."""
    remaining = iter(messages)

    async def receive_next() -> dict[str, Any]:
        message = next(remaining, None)
        return message if message is not None else await receive()

    return receive_next


def build_body_message(body: bytes) -> dict[str, Any]:
    """Return the ASGI message of a whole body."""
    return {"type": "http.request", "body": body, "more_body": False}


def parse_object(body: bytes) -> dict[str, Any] | None:
    """Return a body's JSON object; None for anything else."""
    try:
        value = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError:  # perhaps only for this parser
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def find_version_conflict(
    headers: Sequence[tuple[bytes, bytes]], body: bytes
) -> dict[str, Any] | None:
    """Return the JSON-RPC error for a version header that contradicts another, or the body."""
    versions = [
        value.decode("latin-1").strip() for name, value in headers if name == VERSION_HEADER
    ]
    if len(set(versions)) > 1:
        return build_version_error(None, f"the header is repeated: {', '.join(versions)}")
    version = versions[0] if versions else ""
    is_handshake = not version or version in HANDSHAKE_VERSIONS
    # Only these requests are parsed here; the SDK compares those with the modern header.
    if is_handshake and b"protocolVersion" in body and b"_meta" in body:
        message = parse_object(body)
        declared = _find_declared_version(message)
        if declared is not None and declared != version:
            header = f"is {version}" if version else "is missing"
            return build_version_error(
                message, f"the header {header}, but the request declares {declared[:40]}"
            )
    elif not is_handshake and b'"initialize"' in body:
        message = parse_object(body) or {}
        if message.get("method") == "initialize" and _find_declared_version(message) is None:
            return build_version_error(
                message, f"the header is {version[:40]}, but `initialize` is of an earlier version"
            )
    return None


def build_version_error(message: Mapping[str, Any] | None, reason: str) -> dict[str, Any]:
    """Return the JSON-RPC error -32020 for a request."""
    request_id = (message or {}).get("id")
    return {
        "jsonrpc": "2.0",
        "id": request_id if isinstance(request_id, str | int) else None,
        "error": {"code": HEADER_MISMATCH, "message": f"MCP-Protocol-Version: {reason}"},
    }


def _find_declared_version(message: Mapping[str, Any] | None) -> str | None:
    """Return the version that a modern request declares in its `_meta`."""
    params = (message or {}).get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
    return version if isinstance(version, str) else None
