"""The channel: one POST to one Streamable HTTP endpoint, and what comes back on it.

Statuses are kept, answers are read raw and bounded (a JSON body by `max_body`, an SSE event by
`max_line`, a whole stream by sixteen bodies), and whether a request left us at all is known.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import httpx2

from bonobot.lib.egress import Allowance, EgressDenied
from bonobot.lib.sayings import say
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.errors import (
    UpstreamError,
    bad_headers,
    denied,
    needs_reauth,
    not_reached,
    protocol_error,
    quote,
    rpc_error,
    too_large,
    unreachable,
)
from mcp_servers.connections.pacing import STREAM_SHARE, Pace
from mcp_servers.connections.wire import Request, Unreadable, decode, encode, is_answer

STREAMED = 16  # bodies' worth of events on one stream
REFUSAL_READ = 64 * 1024
DEFAULT_RETRY_S = 1.0
RESUMES = 8
LATEST_S = 60.0
NOBODY = -1  # the number of no request
TOO_MANY = 429
BUSY = (TOO_MANY, 502, 503, 504)
REFUSED = (401, 403)
EVENTS = "text/event-stream"

OnEvent = Callable[[str, str], None]
OnMessage = Callable[[dict[str, Any]], Awaitable[None]]


class _Body(httpx2.AsyncByteStream):
    """A request body that notes when it is taken: until then nothing can have happened."""

    def __init__(self, content: bytes, request: Request) -> None:
        self._content = content
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._request.sent = True
        yield self._content


@dataclass
class _Heard:
    """What an answer is recognised by, and where its stream of events stands."""

    request: Request
    number: int
    on_message: OnMessage
    resumable: bool
    last_id: str = ""
    retry_s: float = DEFAULT_RETRY_S


@dataclass(frozen=True)
class Answer:
    """A JSON-RPC answer and the headers that it came with."""

    message: Mapping[str, Any]
    headers: Mapping[str, str]


class Channel:
    """POSTs to one endpoint, or to `url`; a failure of one request touches no other."""

    def __init__(self, endpoint: Endpoint, client: httpx2.AsyncClient, url: str = "") -> None:
        self._endpoint = endpoint
        self._url = url or endpoint.url
        self._client = client
        self._timeout = httpx2.Timeout(None, connect=endpoint.connect_s, pool=endpoint.connect_s)

    async def ask(
        self,
        request: Request,
        message: Mapping[str, Any],
        headers: Mapping[str, str],
        on_message: OnMessage,
        *,
        resumable: bool = False,
    ) -> Answer:
        """Send a request and return its answer; what else comes on its stream is handed on.

        A resumable stream that was cut is taken up again after its last event. Waits for ever:
        deadlines are callers'. Leaving early closes the stream, which cancels at the server.
        """
        heard = _Heard(request, message["id"], on_message, resumable)
        answer = await self._attempt("POST", headers, heard, message)
        for _ in range(RESUMES if resumable else 0):
            if answer or not heard.last_id:
                break
            await asyncio.sleep(heard.retry_s)
            again = {**headers, "Last-Event-ID": heard.last_id}
            answer = await self._attempt("GET", again, heard)
        if answer is None:
            raise unreachable(self._endpoint, "it broke off before it had answered", sent=True)
        return answer

    async def listen(
        self, headers: Mapping[str, str], on_message: OnMessage, answered: asyncio.Event
    ) -> None:
        """Hand on what the server says outside of any answer, until it refuses to.

        `answered` is set once the first stream is open, or refused. A stream that ends is taken
        up again, ever later while nothing comes.
        """
        heard = _Heard(Request("listen"), NOBODY, on_message, resumable=True)
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
        """Hand on what the server says outside of any answer, until that stream ends.

        `opened` is set once its headers are there. Raises `UpstreamError` where it breaks off, or
        is refused.
        """
        heard = _Heard(Request("listen"), NOBODY, on_message, resumable=False)
        async with self._sent(heard.request, "GET", headers) as response:
            if _kind(response) != EVENTS:
                raise protocol_error(self._endpoint, "it opened no stream of events")
            opened.set()
            await self._answer_in_events(response, heard)

    async def events(self, allowance: Allowance, on_event: OnEvent) -> None:
        """Hand on the events of one stream until it ends; `allowance` bounds it."""
        async with self._sent(Request("listen"), "GET", {}, limit=allowance) as response:
            if _kind(response) != EVENTS:
                raise protocol_error(self._endpoint, "it opened no stream of events")
            source = httpx2.EventSource(response, max_event_size=self._endpoint.max_line)
            pace = Pace(STREAM_SHARE)
            async with aclosing(aiter(source)) as events:  # type: ignore[type-var]
                async for event in events:
                    began = perf_counter()
                    on_event(event.event, event.data)
                    await _paced(pace, began)

    async def tell(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Send a notification, or an answer of ours; nothing comes back."""
        async with self._sent(Request("tell"), "POST", headers, message):
            pass

    async def delete(self, headers: Mapping[str, str]) -> None:
        """Tell the server that a session is over."""
        async with self._sent(Request("end"), "DELETE", headers):
            pass

    async def _attempt(
        self,
        verb: str,
        headers: Mapping[str, str],
        heard: _Heard,
        message: Mapping[str, Any] | None = None,
    ) -> Answer | None:
        try:
            async with self._sent(heard.request, verb, headers, message) as response:
                found = await self._answer(response, heard)
                return Answer(found, response.headers) if found else None
        except UpstreamError as error:
            if heard.resumable and heard.last_id and error.code == "server_unreachable":
                return None
            raise

    @asynccontextmanager
    async def _sent(
        self,
        request: Request,
        verb: str,
        headers: Mapping[str, str],
        message: Mapping[str, Any] | None = None,
        limit: Allowance | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        """Yield an accepted response; everything that HTTP can do wrong becomes `UpstreamError`."""
        endpoint = self._endpoint
        own = {"Accept": "application/json, text/event-stream", **headers}
        body = None
        if message:
            content = encode(message)
            own |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
            body = _Body(content, request)
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
            raise denied(endpoint, refusal, sent=request.sent) from refusal
        except httpx2.SSEError as error:
            raise too_large(endpoint, endpoint.max_line) from error
        except httpx2.LocalProtocolError as error:  # whose text may quote a credential
            raise bad_headers(endpoint) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise not_reached(endpoint, error, sent=request.sent) from error

    async def _accept(self, response: httpx2.Response) -> None:
        """Raise what a status outside 2xx means."""
        status, endpoint = response.status_code, self._endpoint
        if status < 300:
            return
        if status in REFUSED:
            raise needs_reauth(endpoint, status, response.headers.get("www-authenticate", ""))
        text = await read_body(response, REFUSAL_READ) or b""
        error = _rpc_error_in(text)
        if error is not None:
            raise rpc_error(endpoint, error, status)
        if status in BUSY:
            raise unreachable(
                endpoint,
                say("it answered with HTTP {status}", status=status),
                sent=status != TOO_MANY,  # which is said without having looked
                http_status=status,
                retry_after=retry_after(response.headers.get("retry-after")),
                remedy="Try again later.",
            )
        plain = "html" not in response.headers.get("content-type", "html")
        said = quote(endpoint, text.decode("utf-8", "replace"), 200) if plain else ""
        raise UpstreamError(
            say("`{endpoint}` answered with HTTP {status}", endpoint=endpoint.name, status=status)
            + (f": {said}" if said else "."),
            code="protocol_error" if status < 500 else "upstream_error",
            server=endpoint.name,
            http_status=status,
            remedy="Check the URL of the server."
            if status < 500
            else "Try again later; the server's own log says what went wrong there.",
        )

    async def _answer(self, response: httpx2.Response, heard: _Heard) -> dict[str, Any] | None:
        """Return the answer that is waited for; None when the stream ended without it."""
        kind = _kind(response)
        if kind == EVENTS:
            return await self._answer_in_events(response, heard)
        if kind != "application/json":
            raise protocol_error(
                self._endpoint,
                say("it answered with {quote}", quote=quote(self._endpoint, kind, 80) or "nothing"),
                remedy="Check the URL: this may be a web page rather than an MCP endpoint.",
            )
        body = await read_body(response, self._endpoint.max_body)
        if body is None:
            raise too_large(self._endpoint, self._endpoint.max_body)
        message = self._decoded(body)
        if not is_answer(message, heard.number):
            raise protocol_error(self._endpoint, "an answer that was not asked for")
        return message

    async def _answer_in_events(
        self, response: httpx2.Response, heard: _Heard
    ) -> dict[str, Any] | None:
        source = httpx2.EventSource(response, max_event_size=self._endpoint.max_line)
        pace = Pace(STREAM_SHARE)
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
                await _paced(pace, began)
                if isinstance(message, dict):
                    await heard.on_message(message)
        return None

    def _decoded(self, raw: bytes) -> Any:
        try:
            return decode(raw)
        except Unreadable as error:
            raise protocol_error(self._endpoint, str(error)) from None


async def _paced(pace: Pace, began: float) -> None:
    """Count the work on one event, and leave the stream lying while it asks for too much of it.

    Events that are there already come without a wait: a stream of them would hold the loop.
    """
    now = perf_counter()
    if pause_s := pace.spent(now - began, now):
        await asyncio.sleep(pause_s)


def _kind(response: httpx2.Response) -> str:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


async def read_body(response: httpx2.Response, limit: int) -> bytes | None:
    """Return the body; None when it is longer than `limit` bytes."""
    parts, size = [], 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


def _rpc_error_in(body: bytes) -> Any:
    try:
        message = decode(body)
    except Unreadable:
        return None
    error = message.get("error") if isinstance(message, dict) else None
    return error if isinstance(error, dict) else None


def retry_after(header: str | None) -> float | None:
    """Return the seconds of a `Retry-After`; dates are not read."""
    return float(header) if header and header.isdecimal() and len(header) < 6 else None
