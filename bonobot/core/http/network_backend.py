"""Httpcore backend on asyncio transports.

httpcore2's own streams go through AnyIO, whose cancel scopes and checkpoints around each read and
write cost more than the reads and writes. Here a read that has something to give waits for nothing,
and what is written in one turn of the loop (a request's head and its body) leaves in one piece.
"""

import asyncio
import select
import ssl
from collections.abc import Iterable
from typing import Any, cast

import httpcore2

from bonobot.core.http.connection_errors import build_connection_error

# What a peer may send ahead of our reading, in bytes: then its socket isn't read any more.
AHEAD = 256 * 1024
# What is written ahead of the loop's next turn, in bytes: then it leaves at once.
TOGETHER = 64 * 1024


class AsyncioNetworkBackend(httpcore2.AsyncNetworkBackend):
    """Connects over TCP."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Return a stream to an address; raises `ConnectError` or `ConnectTimeout`."""
        loop = asyncio.get_running_loop()
        local = None if local_address is None else (local_address, 0)
        try:
            async with asyncio.timeout(timeout):
                transport, wire = await loop.create_connection(
                    _StreamProtocol, host, port, local_addr=local
                )
        except TimeoutError as error:
            raise build_connection_error(
                httpcore2.ConnectTimeout, error, f"{host} did not answer in time"
            ) from error
        except OSError as error:
            raise build_connection_error(httpcore2.ConnectError, error) from error
        for option in socket_options or ():
            transport.get_extra_info("socket").setsockopt(*option)
        return AsyncioNetworkStream(wire)

    async def sleep(self, seconds: float) -> None:
        """Wait between httpcore2's own attempts."""
        await asyncio.sleep(seconds)


class AsyncioNetworkStream(httpcore2.AsyncNetworkStream):
    """One connection, encrypted or not; read by one and written by one at a time."""

    def __init__(self, wire: "_StreamProtocol") -> None:
        self._wire = wire

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return what has come, blank at the end; raises `ReadError` or `ReadTimeout`."""
        wire = self._wire
        wire.flush()
        if not wire.readable:
            try:
                async with asyncio.timeout(timeout):
                    await wire.news()
            except TimeoutError as error:
                raise build_connection_error(
                    httpcore2.ReadTimeout, error, "nothing came in time"
                ) from error
        try:
            return wire.take(max_bytes)
        except OSError as error:
            raise build_connection_error(httpcore2.ReadError, error) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send; waits while the peer takes nothing; raises `WriteError` or `WriteTimeout`."""
        wire = self._wire
        try:
            wire.send(buffer)
            if not wire.writable.is_set():
                async with asyncio.timeout(timeout):
                    await wire.writable.wait()
                wire.check()
        except TimeoutError as error:
            raise httpcore2.WriteTimeout("the peer took nothing in time") from error
        except OSError as error:
            raise build_connection_error(httpcore2.WriteError, error) from error

    async def aclose(self) -> None:
        """Close, without waiting for a peer that doesn't read."""
        self._wire.close()
        await asyncio.sleep(0)  # the turn in which the transport lets go of its socket

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Return the encrypted stream over this one; raises `ConnectError`, `ConnectTimeout`."""
        wire = self._wire
        try:
            # What came in the clear must not be taken for what the encrypted peer says.
            if wire.readable:
                raise ConnectionError("the peer spoke before the handshake, or hung up")
            wire.flush()
            async with asyncio.timeout(timeout):
                await wire.encrypt(ssl_context, server_hostname)
        except TimeoutError as error:
            wire.close()
            raise build_connection_error(
                httpcore2.ConnectTimeout, error, "no TLS handshake in time"
            ) from error
        except OSError as error:  # an `SSLError` is one
            wire.close()
            raise build_connection_error(httpcore2.ConnectError, error) from error
        except BaseException:
            wire.close()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        """Return what is known of the connection; `is_readable`: data has come, or its end."""
        if info == "is_readable":
            return self._wire.readable or self._wire.has_news()
        return self._wire.transport.get_extra_info(_NAMES.get(info, info))


_NAMES = {"client_addr": "sockname", "server_addr": "peername"}


class _StreamProtocol(asyncio.Protocol):
    """What has come and what goes out over one transport."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        self.writable.set()
        self._loop = asyncio.get_running_loop()
        self._come = bytearray()
        self._paused = False
        self._ended = False
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._outgoing: list[bytes] = []
        self._outgoing_size = 0

    @property
    def readable(self) -> bool:
        """Whether a read needn't wait: for data, the end, or what broke the connection."""
        return bool(self._come) or self._ended or self.transport.is_closing()

    def has_news(self) -> bool:
        """Tell whether the socket holds what the loop hasn't read yet."""
        descriptor = self.transport.get_extra_info("socket").fileno()
        if descriptor < 0:
            return True  # closed: a read would say so at once
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))

    async def news(self) -> None:
        """Wait until something has come."""
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            if self._waiter is waiter:  # a reader that was cancelled leaves the next one's alone
                self._waiter = None

    def take(self, most: int) -> bytes:
        """Return up to `most` bytes that have come; raises what broke the connection."""
        if not self._come:
            self.check()
        part = bytes(self._come[:most])
        del self._come[:most]
        if self._paused and not self._come:
            self._paused = False
            self.transport.resume_reading()
        return part

    def check(self) -> None:
        """Raise what broke the connection."""
        if self._fault is not None:
            raise ConnectionError(str(self._fault)) from self._fault

    def send(self, part: bytes) -> None:
        """Send with what else is sent in this turn of the loop; raises if nothing can be."""
        if self._ended or self.transport.is_closing():
            self.check()
            raise ConnectionError("the connection is closed")
        if not self._outgoing:
            self._loop.call_soon(self.flush)
        self._outgoing.append(part)
        self._outgoing_size += len(part)
        if self._outgoing_size >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Hand to the transport what waits for this turn's end."""
        if self._outgoing:
            self.transport.write(b"".join(self._outgoing))
            self._outgoing.clear()
            self._outgoing_size = 0

    def close(self) -> None:
        """Send what waits, as far as the peer takes it now, and close."""
        if not self.transport.is_closing():
            self.flush()
            self.transport.close()
        # Also after the peer's end: what it doesn't take any more would keep the socket open.
        self._loop.call_soon(self.transport.abort)

    async def encrypt(self, context: ssl.SSLContext, name: str | None) -> None:
        """Go on encrypted, with a peer that shows a certificate for `name`."""
        transport = await self._loop.start_tls(self.transport, self, context, server_hostname=name)
        if transport is None:
            raise ConnectionError("the connection was closed during the handshake")
        self.transport = transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin (asyncio)."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Keep what has come (asyncio)."""
        self._come += data
        if len(self._come) >= AHEAD and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._tell()

    def eof_received(self) -> bool:
        """Remember the end, and let the transport close (asyncio)."""
        self._end(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Remember the end and its reason (asyncio)."""
        self._end(exc)

    def pause_writing(self) -> None:
        """Have writers wait (asyncio)."""
        if not self._ended:
            self.writable.clear()

    def resume_writing(self) -> None:
        """Let writers go on (asyncio)."""
        self.writable.set()

    def _end(self, fault: Exception | None) -> None:
        self._ended = True
        self._fault = self._fault or fault
        self.writable.set()
        self._tell()

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
