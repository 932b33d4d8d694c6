"""A response that is parsed while it arrives.

httptools (llhttp) parses it and refuses what proxies and servers read differently: a length beside
a transfer coding, repeated lengths, broken chunks, bare line feeds, folded headers. This module
refuses other protocols and transfer codings, and bounds the head, the framing, and the body.
"""

import asyncio
from collections.abc import AsyncIterator

import httptools
import httpx2

from bonobot.core.http.connection_errors import build_connection_error, build_not_http_error
from bonobot.core.http.egress import BodyAllowance, build_too_large_error
from bonobot.core.http.network_backend import NO_RESPONSE

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
        self._buffered_bytes = 0
        self._is_paused = False
        self._is_discarded = False
        self._waiter: asyncio.Future[None] | None = None

    async def wait_for_head(self) -> None:
        """Wait for the status and the headers; raises `httpx2.TransportError`."""
        while not self._has_head:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
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
                self._waiter = asyncio.get_running_loop().create_future()
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
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter

    def discard(self, max_bytes: int) -> None:
        """Drop the rest of the body, which fails if it is longer than `max_bytes`."""
        self._is_discarded = True
        self._allowance = BodyAllowance(max_bytes)
        if self._parts:
            self._take_parts()

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
        if self._buffered_bytes >= READ_BUFFER_BYTES and not self._is_paused:
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
            self._wake_reader()
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
        self._wake_reader()

    def on_body(self, part: bytes) -> None:
        self._framing_bytes = 0
        allowance = self._allowance
        allowance.used_bytes += len(part)
        if allowance.used_bytes > allowance.limit:
            raise build_too_large_error(allowance.limit)
        if not self._is_discarded:
            self._parts.append(part)
            self._buffered_bytes += len(part)
            self._wake_reader()

    def on_message_complete(self) -> None:
        if self._has_head and not self.is_complete:
            self.keeps_alive = self._parser.should_keep_alive()
            self.is_complete = self.is_ended = True
            self._wake_reader()

    def _take_parts(self) -> bytes:
        body = b"".join(self._parts)
        self._parts.clear()
        self._buffered_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return body

    def _fail(self, error: Exception) -> None:
        """Fail, unless it is complete: then only the connection can't be used again."""
        self.keeps_alive = False
        if not self.is_ended:
            self._error, self.is_ended = error, True
            self._wake_reader()

    def _wake_reader(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
