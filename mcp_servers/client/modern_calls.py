"""Calls that a server of both eras answers only in the modern era.

A server may request input in the result of a call (`InputRequiredResult`), which exists only in the
modern era. In a session of the handshake era such a call fails, after its handler has returned.
fastmcp names the cause, so nothing was done and the call is sent again. The SDK's error also
follows on other invalid results, so then only calls without further effect are sent again. Each
process remembers the calls, by server and definition, and makes them in the modern era from then
on.
"""

from collections import OrderedDict
from collections.abc import Mapping

from bonobot.core.i18n.messages import TranslatableMessage, format_message
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.jsonrpc import CALL_METHODS, MODERN_VERSION, McpRequest

MAX_MODERN_CALLS = 1_000
# Follows the holder of the child that modern calls are sent to, if its own child isn't modern.
MODERN_SUFFIX = "#modern"
INVALID_REQUEST = -32600
INVALID_PARAMS = -32602
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
