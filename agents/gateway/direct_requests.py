"""Answer the most frequent modern requests without the SDK's session manager and runner.

Only a request that the SDK would dispatch is answered here, with the same response. Every other
one, and so each invalid one, is left to the SDK, which rejects it; that is decided before anything
is executed. The checks are the SDK's own functions. A request that asks for progress notifications
or log messages is left to the SDK, too.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import Any

from mcp.server.streamable_http import check_accept_headers
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundModernRoute,
    classify_inbound_request,
    validate_mcp_param_headers,
    x_mcp_header_map,
)
from mcp.types import JSONRPCError, JSONRPCResponse
from starlette.requests import Request

from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.catalog import DeclarationPage
from agents.gateway.client_request import LOG_LEVEL_KEY
from agents.gateway.dispatcher import find_input_schema
from agents.gateway.request_bodies import Receive, Send, parse_object
from bonobot.core.records import record
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import to_compact_json
from mcp_servers.client.jsonrpc import encode_message
from mcp_servers.client.protocol_versions import MODERN_VERSION

# Methods whose result may have pages of declarations.
LISTS = frozenset({"tools/list"})
# The parameters of each method that is answered here.
PARAMS_BY_METHOD = {
    "tools/call": frozenset({"_meta", "name", "arguments", "inputResponses", "requestState"}),
    "tools/list": frozenset({"_meta", "cursor"}),
    "resources/read": frozenset({"_meta", "uri", "inputResponses", "requestState"}),
}
ENVELOPE_FIELDS = frozenset({"jsonrpc", "id", "method", "params"})
# A request that asks for one of these is answered with a stream of notifications.
STREAM_META_KEYS = frozenset({"progressToken", LOG_LEVEL_KEY})
PARAM_HEADER_PREFIX = "mcp-param-"
CHECKED_HEADERS = ("content-type", "host", "origin", "accept")
MAX_CACHED_HEADERS = 256
MAX_CACHED_HEADER_LENGTH = 512
# Most calls end before a task that waits for the client's disconnection would pay off.
WATCH_DELAY_S = 0.05
# As the SDK: a response that takes this long becomes a stream, and gets a comment this often.
PING_INTERVAL_S = 15.0
PING = b": ping\r\n\r\n"
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]

Answer = Callable[
    [AuthenticatedClient, str, Mapping[str, Any], int | str], Awaitable[dict[str, Any]]
]


@record()
class DirectRequest:
    """A valid request of a method that is answered here."""

    id: int | str
    method: str
    params: dict[str, Any]


def parse_direct_request(headers: Mapping[str, str], body: bytes) -> DirectRequest | None:
    """Return the request of a body; None if the SDK has to answer it."""
    message = parse_object(body)
    if message is None or message.keys() != ENVELOPE_FIELDS or message["jsonrpc"] != "2.0":
        return None
    request_id, method, params = message["id"], message["method"], message["params"]
    if type(request_id) not in (int, str) or not isinstance(params, dict):
        return None
    known_params = PARAMS_BY_METHOD.get(method) if isinstance(method, str) else None
    if known_params is None or not params.keys() <= known_params:
        return None
    if not isinstance(classify_inbound_request(message, headers=headers), InboundModernRoute):
        return None
    if not STREAM_META_KEYS.isdisjoint(params["_meta"]):
        return None
    return DirectRequest(request_id, method, params)


class DirectResponder:
    """Answers requests with `answer`, which returns their results and raises `MCPError`.

    `build_settings` returns the allowed hosts and origins.
    """

    def __init__(
        self, answer: Answer, build_settings: Callable[[], TransportSecuritySettings]
    ) -> None:
        self._answer = answer
        self._build_settings = build_settings
        # Values of `CHECKED_HEADERS` that passed the SDK's checks.
        self._accepted_headers: set[tuple[str | None, ...]] = set()
        # Responses whose clients aren't watched yet: since the timer's last look, and before it.
        self._running: list[_Response] = []
        self._slow: list[_Response] = []
        self._timer: asyncio.TimerHandle | None = None

    async def accept_request(
        self,
        caller: AuthenticatedClient,
        headers: Mapping[str, str],
        body: bytes,
    ) -> DirectRequest | None:
        """Return the request to answer; None if the SDK has to."""
        request = parse_direct_request(headers, body)
        if request is None or not has_valid_parameter_headers(caller, request, headers):
            return None
        values = tuple(map(headers.get, CHECKED_HEADERS))
        if values not in self._accepted_headers and not await self._accept_headers(values):
            return None
        return request

    async def respond(
        self, caller: AuthenticatedClient, request: DirectRequest, receive: Receive, send: Send
    ) -> None:
        """Answer a request; if the client disconnects, its handler is canceled."""
        response = _Response(receive, send)
        self._watch_later(response)
        try:
            try:
                result = await self._answer(caller, request.method, request.params, request.id)
            except MCPError as error:
                failure = JSONRPCError(jsonrpc="2.0", id=request.id, error=error.error)
                status = ERROR_CODE_HTTP_STATUS.get(error.error.code, HTTPStatus.OK)
                await response.finish(status, _encode_with_sdk(failure))
            else:
                await response.finish(200, _encode_result(request, result))
        except asyncio.CancelledError:
            if not response.is_disconnected or response.task.uncancel() > 0:
                raise
        finally:
            response.stop()

    def _watch_later(self, response: "_Response") -> None:
        """Watch the client of a response that takes long; one timer serves all of them."""
        self._running.append(response)
        if self._timer is None:
            self._timer = get_runtime().loop.call_later(WATCH_DELAY_S, self._watch_slow_responses)

    def _watch_slow_responses(self) -> None:
        """Watch the clients of responses that already ran at the last look; look again later."""
        for response in self._slow:
            response.start_watching()
        self._slow = [response for response in self._running if not response.is_finished]
        self._running.clear()
        self._timer = None
        if self._slow:
            self._timer = get_runtime().loop.call_later(WATCH_DELAY_S, self._watch_slow_responses)

    @cached_property
    def _security(self) -> TransportSecurityMiddleware:
        return TransportSecurityMiddleware(self._build_settings())

    async def _accept_headers(self, values: tuple[str | None, ...]) -> bool:
        """Tell whether the SDK accepts a request's content type, host, origin and media types."""
        fields = [
            (name.encode(), value.encode("latin-1"))
            for name, value in zip(CHECKED_HEADERS, values, strict=True)
            if value is not None
        ]
        request = Request({"type": "http", "headers": fields})
        if not all(check_accept_headers(request)):
            return False
        if await self._security.validate_request(request, is_post=True) is not None:
            return False
        if sum(len(value) for _, value in fields) <= MAX_CACHED_HEADER_LENGTH:
            if len(self._accepted_headers) >= MAX_CACHED_HEADERS:
                self._accepted_headers.clear()
            self._accepted_headers.add(values)
        return True


def is_direct_candidate(headers: Mapping[str, str], fields: Sequence[tuple[bytes, bytes]]) -> bool:
    """Tell from a POST request's headers whether it may be answered here.

    A header that is sent twice is left to the SDK: `headers` has one of its values.
    """
    return (
        headers.get("mcp-protocol-version") == MODERN_VERSION
        and headers.get("mcp-method") in PARAMS_BY_METHOD
        and len(headers) == len(fields)
    )


def has_valid_parameter_headers(
    caller: AuthenticatedClient, request: DirectRequest, headers: Mapping[str, str]
) -> bool:
    """Tell whether the headers that mirror a tool's arguments agree with them."""
    name, arguments = request.params.get("name"), request.params.get("arguments")
    if request.method != "tools/call" or not isinstance(name, str):
        return True
    if arguments is not None and not isinstance(arguments, dict):
        return True  # the handler rejects it
    if not arguments and not any(header.startswith(PARAM_HEADER_PREFIX) for header in headers):
        return True
    snapshot, view = caller.target.find_cached_snapshot(), caller.target.view
    memo: dict[object, Any] = snapshot.memo if snapshot is not None else {}
    key = "tools without header parameters", view
    plain_names: set[str] = memo.setdefault(key, set())
    if name in plain_names:
        return True
    schema = find_input_schema(caller, name)
    if schema is None:
        return True
    if not x_mcp_header_map(schema):
        plain_names.add(name)
        return True
    return validate_mcp_param_headers(schema, arguments or {}, headers) is None


class _Response:
    """The response to the request of the current task.

    If it takes long, the client's disconnection cancels the task, and later the response becomes a
    stream of events, with comments so that no proxy closes it.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - requests are handled in tasks
        self.task = task
        self.is_disconnected = False
        self._receive = receive
        self._send = send
        self._is_stream = False
        self.is_finished = False
        self._watching: asyncio.Task[None] | None = None

    async def finish(self, status: int, content: bytes) -> None:
        """Send the JSON of the response; a stream's status has been sent."""
        self.stop()
        if self._watching is not None:
            await asyncio.wait({self._watching})
        if self._is_stream:
            content = b"event: message\r\ndata: " + content + b"\r\n\r\n"
        else:
            headers = [
                (b"content-length", str(len(content)).encode()),
                (b"content-type", b"application/json"),
            ]
            await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": content, "more_body": False})

    def stop(self) -> None:
        """Stop watching the client."""
        self.is_finished = True
        if self._watching is not None:
            self._watching.cancel()

    def start_watching(self) -> None:
        """Watch the client, unless the response has ended."""
        if not self.is_finished:
            self._watching = get_runtime().create_task(self._watch(), name="watch a client")

    async def _watch(self) -> None:
        while not self.is_disconnected:
            try:
                async with asyncio.timeout(PING_INTERVAL_S):
                    message = await self._receive()
            except TimeoutError:
                await self._ping()
            else:
                self.is_disconnected = message["type"] == "http.disconnect"
        self.task.cancel()

    async def _ping(self) -> None:
        if not self._is_stream:
            self._is_stream = True
            await self._start(HTTPStatus.OK, STREAM_HEADERS)
        await self._send({"type": "http.response.body", "body": PING, "more_body": True})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def _encode_result(request: DirectRequest, result: dict[str, Any]) -> bytes:
    """Return the JSON of a response, as the SDK writes it."""
    request_id = request.id
    try:
        if request.method not in LISTS:
            return encode_message({"jsonrpc": "2.0", "id": request_id, "result": result})
        # A long page is copied once.
        parts = [b'{"jsonrpc":"2.0","id":%b,"result":{' % _encode_value(request_id)]
        for name, value in result.items():
            parts += (b"," if len(parts) > 1 else b"", _encode_value(name), b":")
            parts.append(
                value.encoded if isinstance(value, DeclarationPage) else _encode_value(value)
            )
        return b"".join((*parts, b"}}"))
    except (TypeError, ValueError):  # what JSON doesn't have, the SDK replaces
        return _encode_with_sdk(JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result))


def _encode_value(value: Any) -> bytes:
    return to_compact_json(value).encode("ascii")


def _encode_with_sdk(message: JSONRPCResponse | JSONRPCError) -> bytes:
    fields = message.model_dump(mode="json", by_alias=True, exclude_none=True)
    return json.dumps(fields, separators=(",", ":")).encode()
