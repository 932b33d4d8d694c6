"""MCP requests over HTTP: headers, bounded responses, event streams.

Statuses are kept, responses are bounded (a JSON body by `max_body`, an SSE event by `max_line`, a
whole stream by sixteen bodies), and it is known whether a request was sent at all.

Proxies route on `Mcp-Method`, `Mcp-Name` and, where a tool's schema asks for it with
`x-mcp-header`, on single arguments; a server refuses a request whose headers and body differ.
Rules: MCP 2026-07-28, transports, "Custom Headers".
"""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Self

import httpx2

from bonobot.core.http.egress import BodyAllowance, EgressDenied
from bonobot.core.i18n.messages import format_message
from bonobot.core.object_identity_cache import ObjectIdentityCache
from mcp_servers.client.background_tasks import STREAM_SHARE, ReadThrottle
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import (
    UpstreamError,
    build_connection_error,
    build_egress_error,
    build_header_error,
    build_protocol_error,
    build_rpc_error,
    build_too_large_error,
    build_unreachable_error,
    needs_reauth,
    quote,
)
from mcp_servers.client.jsonrpc import MODERN, McpRequest, UnreadableJson, decode, encode, is_answer

STREAMED = 16  # maximum size of a stream, in bodies
REFUSAL_READ = 64 * 1024
DEFAULT_RETRY_S = 1.0
RESUMES = 8
LATEST_S = 60.0
NOBODY = -1  # never the id of a request
TOO_MANY = 429
BUSY = (TOO_MANY, 502, 503, 504)
REFUSED = (401, 403)
EVENTS = "text/event-stream"

OnEvent = Callable[[str, str], None]
OnMessage = Callable[[dict[str, Any]], Awaitable[None]]


class _RequestBody(httpx2.AsyncByteStream):
    """A request body that records when it is sent: until then it can't have had an effect."""

    def __init__(self, content: bytes, request: McpRequest) -> None:
        self._content = content
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._request.sent = True
        yield self._content


@dataclass
class _ResponseState:
    """What identifies a response, and the position in its event stream."""

    request: McpRequest
    number: int
    on_message: OnMessage
    resumable: bool
    last_id: str = ""
    retry_s: float = DEFAULT_RETRY_S


@dataclass(frozen=True)
class JsonRpcResponse:
    """A JSON-RPC response and its HTTP headers."""

    message: Mapping[str, Any]
    headers: Mapping[str, str]


class HttpChannel:
    """Requests to one endpoint, or to `url`; they fail independently of each other."""

    def __init__(self, endpoint: ServerEndpoint, client: httpx2.AsyncClient, url: str = "") -> None:
        self._endpoint = endpoint
        self._url = url or endpoint.url
        self._client = client
        self._timeout = httpx2.Timeout(None, connect=endpoint.connect_s, pool=endpoint.connect_s)

    async def ask(
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
        heard = _ResponseState(request, message["id"], on_message, resumable)
        answer = await self._attempt("POST", headers, heard, message)
        for _ in range(RESUMES if resumable else 0):
            if answer or not heard.last_id:
                break
            await asyncio.sleep(heard.retry_s)
            again = {**headers, "Last-Event-ID": heard.last_id}
            answer = await self._attempt("GET", again, heard)
        if answer is None:
            raise build_unreachable_error(
                self._endpoint, "it broke off before it had answered", sent=True
            )
        return answer

    async def listen(
        self, headers: Mapping[str, str], on_message: OnMessage, answered: asyncio.Event
    ) -> None:
        """Pass on server messages that belong to no request, until the server refuses.

        `ready` is set once the first stream is open or refused. A stream that ends is reopened,
        with growing pauses while nothing comes.
        """
        heard = _ResponseState(McpRequest("listen"), NOBODY, on_message, resumable=True)
        pause_s = heard.retry_s
        while True:
            last_id = heard.last_id
            again = {**headers, "Last-Event-ID": last_id} if last_id else headers
            try:
                async with self._sent(heard.request, "GET", again) as response:
                    answered.set()
                    await self._answer_in_events(response, heard)
            except UpstreamError as error:
                answered.set()
                if error.http_status is not None:
                    return
            pause_s = heard.retry_s if heard.last_id != last_id else min(2 * pause_s, LATEST_S)
            await asyncio.sleep(pause_s)

    async def follow(
        self, headers: Mapping[str, str], on_message: OnMessage, opened: asyncio.Event
    ) -> None:
        """Pass on server messages that belong to no request, until their stream ends.

        `opened` is set once the headers arrive. Raises `UpstreamError` if the stream is lost or
        refused.
        """
        heard = _ResponseState(McpRequest("listen"), NOBODY, on_message, resumable=False)
        async with self._sent(heard.request, "GET", headers) as response:
            if _get_content_type(response) != EVENTS:
                raise build_protocol_error(self._endpoint, "it opened no stream of events")
            opened.set()
            await self._answer_in_events(response, heard)

    async def events(self, allowance: BodyAllowance, on_event: OnEvent) -> None:
        """Pass on the events of one stream until it ends; `allowance` bounds it."""
        async with self._sent(McpRequest("listen"), "GET", {}, limit=allowance) as response:
            if _get_content_type(response) != EVENTS:
                raise build_protocol_error(self._endpoint, "it opened no stream of events")
            source = httpx2.EventSource(response, max_event_size=self._endpoint.max_line)
            pace = ReadThrottle(STREAM_SHARE)
            async with aclosing(aiter(source)) as events:  # type: ignore[type-var]
                async for event in events:
                    began = perf_counter()
                    on_event(event.event, event.data)
                    await _throttle_reading(pace, began)

    async def tell(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Send a notification or one of our responses."""
        async with self._sent(McpRequest("tell"), "POST", headers, message):
            pass

    async def delete(self, headers: Mapping[str, str]) -> None:
        """Tell the server that a session has ended."""
        async with self._sent(McpRequest("end"), "DELETE", headers):
            pass

    async def _attempt(
        self,
        verb: str,
        headers: Mapping[str, str],
        heard: _ResponseState,
        message: Mapping[str, Any] | None = None,
    ) -> JsonRpcResponse | None:
        try:
            async with self._sent(heard.request, verb, headers, message) as response:
                found = await self._answer(response, heard)
                return JsonRpcResponse(found, response.headers) if found else None
        except UpstreamError as error:
            if heard.resumable and heard.last_id and error.code == "server_unreachable":
                return None
            raise

    @asynccontextmanager
    async def _sent(
        self,
        request: McpRequest,
        verb: str,
        headers: Mapping[str, str],
        message: Mapping[str, Any] | None = None,
        limit: BodyAllowance | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        """Yield a successful response; every HTTP failure becomes `UpstreamError`."""
        endpoint = self._endpoint
        own = {"Accept": "application/json, text/event-stream", **headers}
        body = None
        if message:
            content = encode(message)
            own |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
            body = _RequestBody(content, request)
        try:
            async with self._client.stream(
                verb,
                self._url,
                content=body,
                headers=own,
                timeout=self._timeout,
                extensions={"max_body": limit or STREAMED * endpoint.max_body},
            ) as response:
                await self._accept(response)
                yield response
        except EgressDenied as refusal:
            raise build_egress_error(endpoint, refusal, sent=request.sent) from refusal
        except httpx2.SSEError as error:
            raise build_too_large_error(endpoint, endpoint.max_line) from error
        except httpx2.LocalProtocolError as error:  # its message may quote a credential
            raise build_header_error(endpoint) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise build_connection_error(endpoint, error, sent=request.sent) from error

    async def _accept(self, response: httpx2.Response) -> None:
        """Raise `UpstreamError` for a status outside 2xx."""
        status, endpoint = response.status_code, self._endpoint
        if status < 300:
            return
        if status in REFUSED:
            raise needs_reauth(endpoint, status, response.headers.get("www-authenticate", ""))
        text = await read_body(response, REFUSAL_READ) or b""
        error = _parse_rpc_error(text)
        if error is not None:
            raise build_rpc_error(endpoint, error, status)
        if status in BUSY:
            raise build_unreachable_error(
                endpoint,
                format_message("it answered with HTTP {status}", status=status),
                sent=status != TOO_MANY,  # rejected unread
                http_status=status,
                retry_after=retry_after(response.headers.get("retry-after")),
                remedy="Try again later.",
            )
        plain = "html" not in response.headers.get("content-type", "html")
        said = quote(endpoint, text.decode("utf-8", "replace"), 200) if plain else ""
        raise UpstreamError(
            format_message(
                "`{endpoint}` answered with HTTP {status}", endpoint=endpoint.name, status=status
            )
            + (f": {said}" if said else "."),
            code="protocol_error" if status < 500 else "upstream_error",
            server=endpoint.name,
            http_status=status,
            remedy="Check the URL of the server."
            if status < 500
            else "Try again later; the server's own log says what went wrong there.",
        )

    async def _answer(
        self, response: httpx2.Response, heard: _ResponseState
    ) -> dict[str, Any] | None:
        """Return the expected response; None if the stream ended without it."""
        kind = _get_content_type(response)
        if kind == EVENTS:
            return await self._answer_in_events(response, heard)
        if kind != "application/json":
            raise build_protocol_error(
                self._endpoint,
                format_message(
                    "it answered with {quote}", quote=quote(self._endpoint, kind, 80) or "nothing"
                ),
                remedy="Check the URL: this may be a web page rather than an MCP endpoint.",
            )
        body = await read_body(response, self._endpoint.max_body)
        if body is None:
            raise build_too_large_error(self._endpoint, self._endpoint.max_body)
        message = self._decoded(body)
        if not is_answer(message, heard.number):
            raise build_protocol_error(self._endpoint, "an answer that was not asked for")
        return message

    async def _answer_in_events(
        self, response: httpx2.Response, heard: _ResponseState
    ) -> dict[str, Any] | None:
        source = httpx2.EventSource(response, max_event_size=self._endpoint.max_line)
        pace = ReadThrottle(STREAM_SHARE)
        async with aclosing(aiter(source)) as events:  # type: ignore[type-var]
            async for event in events:
                began = perf_counter()
                heard.last_id = event.id or heard.last_id
                if event.retry is not None:
                    heard.retry_s = min(event.retry / 1000, self._endpoint.read_s)
                message: Any = None
                if event.event == "message" and event.data:
                    message = self._decoded(event.data.encode("utf-8", "replace"))
                if is_answer(message, heard.number):
                    return message
                await _throttle_reading(pace, began)
                if isinstance(message, dict):
                    await heard.on_message(message)
        return None

    def _decoded(self, raw: bytes) -> Any:
        try:
            return decode(raw)
        except UnreadableJson as error:
            raise build_protocol_error(self._endpoint, str(error)) from None


async def _throttle_reading(pace: ReadThrottle, began: float) -> None:
    """Count the work on one event, and pause reading if the stream takes too much time.

    Buffered events arrive without waiting: many of them would block the loop.
    """
    now = perf_counter()
    if pause_s := pace.spent(now - began, now):
        await asyncio.sleep(pause_s)


def _get_content_type(response: httpx2.Response) -> str:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


async def read_body(response: httpx2.Response, limit: int) -> bytes | None:
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
        message = decode(body)
    except UnreadableJson:
        return None
    error = message.get("error") if isinstance(message, dict) else None
    return error if isinstance(error, dict) else None


def retry_after(header: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header; dates are not supported."""
    return float(header) if header and header.isdecimal() and len(header) < 6 else None


ANNOTATION = "x-mcp-header"
NAMED_BY = {
    **{"tools/call": "name", "prompts/get": "name", "resources/read": "uri"},
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId"),
}
MIRRORED_TYPES = ("string", "integer", "boolean")  # a float has no unique spelling

TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
PLAIN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?|")
SENTINEL = re.compile(r"=\?base64\?.*\?=")

# Keywords of JSON Schema 2020-12 whose value is a schema, a list or a map of schemas.
ONE = (
    *("items", "contains", "not", "if", "then", "else", "additionalProperties", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED = ("patternProperties", "dependentSchemas", "$defs", "definitions")

Path = tuple[str, ...]


def build_routing_headers(request: McpRequest) -> dict[str, str]:
    """Return the headers that mirror fields of `request`."""
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": request.method}
    name = request.params.get(NAMED_BY.get(request.method, ""))
    if isinstance(name, str):
        headers["Mcp-Name"] = encode_header_value(name)
    if request.method == "tools/call" and request.input_schema:
        headers |= _build_argument_headers(request.input_schema, request.params.get("arguments"))
    return headers


def encode_header_value(value: str) -> str:
    """Return `value` encoded for a header: base64 unless it is plain ASCII."""
    if PLAIN.fullmatch(value) and not SENTINEL.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode('ascii')}?="


def validate_header_annotations(schema: Any) -> str:
    """Return what is wrong with a schema's `x-mcp-header` annotations, or ""."""
    seen: set[str] = set()
    for path, node in _iterate_schemas(schema):
        if ANNOTATION not in node:
            continue
        token = node[ANNOTATION]
        if not path:
            return f"`{ANNOTATION}` where no plain property is"
        if not isinstance(token, str) or not TOKEN.fullmatch(token):
            return f"`{ANNOTATION}` of `{'.'.join(path)}` is not a header's name"
        if node.get("type") not in MIRRORED_TYPES:
            return f"`{ANNOTATION}` of `{'.'.join(path)}`, which is no string, integer or boolean"
        if token.lower() in seen:
            return f"`{ANNOTATION}` {token!r} is there twice"
        seen.add(token.lower())
    return ""


def _build_argument_headers(schema: Mapping[str, Any], arguments: Any) -> dict[str, str]:
    headers = {}
    for path, token in _mirrored.of(schema):
        value = _get_at_path(arguments, path)
        if isinstance(value, bool):
            headers[f"Mcp-Param-{token}"] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            headers[f"Mcp-Param-{token}"] = encode_header_value(str(value))
    return headers


def _list_annotated_paths(schema: Any) -> tuple[tuple[Path, str], ...]:
    """Return the paths of mirrored arguments with their header names."""
    found = ((path, node.get(ANNOTATION)) for path, node in _iterate_schemas(schema))
    return tuple((path, token) for path, token in found if path and isinstance(token, str))


_mirrored = ObjectIdentityCache(_list_annotated_paths)


def _get_at_path(value: Any, path: Path) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _iterate_schemas(root: Any) -> Iterator[tuple[Path | None, Mapping[str, Any]]]:
    """Yield every schema within `root` with its `properties` path, or None outside of one."""
    left: list[tuple[Path | None, Any]] = [((), root)]
    while left:
        path, node = left.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for keyword, value in node.items():
            if keyword == "properties" and isinstance(value, dict):
                for name, inner in value.items():
                    left.append((None if path is None else (*path, name), inner))
            elif keyword in ONE:
                left.append((None, value))
            elif keyword in SEVERAL and isinstance(value, list):
                left.extend((None, inner) for inner in value)
            elif keyword in NAMED and isinstance(value, dict):
                left.extend((None, inner) for inner in value.values())


class IdleTracker:
    """Tracks whether it is in use, and when it was last used."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.used_at = clock()
        self._clock = clock
        self._users = 0

    @property
    def busy(self) -> bool:
        """Return whether it is in use."""
        return self._users > 0

    @contextmanager
    def used(self) -> Iterator[Self]:
        """Mark it as in use inside the block, so it is not closed as idle."""
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1
            self.used_at = self._clock()
