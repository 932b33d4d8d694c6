"""MCP requests over HTTP: headers, credentials, bounded responses, and errors of statuses.

Statuses are kept, responses are bounded (a JSON body and an SSE event by `max_body`, a
whole stream by sixteen of them), and it is known whether a request was sent at all.

Proxies route on `Mcp-Method`, `Mcp-Name` and, where a tool's schema asks for it with
`x-mcp-header`, on single arguments; a server refuses a request whose headers and body differ.
Rules: MCP 2026-07-28, transports, "Custom Headers".
"""

import asyncio
import base64
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, Protocol, Self

import httpx2

from bonobot.core.http.egress import BodyAllowance, EgressDenied
from bonobot.core.http.persistent_client import HttpExchange, PersistentClient, StreamedResponse
from bonobot.core.i18n.messages import TranslatableMessage, format_message
from bonobot.core.process_cache import ObjectIdentityCache
from bonobot.core.records import record
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import (
    UpstreamError,
    build_connection_error,
    build_egress_error,
    build_header_error,
    build_protocol_error,
    build_reauth_error,
    build_rpc_error,
    build_too_large_error,
    build_unreachable_error,
    quote_text,
)
from mcp_servers.client.event_streams import (
    EVENT_STREAM,
    OnMessage,
    StreamState,
    read_events,
    reopen_stream,
    resume_stream,
    throttle_stream,
)
from mcp_servers.client.jsonrpc import (
    McpRequest,
    UnreadableJson,
    decode_json,
    encode_message,
    is_response,
)
from mcp_servers.client.protocol_versions import MODERN_VERSION
from mcp_servers.client.read_throttle import STREAM_SHARE, ReadThrottle

STREAM_BODY_FACTOR = 16  # maximum size of a stream, in bodies
MAX_ERROR_BODY_BYTES = 64 * 1024
NO_REQUEST_ID = -1  # never the id of a request
TOO_MANY_REQUESTS = 429
BUSY_STATUSES = (TOO_MANY_REQUESTS, 502, 503, 504)
UNAUTHORIZED_STATUSES = (401, 403)
WRONG_PATH_STATUSES = (404, 405, 410)
ENDPOINT_REMEDY = format_message("Enter the URL of the server's MCP endpoint.")
ACCEPT_HEADERS = {"Accept": "application/json, text/event-stream"}
CONTENT_HEADERS = {"Content-Type": "application/json"}
CREDENTIAL_HEADERS = ("Authorization", "DPoP")

# Exceptions of a request in addition to `UpstreamError`.
TRANSPORT_ERRORS = (EgressDenied, httpx2.SSEError, httpx2.HTTPError, httpx2.InvalidURL)

OnEvent = Callable[[str, str], None]


@record()
class JsonRpcResponse:
    """A JSON-RPC response and its HTTP headers, with names in lower case."""

    message: Mapping[str, Any]
    headers: Mapping[str, str]


class HttpChannel:
    """Requests to one endpoint, or to `url`; they fail independently of each other."""

    def __init__(self, endpoint: ServerEndpoint, client: PersistentClient, url: str = "") -> None:
        self._endpoint = endpoint
        self._url = url or endpoint.url
        self._client = client
        self._auth = endpoint.auth

    async def send_request(
        self,
        request: McpRequest,
        message: Mapping[str, Any],
        headers: Mapping[str, str],
        on_message: OnMessage,
        *,
        resumable: bool = False,
    ) -> JsonRpcResponse:
        """Send a request and return its response; pass on other messages of its stream.

        A lost stream is resumed after its last event if `resumable`. The caller sets the deadline.
        Canceling closes the stream, which cancels the request at the server.
        """
        state = StreamState(request, message["id"], on_message, resumable)
        if not resumable and self._auth is None:
            response = await self._post_message(state, headers, message)
        else:
            response = await self._send_once("POST", headers, state, message)
        if response is None and resumable:
            response = await resume_stream(state, partial(self._read_on, headers, state))
        if response is None:
            raise self._build_disconnected_error()
        return response

    async def listen(
        self, headers: Mapping[str, str], on_message: OnMessage, ready: asyncio.Event
    ) -> None:
        """Pass on server messages that belong to no request, until the server refuses.

        `ready` is set once the first stream is open or refused. A stream that ends is reopened,
        with growing pauses while nothing comes.
        """
        state = StreamState(McpRequest("listen"), NO_REQUEST_ID, on_message, resumable=True)

        async def open_stream(resume_headers: Mapping[str, str]) -> bool:
            stream_headers = {**headers, **resume_headers}
            try:
                async with self._open_response(state.request, "GET", stream_headers) as response:
                    ready.set()
                    await self._read_event_stream(response, state)
            except UpstreamError as error:
                ready.set()
                return error.http_status is None
            return True

        await reopen_stream(state, open_stream)

    async def receive_messages(
        self, headers: Mapping[str, str], on_message: OnMessage, opened_event: asyncio.Event
    ) -> None:
        """Pass on server messages that belong to no request, until their stream ends.

        `opened_event` is set once the headers arrive. Raises `UpstreamError` if the stream is lost
        or refused.
        """
        state = StreamState(McpRequest("listen"), NO_REQUEST_ID, on_message, resumable=False)
        async with self._open_response(state.request, "GET", headers) as response:
            if _get_content_type(response) != EVENT_STREAM:
                raise build_protocol_error(self._endpoint, "it opened no event stream")
            opened_event.set()
            await self._read_event_stream(response, state)

    async def receive_events(self, allowance: BodyAllowance, on_event: OnEvent) -> None:
        """Pass on the events of one stream until it ends; `allowance` bounds it."""
        async with self._open_response(
            McpRequest("listen"), "GET", {}, limit=allowance
        ) as response:
            if _get_content_type(response) != EVENT_STREAM:
                raise build_protocol_error(self._endpoint, "it opened no event stream")
            throttle = ReadThrottle(STREAM_SHARE)
            async with aclosing(
                read_events(response, self._url, self._endpoint.max_body)
            ) as events:
                async for event in events:
                    started_at = perf_counter()
                    on_event(event.event, event.data)
                    await throttle_stream(throttle, started_at)

    async def send_message(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Send a notification or one of our responses."""
        async with self._open_response(McpRequest("tell"), "POST", headers, message):
            pass

    async def delete_session(self, headers: Mapping[str, str]) -> None:
        """Tell the server that a session has ended."""
        async with self._open_response(McpRequest("end"), "DELETE", headers):
            pass

    async def _read_on(
        self, headers: Mapping[str, str], state: StreamState, resume_headers: Mapping[str, str]
    ) -> JsonRpcResponse | None:
        """Read on after the last event; a server that refuses has lost the request's stream."""
        try:
            return await self._send_once("GET", {**headers, **resume_headers}, state)
        except UpstreamError as error:
            if error.http_status is None:
                raise
            # Its status is about the stream: the request itself was accepted before.
            raise self._build_disconnected_error() from error

    def _build_disconnected_error(self) -> UpstreamError:
        return build_unreachable_error(
            self._endpoint, "it disconnected before responding", sent=True
        )

    async def _send_once(
        self,
        method: str,
        headers: Mapping[str, str],
        state: StreamState,
        message: Mapping[str, Any] | None = None,
    ) -> JsonRpcResponse | None:
        try:
            if self._auth or message is None:
                async with self._open_response(state.request, method, headers, message) as response:
                    return await self._read_response(response, state)
            return await self._post_message(state, headers, message)
        except UpstreamError as error:
            if state.resumable and state.last_id and error.code == "server_unreachable":
                return None
            raise

    async def _post_message(
        self, state: StreamState, headers: Mapping[str, str], message: Mapping[str, Any]
    ) -> JsonRpcResponse | None:
        """Send a message without credentials of its own and read the response.

        Most calls take this path, so it has no context managers.
        """
        exchange: HttpExchange | None = None
        is_cut_off = True
        try:
            exchange = await self._client.send_request(
                "POST",
                self._url,
                headers={**ACCEPT_HEADERS, **headers, **CONTENT_HEADERS},
                content=encode_message(message),
                limit=STREAM_BODY_FACTOR * self._endpoint.max_body,
                on_send=state.request.mark_sent,
            )
            if exchange.response.status_code >= 300:
                raise await self._build_status_error(exchange.response)
            response = await self._read_response(exchange.response, state)
            is_cut_off = False
            return response
        except TRANSPORT_ERRORS as error:
            raise self._build_transport_error(error, state.request) from error
        finally:
            if exchange is not None:
                exchange.close(is_cut_off=is_cut_off)

    @asynccontextmanager
    async def _open_response(
        self,
        request: McpRequest,
        method: str,
        headers: Mapping[str, str],
        message: Mapping[str, Any] | None = None,
        limit: BodyAllowance | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        """Yield a successful response; every HTTP failure becomes `UpstreamError`."""
        endpoint = self._endpoint
        request_headers = {**ACCEPT_HEADERS, **headers}
        content = b""
        if message:
            content = encode_message(message)
            request_headers |= CONTENT_HEADERS

        open_response = partial(
            self._client.open_response,
            method,
            self._url,
            content=content,
            limit=limit or STREAM_BODY_FACTOR * endpoint.max_body,
            on_send=request.mark_sent,
        )
        try:
            async with (
                self._open_authorized(self._auth, method, open_response, request_headers)
                if self._auth
                else open_response(headers=request_headers)
            ) as response:
                if response.status_code >= 300:
                    raise await self._build_status_error(response)
                yield response
        except TRANSPORT_ERRORS as error:
            raise self._build_transport_error(error, request) from error

    def _build_transport_error(self, error: Exception, request: McpRequest) -> UpstreamError:
        """Return the error of a request that failed with one of `TRANSPORT_ERRORS`."""
        endpoint = self._endpoint
        if isinstance(error, EgressDenied):
            return build_egress_error(endpoint, error, sent=request.sent)
        if isinstance(error, httpx2.SSEError):
            return build_too_large_error(endpoint, endpoint.max_body)
        if isinstance(error, httpx2.LocalProtocolError):  # its message may quote a credential
            return build_header_error(endpoint)
        return build_connection_error(endpoint, error, sent=request.sent)

    @asynccontextmanager
    async def _open_authorized(
        self,
        auth: httpx2.Auth,
        method: str,
        open_response: Callable[..., AbstractAsyncContextManager[StreamedResponse]],
        headers: Mapping[str, str],
    ) -> AsyncIterator[StreamedResponse]:
        """Yield the response to a request with credentials, sent again if they were renewed."""
        async with aclosing(auth.async_auth_flow(httpx2.Request(method, self._url))) as flow:
            authorized: httpx2.Request | None = await anext(flow)
            while authorized is not None:
                credentials = {
                    name: authorized.headers[name]
                    for name in CREDENTIAL_HEADERS
                    if name in authorized.headers
                }
                async with open_response(headers={**headers, **credentials}) as response:
                    authorized = await _advance_flow(flow, response)
                    if authorized is None:
                        yield response

    async def _build_status_error(self, response: StreamedResponse) -> UpstreamError:
        """Return the error of a status outside 2xx."""
        status, endpoint = response.status_code, self._endpoint
        if status in UNAUTHORIZED_STATUSES:
            challenge = response.headers.get("www-authenticate", "")
            return build_reauth_error(endpoint, status, challenge)
        text = await response.read(MAX_ERROR_BODY_BYTES) or b""
        error = _parse_rpc_error(text)
        if error is not None:
            return build_rpc_error(endpoint, error, status)
        if status in BUSY_STATUSES:
            return build_unreachable_error(
                endpoint,
                format_message("it returned HTTP {status}", status=status),
                sent=status != TOO_MANY_REQUESTS,  # rejected unread
                http_status=status,
                retry_after=parse_retry_after(response.headers.get("retry-after")),
                remedy="Try again later.",
            )
        is_text = "html" not in response.headers.get("content-type", "html")
        quoted_body = quote_text(endpoint, text.decode("utf-8", "replace"), 200) if is_text else ""
        summary = format_message(
            "`{endpoint}` returned HTTP {status}", endpoint=endpoint.name, status=status
        )
        return UpstreamError(
            summary + (f": {quoted_body}" if quoted_body else "."),
            summary=f"{summary}.",
            code="protocol_error" if status < 500 else "upstream_error",
            server=endpoint.name,
            http_status=status,
            remedy=_find_status_remedy(status),
        )

    async def _read_response(
        self, response: StreamedResponse, state: StreamState
    ) -> JsonRpcResponse | None:
        """Return the expected response; None if the stream ended without it."""
        content_type = _get_content_type(response)
        if content_type == EVENT_STREAM:
            message = await self._read_event_stream(response, state)
            return JsonRpcResponse(message, response.headers) if message else None
        if content_type != "application/json":
            raise build_protocol_error(
                self._endpoint,
                format_message(
                    "it responded with {quote}",
                    quote=quote_text(self._endpoint, content_type, 80) or "nothing",
                ),
                remedy="This is a web page. Enter the URL of the server's MCP endpoint."
                if content_type == "text/html"
                else ENDPOINT_REMEDY,
                quotes_server=True,
            )
        body = await response.read(self._endpoint.max_body)
        if body is None:
            raise build_too_large_error(self._endpoint, self._endpoint.max_body)
        message = self._decode_body(body)
        if isinstance(message, dict) and "jsonrpc" not in message:
            reason = format_message("its JSON isn't JSON-RPC")
            raise build_protocol_error(self._endpoint, reason, remedy=ENDPOINT_REMEDY)
        if not is_response(message, state.request_id):
            raise build_protocol_error(self._endpoint, "a response that wasn't requested")
        return JsonRpcResponse(message, response.headers)

    async def _read_event_stream(
        self, response: StreamedResponse, state: StreamState
    ) -> dict[str, Any] | None:
        events = read_events(response, self._url, self._endpoint.max_body)
        throttle = ReadThrottle(STREAM_SHARE)
        async with aclosing(events):
            async for event in events:
                started_at = perf_counter()
                state.track_event(event, max_retry_s=self._endpoint.read_s)
                message: Any = None
                if event.event == "message" and event.data:
                    message = self._decode_body(event.data.encode("utf-8", "replace"))
                if is_response(message, state.request_id):
                    return message
                await throttle_stream(throttle, started_at)
                if isinstance(message, dict):
                    await state.on_message(message)
        return None

    def _decode_body(self, raw: bytes) -> Any:
        if len(raw) > self._endpoint.max_body:
            raise build_too_large_error(self._endpoint, self._endpoint.max_body)
        try:
            return decode_json(raw)
        except UnreadableJson as error:
            raise build_protocol_error(self._endpoint, str(error)) from None


def _find_status_remedy(status: int) -> TranslatableMessage:
    if status in WRONG_PATH_STATUSES:
        return format_message("Correct the path of its URL. Most servers use `/mcp`.")
    if status < 500:
        return format_message("Check the server's URL.")
    return format_message("Check the server's own log for the cause, then try again.")


async def _advance_flow(
    flow: AsyncGenerator[httpx2.Request, httpx2.Response], response: StreamedResponse
) -> httpx2.Request | None:
    """Return the request to send instead of a refused one; None if the response is final."""
    try:
        return await flow.asend(httpx2.Response(response.status_code, headers=response.headers))
    except StopAsyncIteration:
        return None


def _get_content_type(response: StreamedResponse) -> str:
    content_type = response.headers.get("content-type", "")
    return content_type.partition(";")[0].strip().lower()


class RawResponse(Protocol):
    """A response whose body can be read in parts, as it was sent."""

    def aiter_raw(self) -> AsyncIterator[bytes]:
        """Return the parts of the body."""


async def read_body(response: RawResponse, limit: int) -> bytes | None:
    """Return the body; None if it is longer than `limit` bytes."""
    parts, size = [], 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


def _parse_rpc_error(body: bytes) -> Any:
    try:
        message = decode_json(body)
    except UnreadableJson:
        return None
    error = message.get("error") if isinstance(message, dict) else None
    return error if isinstance(error, dict) else None


def parse_retry_after(header: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header; dates are not supported."""
    return float(header) if header and header.isdecimal() and len(header) < 6 else None


class IdleTracker:
    """Tracks whether it is in use, and when it was last used.

    It is in use inside its `with` blocks, so it isn't closed as idle.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.used_at = clock()
        self._clock = clock
        self._user_count = 0

    @property
    def busy(self) -> bool:
        """Return whether it is in use."""
        return self._user_count > 0

    def __enter__(self) -> Self:
        """Mark it as in use."""
        self._user_count += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Mark the end of one use."""
        self._user_count -= 1
        self.used_at = self._clock()


HEADER_ANNOTATION = "x-mcp-header"


NAME_PARAMETERS = {
    **{"tools/call": "name", "prompts/get": "name", "resources/read": "uri"},
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId"),
}


MIRRORED_TYPES = ("string", "integer", "boolean")  # a float has no unique spelling


TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


PLAIN_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?|")


SENTINEL = re.compile(r"=\?base64\?.*\?=")


# Keywords of JSON Schema 2020-12 whose value is a schema, a list or a map of schemas.
SINGLE_SCHEMA_KEYWORDS = (
    *("items", "contains", "not", "if", "then", "else", "additionalProperties", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)


SCHEMA_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf", "prefixItems")


SCHEMA_MAP_KEYWORDS = ("patternProperties", "dependentSchemas", "$defs", "definitions")


Path = tuple[str, ...]


def build_routing_headers(request: McpRequest) -> dict[str, str]:
    """Return the headers that mirror fields of `request`."""
    headers = {"MCP-Protocol-Version": MODERN_VERSION, "Mcp-Method": request.method}
    name = request.params.get(NAME_PARAMETERS.get(request.method, ""))
    if isinstance(name, str):
        headers["Mcp-Name"] = _encode_name(name)
    if request.method == "tools/call" and request.input_schema:
        paths = _annotated_paths.get(request.input_schema)
        if paths:
            headers |= _build_argument_headers(paths, request.params.get("arguments"))
    return headers


def encode_header_value(value: str) -> str:
    """Return `value` encoded for a header: base64 unless it is plain ASCII."""
    if PLAIN_VALUE.fullmatch(value) and not SENTINEL.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode('ascii')}?="


_encode_name = lru_cache(maxsize=1024)(encode_header_value)


def validate_header_annotations(schema: Any) -> str:
    """Return what is wrong with a schema's `x-mcp-header` annotations, or ""."""
    seen_names: set[str] = set()
    for path, node in _iterate_schemas(schema):
        if HEADER_ANNOTATION not in node:
            continue
        token = node[HEADER_ANNOTATION]
        if not path:
            return f"`{HEADER_ANNOTATION}` where no plain property is"
        if not isinstance(token, str) or not TOKEN.fullmatch(token):
            return f"`{HEADER_ANNOTATION}` of `{'.'.join(path)}` is not a header's name"
        if node.get("type") not in MIRRORED_TYPES:
            return (
                f"`{HEADER_ANNOTATION}` of `{'.'.join(path)}`, which isn't a string, "
                "integer or boolean"
            )
        if token.lower() in seen_names:
            return f"`{HEADER_ANNOTATION}` {token!r} is there twice"
        seen_names.add(token.lower())
    return ""


def _build_argument_headers(paths: Iterable[tuple[Path, str]], arguments: Any) -> dict[str, str]:
    headers = {}
    for path, token in paths:
        value = _get_at_path(arguments, path)
        if isinstance(value, bool):
            headers[f"Mcp-Param-{token}"] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            headers[f"Mcp-Param-{token}"] = encode_header_value(str(value))
    return headers


def _list_annotated_paths(schema: Any) -> tuple[tuple[Path, str], ...]:
    """Return the paths of mirrored arguments with their header names."""
    annotations = ((path, node.get(HEADER_ANNOTATION)) for path, node in _iterate_schemas(schema))
    return tuple((path, token) for path, token in annotations if path and isinstance(token, str))


_annotated_paths = ObjectIdentityCache(_list_annotated_paths)


def _get_at_path(value: Any, path: Path) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _iterate_schemas(root: Any) -> Iterator[tuple[Path | None, Mapping[str, Any]]]:
    """Yield every schema within `root` with its `properties` path, or None outside of one."""
    pending: list[tuple[Path | None, Any]] = [((), root)]
    while pending:
        path, node = pending.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for keyword, value in node.items():
            if keyword == "properties" and isinstance(value, dict):
                for name, subschema in value.items():
                    pending.append((None if path is None else (*path, name), subschema))
            elif keyword in SINGLE_SCHEMA_KEYWORDS:
                pending.append((None, value))
            elif keyword in SCHEMA_LIST_KEYWORDS and isinstance(value, list):
                pending.extend((None, subschema) for subschema in value)
            elif keyword in SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
                pending.extend((None, subschema) for subschema in value.values())
