"""An HTTP client for frequent requests: HTTP/1.1 over persistent connections of the egress guard.

It does less than httpx2: the body of a request is given as bytes, and nothing follows redirects or
signs requests. A request is written once: it is never repeated on another connection, since the
server may have seen it.

Responses are parsed while they arrive. httptools (llhttp) refuses what proxies and servers read
differently: a length together with a transfer coding, repeated lengths, broken chunks, bare line
feeds, folded headers. This module refuses other protocols and transfer codings, and bounds the
head, the framing, and the body.
"""

import asyncio
import re
import select
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from time import monotonic
from typing import cast

import httptools
import httpx2
from django.conf import settings

from bonobot.core.http.connection_errors import build_connection_error, build_not_http_error
from bonobot.core.http.egress import (
    KEEP_ALIVE_S,
    MAX_CONNECTIONS,
    BodyAllowance,
    GuardedBackend,
    build_ssl_context,
    build_too_large_error,
    check_response,
    check_url,
    convert_httpcore_errors,
)
from bonobot.core.http.network_backend import NO_RESPONSE, AsyncioNetworkStream
from bonobot.core.http.well_known import build_origin
from bonobot.core.runtime import DirectFuture

# As many as can be in use: calls that share a commit end together, and their clients' next calls
# start together.
MAX_IDLE_CONNECTIONS = MAX_CONNECTIONS
HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
HEADER_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
# Of a body that isn't read to its end: bytes and seconds to wait for it, before closing.
MAX_UNREAD_BYTES = 64 * 1024
MAX_UNREAD_S = 1.0
# Set by the client alone.
OWN_HEADERS = frozenset({"connection", "content-length", "host", "transfer-encoding"})
# Headers of most requests, whose lines are kept. Their values are never credentials.
REPEATED_HEADERS = frozenset(
    {"Accept", "Content-Type", "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"}
)


PROTOCOL = b"HTTP/1."
# Bytes of a head, or of the framing between two parts of a body.
MAX_HEAD_BYTES = 100 * 1024
MAX_HEADERS = 256
TOO_MANY_HEADERS = f"its headers exceed {MAX_HEADERS} lines or {MAX_HEAD_BYTES} bytes"
# Bytes to buffer before reading from the socket is paused.
READ_BUFFER_BYTES = 256 * 1024
SWITCHING_PROTOCOLS = 101
BODILESS_STATUSES = (SWITCHING_PROTOCOLS, 204, 304)


class StreamedResponse:
    """The response to one request: its status and headers, then its body.

    Header names are in lower case; the values of repeated headers are joined.
    """

    def __init__(self, transport: asyncio.Transport, allowance: BodyAllowance) -> None:
        self.status_code = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False
        # Whether nothing more is read: it is complete, or has failed.
        self.is_ended = False
        # Whether the connection can have another request after this response.
        self.keeps_alive = False
        self._transport = transport
        self._allowance = allowance
        self._parser = httptools.HttpResponseParser(self)
        self._error: Exception | None = None
        self._has_head = False
        self._ends_with_connection = False
        self._prefix = b""
        self._header_count = 0
        self._header_bytes = 0
        # Bytes received since the head began, or since the last part of the body.
        self._framing_bytes = 0
        self._parts: list[bytes] = []
        self.buffered_bytes = 0  # of `_parts`
        self._is_paused = False
        self._is_discarded = False
        self._waiter: DirectFuture[None] | None = None

    async def wait_for_head(self) -> None:
        """Wait for the status and the headers; raises `httpx2.TransportError`."""
        while not self._has_head:
            if self._error is not None:
                raise self._error
            self._waiter = DirectFuture()
            await self._waiter

    async def read(self, limit: int) -> bytes | None:
        """Return the rest of the body; None if it is longer than `limit` bytes.

        Raises as `aiter_raw`.
        """
        parts, size = [], 0
        while not (self.is_complete and not self._parts):
            if self._parts:
                part = self._take_parts()
                size += len(part)
                if size > limit:
                    return None
                parts.append(part)
            elif self._error is not None:
                raise self._error
            else:
                self._waiter = DirectFuture()
                await self._waiter
        return b"".join(parts)

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body; raises `EgressDenied` or `httpx2.TransportError`."""
        while True:
            if self._parts:
                yield self._take_parts()
            elif self._error is not None:
                raise self._error
            elif self.is_complete:
                return
            else:
                self._waiter = DirectFuture()
                await self._waiter

    def discard(self, max_bytes: int) -> None:
        """Drop the rest of the body, which fails if it is longer than `max_bytes`."""
        self._is_discarded = True
        self._allowance = BodyAllowance(max_bytes)
        if self._parts:
            self._take_parts()

    def wake_reader(self) -> None:
        """Let the task that reads run on if there is something to read, after `feed` or `end`.

        It runs at once, so this is the last step of a protocol's method.
        """
        if self._waiter is None or not (self._parts or self._has_head or self.is_ended):
            return
        waiter, self._waiter = self._waiter, None
        if not waiter.done():
            waiter.resume_with(None)

    def feed(self, data: bytes) -> None:
        """Parse received bytes."""
        if self.is_ended:
            self.keeps_alive = False  # nothing was requested
            return
        if self._prefix != PROTOCOL:
            data, self._prefix = self._prefix + data, (self._prefix + data)[: len(PROTOCOL)]
            if not PROTOCOL.startswith(self._prefix):
                self._fail(build_not_http_error(httpx2.RemoteProtocolError))
            if self._error or len(self._prefix) < len(PROTOCOL):
                return
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.keeps_alive = False
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__  # what a callback has raised
            self._fail(cause if isinstance(cause, Exception) else error)
        except httptools.HttpParserError:
            self._fail(build_not_http_error(httpx2.RemoteProtocolError))
        if self._framing_bytes > MAX_HEAD_BYTES:
            self._fail(httpx2.RemoteProtocolError(TOO_MANY_HEADERS))
        if self.buffered_bytes >= READ_BUFFER_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def end(self, error: Exception | None) -> None:
        """Record that the connection has ended, with `error` or because the server closed it."""
        self.keeps_alive = False
        if self.is_ended:
            return
        if error is not None:
            self._fail(build_connection_error(httpx2.ReadError, error))
        elif not self._has_head:
            self._fail(httpx2.RemoteProtocolError(NO_RESPONSE))
        elif self._ends_with_connection:
            self.is_complete = self.is_ended = True
        else:
            self._fail(
                httpx2.RemoteProtocolError(
                    "peer closed connection without sending complete message body"
                )
            )

    # --- callbacks of the parser

    def on_message_begin(self) -> None:
        """Stop at a second response, which wasn't requested."""
        if self.is_complete:
            raise build_not_http_error(httpx2.RemoteProtocolError)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; those that follow the body are dropped."""
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        if self._header_count > MAX_HEADERS or self._header_bytes > MAX_HEAD_BYTES:
            raise httpx2.RemoteProtocolError(TOO_MANY_HEADERS)
        if self._has_head:
            return
        key, text = name.decode("ascii").lower(), value.decode("latin-1").strip(" \t")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        """Check the framing of the body; the head of an interim response is dropped."""
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != SWITCHING_PROTOCOLS:
            self.headers.clear()
            self._header_count = self._header_bytes = self._framing_bytes = 0
            return
        version, coding = self._parser.get_http_version(), self.headers.get("transfer-encoding")
        # HTTP/1.0 has no transfer codings: a proxy of that version doesn't see the end.
        is_framed = coding is None or (version == "1.1" and coding.lower() == "chunked")
        if status < 100 or version not in ("1.0", "1.1") or not is_framed:
            raise build_not_http_error(httpx2.RemoteProtocolError)
        self.status_code = status
        self._ends_with_connection = (
            coding is None
            and "content-length" not in self.headers
            and status not in BODILESS_STATUSES
        )
        self._has_head = True

    def on_body(self, part: bytes) -> None:
        self._framing_bytes = 0
        allowance = self._allowance
        allowance.used_bytes += len(part)
        if allowance.used_bytes > allowance.limit:
            raise build_too_large_error(allowance.limit)
        if not self._is_discarded:
            self._parts.append(part)
            self.buffered_bytes += len(part)

    def on_message_complete(self) -> None:
        if self._has_head and not self.is_complete:
            self.keeps_alive = self._parser.should_keep_alive()
            self.is_complete = self.is_ended = True

    def _take_parts(self) -> bytes:
        body = b"".join(self._parts)
        self._parts.clear()
        self.buffered_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return body

    def _fail(self, error: Exception) -> None:
        """Fail, unless it is complete: then only the connection can't be used again."""
        self.keeps_alive = False
        if not self.is_ended:
            self._error, self.is_ended = error, True


@dataclass(frozen=True)
class HttpTarget:
    """Where a request goes: the server, and the end of the request's first lines."""

    uses_tls: bool
    host: str
    port: int
    path: bytes
    host_line: bytes
    # What requests must have in common to share connections.
    origin: str


@lru_cache(maxsize=1024)  # called for every request
def parse_target(url: str, *, allow_private: bool) -> HttpTarget:
    """Return the target of a URL; raises `EgressDenied` if the guard refuses it."""
    check_url(url, allow_private=allow_private)
    parsed = httpx2.URL(url)
    uses_tls = parsed.scheme == "https"
    return HttpTarget(
        uses_tls=uses_tls,
        host=parsed.raw_host.decode("ascii"),
        port=parsed.port or (443 if uses_tls else 80),
        path=parsed.raw_path,
        host_line=b"Host: %s\r\n" % parsed.netloc,
        origin=build_origin(parsed),
    )


def encode_header_lines(headers: Mapping[str, str]) -> dict[str, bytes]:
    """Return the encoded lines of headers by lower-case name.

    Raises `httpx2.LocalProtocolError`, without quoting them, for headers that can't be sent.
    """
    if REPEATED_HEADERS.issuperset(headers):
        return _encode_repeated_lines(*headers.items())
    return dict(_encode_header_line(name, value) for name, value in headers.items())


def _encode_header_line(name: str, value: str) -> tuple[str, bytes]:
    key = name.lower()
    if key in OWN_HEADERS or not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
        raise httpx2.LocalProtocolError("a header can't be sent")
    return key, f"{name}: {value}\r\n".encode("ascii")


@lru_cache(maxsize=1024)
def _encode_repeated_lines(*headers: tuple[str, str]) -> dict[str, bytes]:
    return dict(_encode_header_line(name, value) for name, value in headers)


class HttpConnection(asyncio.Protocol):
    """One connection; a response that isn't read to its end may delay the next request."""

    def __init__(
        self, stream: AsyncioNetworkStream, on_lost: Callable[["HttpConnection"], None]
    ) -> None:
        """Take over a stream; raises `httpcore2.ReadError` if the server closed it or spoke.

        `on_lost` is called when the connection has ended.
        """
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._on_idle: Callable[[HttpConnection], None] | None = None
        self._response: StreamedResponse | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._transport = stream.hand_over(self)
        self._poll = select.poll()
        self._poll.register(stream.get_extra_info("socket"), select.POLLIN)

    def send(self, request: bytes, allowance: BodyAllowance) -> StreamedResponse:
        """Send a request; return its response, whose body `allowance` bounds."""
        self._response = StreamedResponse(self._transport, allowance)
        self._transport.write(request)
        return self._response

    def release(
        self, on_idle: Callable[["HttpConnection"], None], *, is_cut_off: bool = False
    ) -> None:
        """Call `on_idle` if another request can be sent, once the response has ended.

        Closes otherwise, and if the rest of the response is long, slow or to be cut off.
        """
        response = self._response
        if response is None or (is_cut_off and not response.is_ended):
            self.close()
            return
        self._on_idle = on_idle
        if not response.is_ended or response.buffered_bytes:
            response.discard(MAX_UNREAD_BYTES)
        if response.is_ended:
            self._end_exchange(response)
        else:
            self._unread_timer = self._loop.call_later(MAX_UNREAD_S, self.close)

    def is_usable(self) -> bool:
        """Return whether a request can be sent on the idle connection."""
        is_fresh = monotonic() - self._idle_since < KEEP_ALIVE_S
        # The server may have closed it, which the loop hasn't read yet, or have sent something.
        return is_fresh and not self._transport.is_closing() and not self._poll.poll(0)

    def close(self) -> None:
        """Close; a response that isn't complete fails."""
        if not self._transport.is_closing():
            self._transport.close()
        # Also after the peer closed: unsent data would keep the socket open.
        self._loop.call_soon(self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Parse received data (asyncio)."""
        response = self._response
        if response is None:
            self.close()  # nothing was requested
            return
        response.feed(data)
        if response.is_ended and self._on_idle is not None:
            self._end_exchange(response)
        elif response.is_ended and not response.keeps_alive:
            self.close()  # it isn't read any more
        response.wake_reader()

    def eof_received(self) -> bool:
        """Record the end and let the transport close (asyncio)."""
        if (response := self._response) is not None:
            response.end(None)
            response.wake_reader()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end and its error (asyncio)."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        self._on_lost(self)
        if (response := self._response) is not None:
            response.end(exc)
            response.wake_reader()

    def _end_exchange(self, response: StreamedResponse) -> None:
        """Become idle, or close if another request can't be sent."""
        on_idle, self._on_idle, self._response = self._on_idle, None, None
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        # A server that answers early may not read the rest of the request.
        is_request_unread = self._transport.get_write_buffer_size() > 0
        if on_idle is None or not response.keeps_alive or is_request_unread:
            self.close()
            return
        self._idle_since = monotonic()
        on_idle(self)


@dataclass(slots=True)
class HttpExchange:
    """A request with its response, which uses a connection of the client until it is closed."""

    response: StreamedResponse
    connection: HttpConnection
    on_idle: Callable[[HttpConnection], None]
    slots: asyncio.Semaphore

    def close(self, *, is_cut_off: bool) -> None:
        """Release the connection; `is_cut_off` if the rest of the response isn't wanted."""
        self.connection.release(self.on_idle, is_cut_off=is_cut_off)
        self.slots.release()


class PersistentClient:
    """Sends requests on connections that are kept for the next ones to the same server."""

    def __init__(
        self, *, allow_private: bool, headers: Mapping[str, str], connect_s: float
    ) -> None:
        """`connect_s` bounds each of: waiting for a connection, opening one, its TLS handshake.

        Raises `httpx2.LocalProtocolError` for headers that can't be sent.
        """
        self._allow_private = allow_private
        self._connect_s = connect_s
        default_headers = {"Accept-Encoding": "identity", "User-Agent": "bonobot"}
        self._header_lines = encode_header_lines({**default_headers, **headers})
        self._backend = GuardedBackend(
            allow_private=allow_private, proxy=settings.BONOBOT_EGRESS_PROXY
        )
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._connections: set[HttpConnection] = set()
        self._idle: dict[str, list[HttpConnection]] = {}
        self._expiry_timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def open_response(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        content: bytes = b"",
        limit: int | BodyAllowance,
        on_send: Callable[[], None],
    ) -> AsyncIterator[StreamedResponse]:
        """Send a request and yield its response; leaving the block by an error cuts it off.

        Arguments and errors are those of `send_request`.
        """
        exchange = await self.send_request(
            method, url, headers=headers, content=content, limit=limit, on_send=on_send
        )
        is_cut_off = True
        try:
            yield exchange.response
            is_cut_off = False
        finally:
            exchange.close(is_cut_off=is_cut_off)

    async def send_request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        content: bytes = b"",
        limit: int | BodyAllowance,
        on_send: Callable[[], None],
    ) -> HttpExchange:
        """Send a request and return it with the head of its response; the caller closes it.

        `limit` bounds the body of the response in bytes, and `on_send` is called when the request
        is written. Raises `EgressDenied`, or the error of httpx2 for what failed.
        """
        target = parse_target(url, allow_private=self._allow_private)
        lines = {**self._header_lines, **encode_header_lines(headers)}
        if content:
            lines["content-length"] = b"Content-Length: %d\r\n" % len(content)
        head = b"%s %s HTTP/1.1\r\n%s" % (method.encode("ascii"), target.path, target.host_line)
        request = b"".join((head, *lines.values(), b"\r\n", content))
        allowance = limit if isinstance(limit, BodyAllowance) else BodyAllowance(limit)
        connection = await self._acquire_connection(target)
        on_send()
        response = connection.send(request, allowance)
        exchange = HttpExchange(response, connection, partial(self._keep_idle, target), self._slots)
        try:
            await response.wait_for_head()
            check_response(target.host, response.status_code, response.headers, allowance.limit)
        except BaseException:
            exchange.close(is_cut_off=True)
            raise
        return exchange

    async def aclose(self) -> None:
        """Close all connections."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        for connection in self._connections:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # lets the transports close their sockets

    async def _acquire_connection(self, target: HttpTarget) -> HttpConnection:
        """Return a connection that isn't in use, after waiting for one if there are too many."""
        if self._slots.locked():
            try:
                async with asyncio.timeout(self._connect_s):
                    await self._slots.acquire()
            except TimeoutError as error:
                raise httpx2.PoolTimeout("no connection became free in time") from error
        else:
            await self._slots.acquire()
        try:
            idle = self._idle.get(target.origin, [])
            while idle:
                connection = idle.pop()  # the one that was used last
                if connection.is_usable():
                    return connection
                connection.close()
            return await self._connect(target)
        except BaseException:
            self._slots.release()
            raise

    async def _connect(self, target: HttpTarget) -> HttpConnection:
        with convert_httpcore_errors():
            stream = await self._backend.connect_tcp(target.host, target.port, self._connect_s)
            if target.uses_tls:
                stream = await stream.start_tls(
                    build_ssl_context(), server_hostname=target.host, timeout=self._connect_s
                )
            connection = HttpConnection(
                cast(AsyncioNetworkStream, stream), on_lost=self._connections.discard
            )
        self._connections.add(connection)
        return connection

    def _keep_idle(self, target: HttpTarget, connection: HttpConnection) -> None:
        """Keep a connection for the next request, unless many are idle already."""
        idle = self._idle.setdefault(target.origin, [])
        if len(idle) >= MAX_IDLE_CONNECTIONS:
            connection.close()
            return
        idle.append(connection)
        if self._expiry_timer is None:
            self._start_expiry_timer()

    def _start_expiry_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._expiry_timer = loop.call_later(KEEP_ALIVE_S, self._close_expired)

    def _close_expired(self) -> None:
        """Close the connections that have been idle for too long; look again later."""
        self._expiry_timer = None
        for origin, idle in list(self._idle.items()):
            usable = [connection for connection in idle if connection.is_usable()]
            for connection in set(idle).difference(usable):
                connection.close()
            self._idle[origin] = usable
        self._idle = {origin: idle for origin, idle in self._idle.items() if idle}
        if self._idle:
            self._start_expiry_timer()
