"""Agree with a client on a protocol version, and translate what servers say for its era.

The SDK chooses a request's era by its `MCP-Protocol-Version` header alone, so a request whose
header and body name different versions is rejected before that.

Clients of the handshake era refuse a whole list for one schema, or a whole result for one field,
that their era doesn't know.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from agents.gateway.request_bodies import parse_object
from mcp_servers.client.jsonrpc import VERSION_KEY
from mcp_servers.client.protocol_versions import HANDSHAKE_VERSIONS, HEADER_MISMATCH

VERSION_HEADER = b"mcp-protocol-version"
# Result fields of the modern era.
MODERN_FIELDS = ("resultType", "ttlMs", "cacheScope")


def negotiate_version(requested: Any) -> str:
    """Return the version of a handshake: the requested one if it is supported, else the latest."""
    return str(requested) if requested in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]


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


def translate_declaration(declaration: dict[str, Any]) -> dict[str, Any]:
    """Return a declaration whose schemas describe objects, as the handshake era requires."""
    translated = dict(declaration)
    output_schema, input_schema = declaration.get("outputSchema"), declaration.get("inputSchema")
    if "outputSchema" in declaration and not (
        isinstance(output_schema, Mapping) and output_schema.get("type") == "object"
    ):
        del translated["outputSchema"]
    if isinstance(input_schema, Mapping) and "type" not in input_schema:
        translated["inputSchema"] = {"type": "object", **input_schema}
    return translated


def translate_execution(declaration: dict[str, Any]) -> dict[str, Any]:
    """Return a declaration without `execution.taskSupport`: the gateway creates tasks itself.

    Clients refuse to make an ordinary call of a tool that requires a task.
    """
    execution = declaration.get("execution")
    if not isinstance(execution, Mapping) or "taskSupport" not in execution:
        return dict(declaration)
    other_fields = {name: value for name, value in execution.items() if name != "taskSupport"}
    fields = {name: value for name, value in declaration.items() if name != "execution"}
    return fields | ({"execution": other_fields} if other_fields else {})


def translate_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result without fields and values of the modern era."""
    fields = {name: value for name, value in result.items() if name not in MODERN_FIELDS}
    structured = fields.get("structuredContent", {})
    if not isinstance(structured, Mapping):
        del fields["structuredContent"]
        # The value itself stays readable.
        fields["content"] = fields.get("content") or [
            {"type": "text", "text": json.dumps(structured, ensure_ascii=False)}
        ]
    return fields


def translate_input_request(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a modern server's request: a URL elicitation needs an id."""
    needs_id = method == "elicitation/create" and params.get("mode") == "url"
    return {"elicitationId": str(uuid4()), **params} if needs_id else dict(params)
