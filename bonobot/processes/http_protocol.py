"""uvicorn's HTTP protocol with httptools, stricter, and with deadlines for slow clients.

uvicorn limits neither the size of a head nor the wait for the rest of a head or body, so that a few
hundred slow connections could block all others. Here a head has a deadline, and a body has one that
grows with the bytes received. A client that reads less of a waiting response than a minimum rate
loses its connection; one that reads an event stream slowly doesn't, as long as little waits for it.

llhttp, httptools' parser, rejects most ambiguous requests by itself: line ends without CR, folded
headers, repeated lengths. The rest is checked here.
"""

import asyncio
import re
import sys
import termios
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fcntl import ioctl
from typing import Any, cast
from urllib.parse import unquote

import httptools
from django.conf import settings
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from bonobot.core.http.response_headers import encode_default_headers

MIN_BODY_BYTES_PER_S = 1024  # minimum average rate of a body, after its first seconds
MIN_RESPONSE_BYTES_PER_S = 1024  # minimum rate of reading while a response waits
MAX_HEAD_BYTES = 64 * 1024  # as h11's limit; also of the trailers and extensions of chunks
# Requests of a connection that wait for the responses to earlier ones; each takes memory.
MAX_PIPELINED = 100
# Then a connection is closed, as by nginx. Clients that never connect again would stay with their
# web process, and one that starts later on the same port would get no requests.
MAX_REQUESTS = 1_000
# A path with a query, without a fragment, or the asterisk of OPTIONS.
TARGET = re.compile(rb"/[!-\"$-~]*|\*")
BODILESS = frozenset({204, 304})
VERSIONS = frozenset({"1.0", "1.1"})
# A response's headers, which mustn't contain the end of a line.
HEADER_LINES = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [^\x00-\x08\x0a-\x1f\x7f]*\r\n)*")
INVALID_REQUEST = "Invalid HTTP request received."


class InvalidHead(Exception):
    """A head that the parser accepts and we don't."""


class ConnectionExhausted(Exception):
    """A request after the last one of its connection."""


class Protocol(HttpToolsProtocol):
    """One connection, with deadlines while a request is received and a response waits."""

    cycle: "ResponseCycle"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._create_parser()
        self._deadline: asyncio.TimerHandle | None = None
        self._reading_deadline: asyncio.TimerHandle | None = None
        self._waiting_bytes = 0  # of responses, when the reading deadline was set
        self._missing_part = ""  # `head` or `body` of a request that has begun
        self._awaited_part = ""  # the part that the deadline is for
        self._received = 0
        self._started_at = 0.0
        # What arrived with the current head and before it; llhttp doesn't tell the protocol.
        self._head_bytes = bytearray()
        # Bytes of the head, or of a body's lines between its data, that are incomplete.
        self._buffered = 0
        self._is_refused = False
        self._remaining_requests = MAX_REQUESTS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first head (called by the loop)."""
        super().connection_made(transport)
        self._await_part("head")

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines (called by the loop)."""
        self._await_part("")
        self._stop_awaiting_reader()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Let the response end (called by the server), but close an event stream: it has no end."""
        super().shutdown()
        if self._is_responding() and self.cycle.is_event_stream:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, then update the deadline (called by the loop)."""
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        self._received += len(data)
        self._buffered += len(data)
        if self._missing_part != "head":
            self._head_bytes.clear()
        self._head_bytes += data
        try:
            self._feed(data)
        except httptools.HttpParserError:
            if self._remaining_requests:
                self._refuse()
            else:  # not executed: the client sends it again on another connection
                self._is_refused = True
            return
        if self._missing_part and self._buffered > MAX_HEAD_BYTES:
            self._refuse()
        elif self._missing_part != self._awaited_part:
            self._await_part(self._missing_part)

    def _create_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)

    def _feed(self, data: bytes) -> None:
        """Parse bytes; raises `HttpParserError`."""
        rest = memoryview(data)
        while rest:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                # llhttp skips the body of a request that asks for another protocol. Its header is
                # ignored, as HTTP allows: Java's client sends it with each first request.
                if self.parser.get_method() == b"CONNECT":
                    raise httptools.HttpParserError(INVALID_REQUEST) from upgrade
                head = self._build_head_without_upgrade()
                rest = rest[upgrade.args[0] :]
                self._create_parser()
                self.parser.feed_data(head)
            else:
                return

    def _build_head_without_upgrade(self) -> bytes:
        lines = [
            name + b": " + value + b"\r\n" for name, value in self.headers if name != b"upgrade"
        ]
        request_line = b"%b %b HTTP/1.1\r\n" % (self.parser.get_method(), self.url)
        return b"".join([request_line, *lines, b"\r\n"])

    # --- Called by the parser -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request; raises `ConnectionExhausted`."""
        if not self._remaining_requests:
            raise ConnectionExhausted
        super().on_message_begin()
        self._missing_part = "head"

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers of a body are dropped."""
        if self._missing_part == "head":
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Check the head and start the request; raises `InvalidHead`."""
        version = self.parser.get_http_version()
        self._check_head(version)
        self._missing_part, self._buffered = "body", 0
        if self.parser.should_upgrade():
            return  # it comes again, without the header
        self._remaining_requests -= 1
        path, _, query = self.url.partition(b"?")
        scope = cast(dict[str, Any], self.scope)
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["raw_path"], scope["query_string"] = path, query
        scope["path"] = unquote(path.decode("ascii")) if b"%" in path else path.decode("ascii")
        previous = self.cycle
        limit = self.limit_concurrency
        is_full = limit is not None and max(len(self.connections), len(self.tasks)) >= limit
        app = service_unavailable if is_full else self.app
        self.cycle = ResponseCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0"
            and self.parser.should_keep_alive()
            and self._remaining_requests > 0,
            on_response=self.on_response_complete,
        )
        if previous is None or previous.response_complete:
            self._start_asgi_task(self.cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, app))

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._buffered = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Complete the request."""
        self._missing_part, self._buffered = "", 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _check_head(self, version: str) -> None:
        if version not in VERSIONS:
            raise InvalidHead("This version of HTTP isn't supported.")
        # llhttp also accepts RTSP and ICE, with methods of their own and with HTTP's.
        method = self.parser.get_method()
        if self._head_bytes.find(b"%b %b HTTP/" % (method, self.url)) < 0:
            raise InvalidHead("The request isn't HTTP.")
        if not TARGET.fullmatch(self.url) or (self.url == b"*" and method != b"OPTIONS"):
            raise InvalidHead("The target isn't a path.")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise InvalidHead("Too many requests wait for responses.")
        size, hosts = len(self.url), 0
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                raise InvalidHead("This transfer coding isn't supported.")
        if size > MAX_HEAD_BYTES:
            raise InvalidHead("The head is too large.")
        if hosts != 1 and (hosts or version == "1.1"):
            raise InvalidHead("The host is missing or repeated.")

    # --- Deadlines ----------------------------------------------------------------------------

    def _await_part(self, part: str) -> None:
        """Start the deadline of a part of a request, in place of the previous one."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._awaited_part = part
        if part:
            self._received = 0
            self._schedule_deadline(
                settings.BONOBOT_REQUEST_BODY_S
                if part == "body"
                else settings.BONOBOT_REQUEST_HEAD_S
            )
            self._started_at = self.loop.time()

    def _schedule_deadline(self, seconds: float) -> None:
        self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _on_deadline(self) -> None:
        is_body = self._awaited_part == "body"
        if self.flow.read_paused or (not is_body and self._is_responding()):
            self._await_part(self._awaited_part)  # we wait, not the client
            return
        if is_body:
            left_s = self._received / MIN_BODY_BYTES_PER_S - (self.loop.time() - self._started_at)
            left_s += settings.BONOBOT_REQUEST_BODY_S
            if left_s > 0:
                self._schedule_deadline(left_s)
                return
        if self._missing_part:
            self._send_refusal(408, "The request took too long.\n")
        self._abandon_request()
        self.transport.close()

    # --- Slow readers ---------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Start the deadline of the reader: much of a response waits (called by the loop)."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Cancel the deadline of the reader, unless it is for the rest (called by the loop)."""
        super().resume_writing()
        if self.transport.is_closing():
            self._await_reader()
        else:
            self._stop_awaiting_reader()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if its client doesn't read the rest (by uvicorn)."""
        super().timeout_keep_alive_handler()
        if self.transport.is_closing() and self._reading_deadline is None:
            self._await_reader()

    def _await_reader(self) -> None:
        self._stop_awaiting_reader()
        self._waiting_bytes = self._count_waiting_bytes()
        self._reading_deadline = self.loop.call_later(
            settings.BONOBOT_RESPONSE_S, self._on_reading_deadline
        )

    def _stop_awaiting_reader(self) -> None:
        if self._reading_deadline is not None:
            self._reading_deadline.cancel()
            self._reading_deadline = None

    def _count_waiting_bytes(self) -> int:
        """Return the bytes that the client hasn't received, in our buffer and in the system's.

        The system takes more from us only when much of its own buffer, up to megabytes, is free.
        """
        waiting_bytes = self.transport.get_write_buffer_size()
        connection = self.transport.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            with suppress(OSError):  # unknown on other systems than Linux
                size = ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
                waiting_bytes += int.from_bytes(size, sys.byteorder)
        return waiting_bytes

    def _on_reading_deadline(self) -> None:
        read_bytes = self._waiting_bytes - self._count_waiting_bytes()
        if read_bytes >= MIN_RESPONSE_BYTES_PER_S * settings.BONOBOT_RESPONSE_S:
            self._await_reader()
            return
        self._reading_deadline = None
        self._abandon_request()
        self.transport.abort()

    # --- Refusals -----------------------------------------------------------------------------

    def _refuse(self) -> None:
        """Answer invalid HTTP and close the connection; earlier requests are answered first."""
        self.logger.warning(INVALID_REQUEST)
        self._is_refused = True
        self._await_part("")
        if self._missing_part != "body" and self._is_responding():
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return
        self._send_refusal(400, INVALID_REQUEST)
        self._abandon_request()
        self.transport.close()

    def _is_responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _send_refusal(self, status: int, text: str) -> None:
        """Respond with a text, unless another response has begun or must come first."""
        is_body = self._missing_part == "body"
        if self.pipeline or (self.cycle.response_started if is_body else self._is_responding()):
            return
        content = text.encode("ascii")
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(content)),
            (b"connection", b"close"),
            *encode_default_headers(),
        ]
        self.transport.write(STATUS_LINE[status] + encode_headers(headers) + b"\r\n" + content)

    def _abandon_request(self) -> None:
        """Tell the application of a request that its client is gone."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()


class ResponseCycle(RequestResponseCycle):
    """One request and its response.

    The head of a response with a length is sent together with the beginning of its body: uvicorn
    sends it for itself, which costs another system call and wake-up at both ends.
    """

    is_event_stream = False  # a response to GET, which ends when the client disconnects
    _head = b""  # not sent yet

    async def send(self, message: Any) -> None:
        """Send a part of the response (called by the application)."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        expected = "http.response.body" if self.response_started else "http.response.start"
        if message["type"] != expected or self.response_complete:
            raise RuntimeError(f"{message['type']} isn't expected here.")
        if self.response_started:
            self._continue(message.get("body", b""), more_body=message.get("more_body", False))
        else:
            self._start(message["status"], message.get("headers", ()))

    def _start(self, status: int, app_headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        if self.access_log:
            self._log_access(status)
        headers = [*self.default_headers]
        is_closed = False
        for mixed_case_name, value in app_headers:
            name = mixed_case_name.lower()
            headers.append((name, value))
            if name == b"content-length":
                self.expected_content_length, self.chunked_encoding = int(value), False
            elif name == b"transfer-encoding":
                self.chunked_encoding = True
            elif name == b"content-type" and value.startswith(b"text/event-stream"):
                self.is_event_stream = self.scope["method"] == "GET"
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, is_closed = False, True
        if not self.keep_alive and not is_closed:
            headers.append((b"connection", b"close"))
        if self.chunked_encoding is None and status not in BODILESS and not self._is_head:
            self.chunked_encoding = True
            headers.append((b"transfer-encoding", b"chunked"))
        self._head = STATUS_LINE[status] + encode_headers(headers) + b"\r\n"
        if self.chunked_encoding is not False:
            self._write(b"")

    def _continue(self, body: bytes, *, more_body: bool) -> None:
        if self._is_head:
            body, self.expected_content_length = b"", 0
        elif self.chunked_encoding:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body += b"" if more_body else b"0\r\n\r\n"
        else:
            self.expected_content_length -= len(body)
        is_wrong = self.expected_content_length != 0 and not more_body
        if is_wrong or self.expected_content_length < 0:
            raise RuntimeError("The body's length isn't the Content-Length.")
        self._write(body)
        if not more_body:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    @property
    def _is_head(self) -> bool:
        return self.scope["method"] == "HEAD"

    def _write(self, data: bytes) -> None:
        self.transport.write(self._head + data)
        self._head = b""

    def _log_access(self, status: int) -> None:
        self.access_logger.info(
            '%s - "%s %s HTTP/%s" %d',
            get_client_addr(self.scope),
            self.scope["method"],
            get_path_with_query_string(self.scope),
            self.scope["http_version"],
            status,
        )


def encode_headers(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the lines of headers; raises `RuntimeError` if one would contain the end of a line."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    if not HEADER_LINES.fullmatch(lines) or lines.count(b"\n") != len(headers):
        raise RuntimeError("A header of the response is invalid.")
    return lines
