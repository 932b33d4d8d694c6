"""Versions of MCP and detection of a server's era.

Modern servers answer `server/discover`; servers of the handshake era need `initialize`. Only the
responses count, never a server's name or version.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bonobot.core.i18n.messages import format_message
from mcp_servers.client.endpoint import WIRE_FIELD, Era, ServerEndpoint, Wire
from mcp_servers.client.errors import UpstreamError, build_protocol_error
from mcp_servers.client.jsonrpc import (
    CLIENT_INFO,
    HANDSHAKE_VERSIONS,
    MODERN_VERSION,
    TASKS_EXTENSION,
    McpRequest,
    build_modern_meta,
)

SERVER_INFO = "io.modelcontextprotocol/serverInfo"
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
MODERN_ERRORS = (HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION)
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
# Codes of errors by which a server that was reached doesn't take part in a handshake.
REFUSAL_CODES = ("upstream_error", "protocol_error", "response_too_large")
# Statuses of 2024-11-05 servers for a POST where they support only GET.
HTTP_SSE_STATUSES = (400, 404, 405)
# Statuses of servers of the other era, which reject a request unread.
OTHER_ERA_STATUSES = (400, 404, 405, 406, 415, 426)
SendRequest = Callable[[McpRequest], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class HandshakeResult:
    """A server's identity; `discovery` is the raw result with the HTTP transport."""

    era: Era
    protocol_version: str
    server_info: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    instructions: str
    discovery: Mapping[str, Any]


def build_request_meta(era: Era, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `_meta` of a request of this era."""
    return build_modern_meta(capabilities) if era == "modern" else {}


def build_discover_request() -> McpRequest:
    """Return the `server/discover` request."""
    return McpRequest("server/discover")


def omit_tasks_extension(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return capabilities for the handshake era, in which the tasks extension doesn't exist."""
    other_capabilities = {
        name: value for name, value in capabilities.items() if name != "extensions"
    }
    declared = capabilities.get("extensions")
    if not isinstance(declared, Mapping):
        return other_capabilities
    extensions = {name: value for name, value in declared.items() if name != TASKS_EXTENSION}
    return other_capabilities | ({"extensions": extensions} if extensions else {})


def build_initialize_request(capabilities: Mapping[str, Any]) -> McpRequest:
    """Return the `initialize` request."""
    params = {
        "protocolVersion": HANDSHAKE_VERSIONS[-1],
        "capabilities": omit_tasks_extension(capabilities),
        "clientInfo": CLIENT_INFO,
    }
    return McpRequest("initialize", params)


def parse_discover_result(result: Mapping[str, Any]) -> HandshakeResult | None:
    """Return the handshake result of a modern server; None if the result isn't from one."""
    versions = result.get("supportedVersions")
    if not isinstance(versions, list) or MODERN_VERSION not in versions:
        return None
    meta = result.get("_meta")
    info = meta.get(SERVER_INFO) if isinstance(meta, dict) else None
    return _build_handshake_result("modern", MODERN_VERSION, info, result)


def parse_initialize_result(
    endpoint: ServerEndpoint, result: Mapping[str, Any], wire: Wire = "streamable"
) -> HandshakeResult:
    """Return the result of a handshake; raises `UpstreamError` for an unknown version."""
    version = result.get("protocolVersion")
    if version not in HANDSHAKE_VERSIONS:
        raise build_protocol_error(
            endpoint,
            format_message("it requires protocol version {version!r}", version=str(version)[:40]),
        )
    return _build_handshake_result("handshake", version, result.get("serverInfo"), result, wire)


async def fetch_discover_result(send_request: SendRequest) -> HandshakeResult | None:
    """Return the handshake result of a modern server; None if the server isn't modern.

    Retries once if the server rejects our version but lists it as supported.
    """
    try:
        return parse_discover_result(await send_request(build_discover_request()))
    except UpstreamError as error:
        if error.rpc_code != UNSUPPORTED_VERSION or MODERN_VERSION not in _parse_supported_versions(
            error
        ):
            raise
    return parse_discover_result(await send_request(build_discover_request()))


def check_handshake_allowed(endpoint: ServerEndpoint, error: UpstreamError) -> None:
    """Raise unless a handshake may be tried after this error of `server/discover`.

    Only modern servers send the three modern errors. Any other response is no evidence of a modern
    server; an outage is no evidence at all.
    """
    if error.rpc_code == UNSUPPORTED_VERSION:
        versions = _parse_supported_versions(error)
        if not versions or set(HANDSHAKE_VERSIONS).intersection(versions):
            return
        raise build_protocol_error(
            endpoint,
            format_message(
                "it supports only {versions}",
                versions=", ".join(version[:40] for version in versions[:5]),
            ),
            remedy="Update the server or Bonobot. They share no protocol version.",
        ) from error
    if error.rpc_code in MODERN_ERRORS:
        raise error
    if error.code not in REFUSAL_CODES:
        raise error


def is_handshake_refused(error: UpstreamError) -> bool:
    """Return whether a modern server refused `initialize`, or hung up on it.

    An outage is no refusal.
    """
    has_hung_up = error.code == "server_unreachable" and error.sent and error.http_status is None
    return has_hung_up or error.code in REFUSAL_CODES


def is_other_era_error(error: UpstreamError, era: Era) -> bool:
    """Return whether an error means that the server is not, or no longer, of this era."""
    if era == "modern":
        own_codes = (HEADER_MISMATCH, MISSING_CAPABILITY, METHOD_NOT_FOUND, INVALID_PARAMS)
        return error.rpc_code == UNSUPPORTED_VERSION or (
            error.http_status in OTHER_ERA_STATUSES and error.rpc_code not in own_codes
        )
    return error.rpc_code in (*MODERN_ERRORS, METHOD_NOT_FOUND) or (
        error.http_status in OTHER_ERA_STATUSES
    )


def may_speak_http_sse(error: UpstreamError) -> bool:
    """Return whether a server that rejects `initialize` like this may speak HTTP+SSE."""
    return error.http_status in HTTP_SSE_STATUSES and error.rpc_code not in MODERN_ERRORS


def _parse_supported_versions(error: UpstreamError) -> list[str]:
    versions = error.rpc_data.get("supported") if isinstance(error.rpc_data, dict) else None
    if not isinstance(versions, list):
        return []
    return [version for version in versions if isinstance(version, str)]


def _build_handshake_result(
    era: Era, version: str, info: Any, result: Mapping[str, Any], wire: Wire = "streamable"
) -> HandshakeResult:
    discovery = {name: value for name, value in result.items() if name != WIRE_FIELD}
    if wire == "sse":
        discovery[WIRE_FIELD] = wire
    capabilities, instructions = result.get("capabilities"), result.get("instructions")
    return HandshakeResult(
        era=era,
        protocol_version=version,
        server_info=info if isinstance(info, dict) else {},
        capabilities=capabilities if isinstance(capabilities, dict) else {},
        instructions=instructions if isinstance(instructions, str) else "",
        discovery=discovery,
    )
