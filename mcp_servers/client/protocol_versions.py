"""Versions of MCP and detection of a server's era.

Modern servers answer `server/discover`; servers of the handshake era need `initialize`. Only the
responses count, never a server's name or version.

A server of both eras may request input in the result of a call (`InputRequiredResult`), which
exists only in the modern era. In a session of the handshake era such a call fails, after its
handler has returned. fastmcp names the cause, so nothing was done and the call is sent again. The
SDK's error also follows on other invalid results, so then only calls without further effect are
sent again. Each process remembers the calls, by server and definition, and makes them in the modern
era from then on.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bonobot.core.i18n.messages import TranslatableMessage, format_message
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json
from mcp_servers.client.endpoint import WIRE_FIELD, Era, ServerEndpoint, Wire
from mcp_servers.client.errors import UpstreamError, build_protocol_error
from mcp_servers.client.jsonrpc import (
    CALL_METHODS,
    CLIENT_INFO,
    TASKS_EXTENSION,
    McpRequest,
    build_modern_meta,
)

MODERN_VERSION = "2026-07-28"
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
MODERN_ERRORS = (HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION)
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
# Codes of errors by which a server that was reached doesn't take part in a handshake.
REFUSAL_CODES = ("upstream_error", "protocol_error", "response_too_large")
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


MAX_MODERN_CALLS = 1_000
# Follows the holder of the child that modern calls are sent to, if its own child isn't modern.
MODERN_SUFFIX = "#modern"
INVALID_REQUEST = -32600
INTERNAL_ERROR = -32603
INVALID_RESULT_MESSAGE = "Handler returned an invalid result"
NO_LIVE_CONNECTION_MESSAGE = "no back-channel for server-initiated requests"
RESULT_TYPE_NAME = "InputRequiredResult"
# Annotations by which a server declares that a repeated call of a tool has no further effect.
REPEATABLE_HINTS = ("readOnlyHint", "idempotentHint")

CallKey = tuple[str, str]


class ModernCalls:
    """Calls of one server that failed in the handshake era; the least recently used are dropped."""

    def __init__(self) -> None:
        self._definitions: OrderedDict[CallKey, str] = OrderedDict()

    def add(self, request: McpRequest) -> None:
        """Remember that a call must be made in the modern era."""
        key = _build_key(request)
        self._definitions[key] = _compute_definition_digest(request)
        self._definitions.move_to_end(key)
        if len(self._definitions) > MAX_MODERN_CALLS:
            self._definitions.popitem(last=False)

    def contains(self, request: McpRequest) -> bool:
        """Return whether a call, with the same definition, must be made in the modern era."""
        key = _build_key(request)
        digest = self._definitions.get(key)
        if digest is None or digest != _compute_definition_digest(request):
            return False
        self._definitions.move_to_end(key)
        return True


def build_request_meta(era: Era, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `_meta` of a request of this era."""
    return build_modern_meta(MODERN_VERSION, capabilities) if era == "modern" else {}


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


def is_modern_result_refused(
    endpoint: ServerEndpoint, request: McpRequest, error: UpstreamError
) -> bool:
    """Return whether a call failed since its result may not exist in the handshake era."""
    is_handshake_call = (
        endpoint.era == "modern" and request.era == "handshake" and request.era_neutral
    )
    return (
        is_handshake_call
        and not request.needs_modern
        and (_names_result_type(error) or _is_invalid_result(error))
    )


def is_repeatable(request: McpRequest, error: UpstreamError) -> bool:
    """Return whether a call that failed like this can be repeated without further effect."""
    if _names_result_type(error) or request.method != "tools/call":
        return True
    annotations = (request.declaration or {}).get("annotations")
    return isinstance(annotations, Mapping) and any(
        annotations.get(hint) is True for hint in REPEATABLE_HINTS
    )


def is_later_part(request: McpRequest) -> bool:
    """Return whether a request is a later part of a modern call."""
    return request.method in CALL_METHODS and not request.era_neutral


def build_modern_call_error(endpoint: ServerEndpoint, error: UpstreamError) -> UpstreamError:
    """Return the error of a call that failed in the handshake era and isn't repeated."""
    detail = format_message(
        "`{endpoint}` returned an invalid result in protocol version 2025-11-25. It may have "
        "requested input in a way that exists only in protocol version {version}. Bonobot didn't "
        "repeat the call because it may have had an effect. Bonobot makes the next call of "
        "this tool in {version}.",
        endpoint=endpoint.name,
        version=MODERN_VERSION,
    )
    remedy = format_message("Call the tool again if the call had no effect.")
    return _replace_detail(endpoint, error, detail, remedy=remedy)


def is_live_request_refused(request: McpRequest, error: UpstreamError) -> bool:
    """Return whether a call failed since the server could send no request during it (SDK)."""
    return (
        request.era == "modern"
        and error.rpc_code == INVALID_REQUEST
        and NO_LIVE_CONNECTION_MESSAGE in error.rpc_message
    )


def build_live_request_error(endpoint: ServerEndpoint, error: UpstreamError) -> UpstreamError:
    """Return the error of a modern call that needs requests of the server."""
    detail = format_message(
        "`{endpoint}` requests input or sampling during this call, which isn't possible here: the "
        "caller can't answer such requests, or the server keeps no sessions.",
        endpoint=endpoint.name,
    )
    return _replace_detail(endpoint, error, detail, remedy="")


def _replace_detail(
    endpoint: ServerEndpoint,
    error: UpstreamError,
    detail: TranslatableMessage,
    *,
    remedy: str,
) -> UpstreamError:
    """Return the error of a server with our own text."""
    return UpstreamError(
        detail,
        code=error.code,
        server=endpoint.name,
        rpc_code=error.rpc_code,
        rpc_message=str(detail),
        rpc_data=error.rpc_data,
        remedy=remedy,
    )


def _names_result_type(error: UpstreamError) -> bool:
    """Return whether the server says that the result type exists only in the modern era."""
    return (
        error.rpc_code == INVALID_PARAMS
        and RESULT_TYPE_NAME in error.rpc_message
        and MODERN_VERSION in error.rpc_message
    )


def _is_invalid_result(error: UpstreamError) -> bool:
    return error.rpc_code == INTERNAL_ERROR and error.rpc_message == INVALID_RESULT_MESSAGE


def _build_key(request: McpRequest) -> CallKey:
    name_field = "uri" if request.method == "resources/read" else "name"
    return request.method, str(request.params.get(name_field))


def _compute_definition_digest(request: McpRequest) -> str:
    return compute_digest(to_canonical_json(request.declaration or {}))
