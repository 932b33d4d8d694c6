"""JSON-RPC messages and their limits.

Depth and size are checked before parsing, so a small body can't become a large object. Characters
that the database and UTF-8 can't store (NUL, lone surrogates) become U+FFFD.
"""

import json
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from pydantic_core import to_json

from bonobot import __version__
from bonobot.core.text.canonical_json import to_compact_json
from mcp_servers.client.deadlines import RequestDeadline
from mcp_servers.client.endpoint import Era, ServerEndpoint
from mcp_servers.client.errors import build_protocol_error, build_rpc_error

if TYPE_CHECKING:
    from mcp_servers.client.answer_server_requests import Host


VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
MAX_DEPTH = 64
MAX_NODES = 100_000
LISTING_FIELDS = frozenset(("tools", "resources", "resourceTemplates", "skills", "prompts"))
MAX_PROGRESS_LENGTH = 1000
# Methods during which a server may send requests, and fields of the later parts of a modern call.
CALL_METHODS = frozenset(("tools/call", "resources/read", "prompts/get"))
MODERN_CALL_FIELDS = frozenset(("inputResponses", "requestState"))
CLIENT_INFO = {"name": "bonobot", "title": "Bonobot", "version": __version__}
# Set by us for each hop; a caller's values are never forwarded.
RESERVED_META_KEYS = (VERSION_KEY, CLIENT_KEY, CAPABILITIES_KEY)
# Result type of the tasks extension; servers may use it only where we declared it.
TASK_RESULT_TYPE = "task"
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
RESULT_TYPES = ("complete", "input_required")
# Possessive quantifiers: no backtracking state, so a long string costs no memory.
STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
BRACKETS = re.compile(rb"[\[{\]}]")
TOKENS = re.compile(STRINGS.pattern + rb"|" + BRACKETS.pattern, re.DOTALL)
UNSTORABLE = dict.fromkeys((0, *range(0xD800, 0xE000)), "\ufffd")
UNSTORABLE_ESCAPE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
OnProgress = Callable[[float, float | None, str | None], Awaitable[None]]
# Takes the parameters of a log message that a server sends during a request.
OnLog = Callable[[Mapping[str, Any]], Awaitable[None]]
LOG_MESSAGE = "notifications/message"
# Replaces values nested too deeply in a listing; random, so no server can forge it.
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels ({secrets.token_hex(8)})"


class UnreadableJson(ValueError):
    """Bytes that are not acceptable JSON; the message says why."""


class NestedTooDeeply(UnreadableJson):
    """JSON that is nested more than `MAX_DEPTH` levels deep."""

    def __init__(self) -> None:
        super().__init__(f"nested deeper than {MAX_DEPTH}")


@dataclass
class McpRequest:
    """One request; `input_schema` names the arguments mirrored as headers, and `declaration` is the
    whole tool, from which API requests are built. `on_log` gets the server's log messages for
    `log_subscriber`, `host` answers the server's requests.

    `sent` becomes true when it is sent: until then the server can't have done anything. `deadline`
    is paused while the server waits for a response from us. `era` is the one in which it was sent,
    and `needs_modern` says that a server of both eras can only answer it in the modern one.
    """

    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    on_progress: OnProgress | None = None
    input_schema: Mapping[str, Any] | None = None
    declaration: Mapping[str, Any] | None = None
    on_log: OnLog | None = None
    log_subscriber: str = ""
    host: "Host | None" = None
    sent: bool = False
    deadline: RequestDeadline | None = None
    era: Era | None = None
    needs_modern: bool = False

    def mark_sent(self) -> None:
        """Note that the server may see the request from now on."""
        self.sent = True

    @property
    def idempotent(self) -> bool:
        """Return whether the request can be repeated without further effect."""
        return self.method.endswith("/list") or self.method in ("server/discover", "ping")

    @property
    def era_neutral(self) -> bool:
        """Return whether the request is a call that means the same in both eras.

        Later parts of a modern call are not.
        """
        return self.method in CALL_METHODS and MODERN_CALL_FIELDS.isdisjoint(self.params)


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Return a message as one line of ASCII JSON, without the newline.

    Raises ValueError for NaN and infinity, TypeError for what isn't JSON.
    """
    try:
        encoded = to_json(message)
    except ValueError:  # lone surrogates, for example
        return to_compact_json(message).encode("ascii")
    # Python looks for a number first if it is asked whether bytes are `in` others.
    if encoded.isascii() and encoded.find(b"NaN") < 0 and encoded.find(b"Infinity") < 0:
        return encoded
    return to_compact_json(message).encode("ascii")


def decode_json(raw: bytes) -> Any:
    """Parse JSON; raises `UnreadableJson`.

    In the response to a listing, values nested too deeply become `TOO_DEEP`, so that one definition
    doesn't hide the others.
    """
    try:
        # Otherwise it is small even if all of its brackets are nested, and none is in a string.
        if len(raw) > MAX_NODES or raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
            _check_size(raw)
    except NestedTooDeeply:
        value = decode_json(_cut_depth(raw))
        if not _is_listing(value):
            raise
        return value
    try:
        value = DECODER.decode(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(f"not JSON ({error})") from None
    if raw.find(b"\\u") >= 0 and UNSTORABLE_ESCAPE.search(raw):
        return _replace_unstorable(value)
    return value


def build_request_message(
    request_id: int, request: McpRequest, meta: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the JSON-RPC request; `meta` is added to its `_meta`."""
    params = dict(request.params)
    caller_meta = params.pop("_meta", None)
    request_meta = dict(meta)
    if caller_meta and isinstance(caller_meta, dict):
        request_meta = {
            key: value for key, value in caller_meta.items() if key not in RESERVED_META_KEYS
        } | request_meta
    request_meta.pop("progressToken", None)
    if request.on_progress is not None:
        request_meta["progressToken"] = request_id
    if request_meta:
        params["_meta"] = request_meta
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": request.method}
    if params:
        message["params"] = params
    return message


def build_notification(method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a JSON-RPC notification."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return message | {"params": dict(params)} if params else message


def build_modern_meta(version: str, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `_meta` fields of every request of a version of the modern era."""
    return {
        VERSION_KEY: version,
        CLIENT_KEY: CLIENT_INFO,
        CAPABILITIES_KEY: dict(capabilities),
    }


def is_response(message: Any, request_id: int) -> TypeGuard[dict[str, Any]]:
    """Return whether `message` is the response to `request_id`; "1" is not 1."""
    return (
        isinstance(message, dict)
        and type(message.get("id")) is int
        and message["id"] == request_id
        and "method" not in message
        and ("result" in message or "error" in message)
    )


def parse_result(
    endpoint: ServerEndpoint, message: Mapping[str, Any], meta: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the raw result of a response; raises `UpstreamError` for an error or a bad result.

    `meta` is the request's `_meta`: it says whether a task may be returned.
    """
    if "error" in message:
        raise build_rpc_error(endpoint, message["error"])
    result = message["result"]
    if not isinstance(result, dict):
        raise build_protocol_error(endpoint, "a result that isn't an object")
    result_type = result.get("resultType", "complete")
    if result_type not in RESULT_TYPES and not (
        result_type == TASK_RESULT_TYPE and _has_tasks_extension(meta)
    ):
        raise build_protocol_error(endpoint, "a result of a type that wasn't requested")
    return result


def _has_tasks_extension(meta: Mapping[str, Any] | None) -> bool:
    capabilities = (meta or {}).get(CAPABILITIES_KEY, {})
    return TASKS_EXTENSION in capabilities.get("extensions", {})


def parse_progress_token(message: Mapping[str, Any]) -> int | None:
    """Return the id of the request whose progress `message` reports, else None."""
    params = message.get("params")
    if message.get("method") != "notifications/progress" or not isinstance(params, dict):
        return None
    token = params.get("progressToken")
    return token if type(token) is int else None


def is_log_message(message: Mapping[str, Any]) -> bool:
    """Return whether `message` is a log message."""
    return message.get("method") == LOG_MESSAGE and isinstance(message.get("params"), dict)


def is_for_request(message: Mapping[str, Any], request_id: int) -> bool:
    """Return whether a notification is the progress of `request_id` or a log message."""
    return parse_progress_token(message) == request_id or is_log_message(message)


async def deliver_notification(request: McpRequest, message: Mapping[str, Any]) -> None:
    """Pass progress or a log message to the request's callback if it is well formed."""
    params = message.get("params")
    if is_log_message(message):
        if request.on_log is not None:
            await request.on_log(message["params"])
        return
    if request.on_progress is None or not isinstance(params, dict):
        return
    if request.deadline is not None:
        request.deadline.extend()
    progress, total, text = (params.get(name) for name in ("progress", "total", "message"))
    if not isinstance(progress, int | float):
        return
    await request.on_progress(
        progress,
        total if isinstance(total, int | float) else None,
        text[:MAX_PROGRESS_LENGTH] if isinstance(text, str) else None,
    )


def _check_size(raw: bytes) -> None:
    """Raise `UnreadableJson` for too many values or too deep nesting, without parsing."""
    if raw.count(b'"') > 4 * MAX_NODES:
        raise UnreadableJson("too many values")
    punctuation = STRINGS.sub(b"", raw)
    if punctuation.count(b",") + punctuation.count(b"[") + punctuation.count(b"{") > MAX_NODES:
        raise UnreadableJson("too many values")
    depth = 0
    for bracket in BRACKETS.finditer(punctuation):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            raise NestedTooDeeply()


def _cut_depth(raw: bytes) -> bytes:
    """Return the JSON with `TOO_DEEP` in place of each value below `MAX_DEPTH`."""
    parts, depth, start = [], 0, 0
    for token in TOKENS.finditer(raw):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth == MAX_DEPTH + 1:
                parts.append(raw[start : token.start()])
                parts.append(b'"%s"' % TOO_DEEP.encode())
        elif token[0] in (b"]", b"}"):
            if depth == MAX_DEPTH + 1:
                start = token.end()
            depth -= 1
    return b"".join(parts) + (raw[start:] if depth <= MAX_DEPTH else b"")


def _is_listing(message: Any) -> bool:
    result = message.get("result") if isinstance(message, dict) else None
    return isinstance(result, dict) and not LISTING_FIELDS.isdisjoint(result)


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _parse_finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number out of range")
    return number


def _replace_unstorable(value: Any) -> Any:
    if isinstance(value, str):
        return value.translate(UNSTORABLE)
    if isinstance(value, list):
        return [_replace_unstorable(item) for item in value]
    if isinstance(value, dict):
        return {_replace_unstorable(key): _replace_unstorable(item) for key, item in value.items()}
    return value


DECODER = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_parse_finite_float)
