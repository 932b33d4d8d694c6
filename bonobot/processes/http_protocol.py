"""uvicorn's HTTP protocol, with deadlines for slow senders.

uvicorn waits forever for the rest of a request's head or body, so that a few hundred slow
connections could block all others. Here a head has a deadline, and a body has one that grows with
the bytes received. Slow readers of responses aren't affected.
"""

import asyncio
from typing import Any

import h11
from django.conf import settings
from uvicorn.protocols.http.h11_impl import H11Protocol

from bonobot.core.http.response_headers import encode_default_headers

MIN_BODY_BYTES_PER_S = 1024  # minimum average rate of a body, after its first seconds
TEXT_HEADERS = ((b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close"))


class Protocol(H11Protocol):
    """One connection, with a deadline while a request is being received."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited_part: Any = None
        self._received = 0
        self._started_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first head (called by the loop)."""
        super().connection_made(transport)
        self._set_awaited_part(h11.IDLE)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline (called by the loop)."""
        self._set_awaited_part(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count received bytes (called by the loop)."""
        self._received += len(data)
        super().data_received(data)

    def handle_events(self) -> None:
        """Handle complete events, then update the deadline for the missing part."""
        super().handle_events()
        self._set_awaited_part(self._get_missing_part())

    def _get_missing_part(self) -> Any:
        """Return `h11.IDLE` while a head is incomplete, `h11.SEND_BODY` while a body is."""
        state = self.conn.their_state
        if state is h11.SEND_BODY and self.transport.get_protocol() is self:
            return state
        return state if state is h11.IDLE and self.conn.trailing_data[0] else None

    def _set_awaited_part(self, part: Any) -> None:
        """Start the deadline of a part of a request, unless it is already running."""
        if part is self._awaited_part:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._awaited_part = part
        if part is not None:
            self._received = 0
            is_body = part is h11.SEND_BODY
            self._schedule_deadline(
                settings.BONOBOT_REQUEST_BODY_S if is_body else settings.BONOBOT_REQUEST_HEAD_S
            )
            self._started_at = self.loop.time()

    def _schedule_deadline(self, seconds: float) -> None:
        self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _on_deadline(self) -> None:
        if self._awaited_part is h11.SEND_BODY:
            if self.flow.read_paused:  # we paused reading, not the client
                self._started_at, self._received = self.loop.time(), 0
                self._schedule_deadline(settings.BONOBOT_REQUEST_BODY_S)
                return
            left_s = self._received / MIN_BODY_BYTES_PER_S - (self.loop.time() - self._started_at)
            left_s += settings.BONOBOT_REQUEST_BODY_S
            if left_s > 0:
                self._schedule_deadline(left_s)
                return
        self._close_slow_connection()

    def _close_slow_connection(self) -> None:
        """Close the connection, with a 408 if a request was begun but not answered."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        has_received = self._awaited_part is h11.SEND_BODY or self.conn.trailing_data[0]
        if has_received and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = h11.Response(
                status_code=408,
                headers=[*TEXT_HEADERS, *encode_default_headers()],
                reason=b"Request Timeout",
            )
            self._send_response(response, b"The request took too long.\n")
        self.transport.close()

    def _send_response(self, response: h11.Response, text: bytes) -> None:
        for event in (response, h11.Data(data=text), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP with the usual security headers."""
        headers = [*TEXT_HEADERS, *encode_default_headers()]
        self._send_response(
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            msg.encode("ascii"),
        )
        self.transport.close()
