"""An httpcore2 network backend on asyncio transports.

httpcore2's own streams use AnyIO, whose cancel scopes and checkpoints cost more than the reads and
writes themselves. Here a read returns buffered data immediately, and writes of one loop iteration
(a request's head and body) are sent together.
"""

import asyncio
import select
import ssl
from collections.abc import Iterable
from typing import Any, cast

import httpcore2

from bonobot.core.http.connection_errors import build_connection_error

# Bytes to buffer before reading from the socket is paused.
AHEAD = 256 * 1024
# Bytes to collect in one loop iteration before they are sent.
TOGETHER = 64 * 1024


class AsyncioNetworkBackend(httpcore2.AsyncNetworkBackend):
    """Opens TCP connections."""

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
        """Sleep between httpcore2's retries."""
        await asyncio.sleep(seconds)


class AsyncioNetworkStream(httpcore2.AsyncNetworkStream):
    """One connection, encrypted or not; supports one reader and one writer at a time."""

    def __init__(self, wire: "_StreamProtocol") -> None:
        self._wire = wire

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return received bytes, empty at the end; raises `ReadError` or `ReadTimeout`."""
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
        """Send bytes and wait for flow control; raises `WriteError` or `WriteTimeout`."""
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
        await asyncio.sleep(0)  # lets the transport close its socket

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Return the encrypted stream over this one; raises `ConnectError`, `ConnectTimeout`."""
        wire = self._wire
        try:
            # Plaintext data must not be mistaken for data of the encrypted peer.
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
        """Return transport information; `is_readable` is whether data or the end has arrived."""
        if info == "is_readable":
            return self._wire.readable or self._wire.has_news()
        return self._wire.transport.get_extra_info(_NAMES.get(info, info))


_NAMES = {"client_addr": "sockname", "server_addr": "peername"}


class _StreamProtocol(asyncio.Protocol):
    """The receive and send buffers of one transport."""

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
        """Whether a read returns or raises without waiting."""
        return bool(self._come) or self._ended or self.transport.is_closing()

    def has_news(self) -> bool:
        """Return whether the socket has data that the loop hasn't read yet."""
        descriptor = self.transport.get_extra_info("socket").fileno()
        if descriptor < 0:
            return True  # closed: a read fails immediately
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))

    async def news(self) -> None:
        """Wait until data or the end has arrived."""
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            if self._waiter is waiter:  # a canceled reader must not remove the next one's waiter
                self._waiter = None

    def take(self, most: int) -> bytes:
        """Return up to `max_bytes` received bytes; raises the connection's error."""
        if not self._come:
            self.check()
        part = bytes(self._come[:most])
        del self._come[:most]
        if self._paused and not self._come:
            self._paused = False
            self.transport.resume_reading()
        return part

    def check(self) -> None:
        """Raise the connection's error, if any."""
        if self._fault is not None:
            raise ConnectionError(str(self._fault)) from self._fault

    def send(self, part: bytes) -> None:
        """Send together with other writes of this loop iteration; raises if closed."""
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
        """Pass pending writes to the transport."""
        if self._outgoing:
            self.transport.write(b"".join(self._outgoing))
            self._outgoing.clear()
            self._outgoing_size = 0

    def close(self) -> None:
        """Close; pending writes are sent only if the peer accepts them immediately."""
        if not self.transport.is_closing():
            self.flush()
            self.transport.close()
        # Also after the peer closed: unsent data would keep the socket open.
        self._loop.call_soon(self.transport.abort)

    async def encrypt(self, context: ssl.SSLContext, name: str | None) -> None:
        """Switch to TLS with a peer that has a certificate for `server_hostname`."""
        transport = await self._loop.start_tls(self.transport, self, context, server_hostname=name)
        if transport is None:
            raise ConnectionError("the connection was closed during the handshake")
        self.transport = transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport (asyncio)."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Buffer received data (asyncio)."""
        self._come += data
        if len(self._come) >= AHEAD and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._tell()

    def eof_received(self) -> bool:
        """Record the end and let the transport close (asyncio)."""
        self._end(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end and its error (asyncio)."""
        self._end(exc)

    def pause_writing(self) -> None:
        """Make writers wait (asyncio)."""
        if not self._ended:
            self.writable.clear()

    def resume_writing(self) -> None:
        """Let writers continue (asyncio)."""
        self.writable.set()

    def _end(self, fault: Exception | None) -> None:
        self._ended = True
        self._fault = self._fault or fault
        self.writable.set()
        self._tell()

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
