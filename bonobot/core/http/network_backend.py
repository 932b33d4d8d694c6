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

from bonobot.core.http.connection_errors import (
    build_connection_error,
    build_not_http_error,
    build_silence_error,
)
from bonobot.core.i18n.messages import format_message

# Bytes to buffer before reading from the socket is paused.
READ_BUFFER_BYTES = 256 * 1024
# httpcore2's message for a connection that ends before the response.
NO_RESPONSE = "Server disconnected without sending a response."
# Bytes to collect in one loop iteration before they are sent.
WRITE_BATCH_BYTES = 64 * 1024
_EXTRA_INFO_NAMES = {"client_addr": "sockname", "server_addr": "peername"}


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
        local_endpoint = None if local_address is None else (local_address, 0)
        try:
            async with asyncio.timeout(timeout):
                transport, protocol = await loop.create_connection(
                    _StreamProtocol, host, port, local_addr=local_endpoint
                )
        except TimeoutError as error:
            raise build_connection_error(
                httpcore2.ConnectTimeout,
                error,
                format_message("{host} did not answer in time", host=host),
            ) from error
        except OSError as error:
            raise build_connection_error(httpcore2.ConnectError, error) from error
        for option in socket_options or ():
            transport.get_extra_info("socket").setsockopt(*option)
        return AsyncioNetworkStream(protocol)

    async def sleep(self, seconds: float) -> None:
        """Sleep between httpcore2's retries."""
        await asyncio.sleep(seconds)


class AsyncioNetworkStream(httpcore2.AsyncNetworkStream):
    """One connection, encrypted or not; supports one reader and one writer at a time."""

    def __init__(self, protocol: "_StreamProtocol") -> None:
        self._protocol = protocol

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return received bytes, empty at the end; raises `ReadError` or `ReadTimeout`."""
        protocol = self._protocol
        protocol.flush()
        if not protocol.readable:
            try:
                async with asyncio.timeout(timeout):
                    await protocol.wait_for_data()
            except TimeoutError as error:
                raise build_silence_error(httpcore2.ReadTimeout) from error
        try:
            return protocol.read_received(max_bytes)
        except OSError as error:
            raise build_connection_error(httpcore2.ReadError, error) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send bytes and wait for flow control; raises `WriteError` or `WriteTimeout`."""
        protocol = self._protocol
        try:
            protocol.send(buffer)
            if not protocol.writable.is_set():
                async with asyncio.timeout(timeout):
                    await protocol.writable.wait()
                protocol.check_error()
        except TimeoutError as error:
            raise httpcore2.WriteTimeout("the peer took nothing in time") from error
        except OSError as error:
            raise build_connection_error(httpcore2.WriteError, error) from error

    async def aclose(self) -> None:
        """Close, without waiting for a peer that doesn't read."""
        self._protocol.close()
        await asyncio.sleep(0)  # lets the transport close its socket

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Return the encrypted stream over this one; raises `ConnectError`, `ConnectTimeout`."""
        protocol = self._protocol
        try:
            # Plaintext data must not be mistaken for data of the encrypted peer.
            if protocol.readable:
                raise ConnectionError("the peer spoke before the handshake, or hung up")
            protocol.flush()
            async with asyncio.timeout(timeout):
                await protocol.start_tls(ssl_context, server_hostname)
        except TimeoutError as error:
            protocol.close()
            raise build_silence_error(httpcore2.ConnectTimeout) from error
        except OSError as error:  # an `SSLError` is one
            protocol.close()
            raise build_connection_error(httpcore2.ConnectError, error) from error
        except BaseException:
            protocol.close()
            raise
        return self

    def hand_over(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Let `protocol` receive everything from now on.

        Raises `ReadError` if the peer has closed the connection or sent something: what it sends
        before a request is no response to it.
        """
        self._protocol.flush()
        if self._protocol.readable:
            self._protocol.close()
            if self._protocol.read_received(1):
                raise build_not_http_error(httpcore2.ReadError)
            raise httpcore2.ReadError(NO_RESPONSE)
        transport = self._protocol.transport
        transport.set_protocol(protocol)
        return transport

    def get_extra_info(self, info: str) -> Any:
        """Return transport information; `is_readable` is whether data or the end has arrived."""
        if info == "is_readable":
            return self._protocol.readable or self._protocol.has_unread_data()
        return self._protocol.transport.get_extra_info(_EXTRA_INFO_NAMES.get(info, info))


class _StreamProtocol(asyncio.Protocol):
    """The receive and send buffers of one transport."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        self.writable.set()
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._paused = False
        self._is_ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._outgoing: list[bytes] = []
        self._outgoing_size = 0

    @property
    def readable(self) -> bool:
        """Whether a read returns or raises without waiting."""
        return bool(self._received) or self._is_ended or self.transport.is_closing()

    def has_unread_data(self) -> bool:
        """Return whether the socket has data that the loop hasn't read yet."""
        descriptor = self.transport.get_extra_info("socket").fileno()
        if descriptor < 0:
            return True  # closed: a read fails immediately
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))

    async def wait_for_data(self) -> None:
        """Wait until data or the end has arrived."""
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            if self._waiter is waiter:  # a canceled reader must not remove the next one's waiter
                self._waiter = None

    def read_received(self, max_bytes: int) -> bytes:
        """Return up to `max_bytes` received bytes; raises the connection's error."""
        if not self._received:
            self.check_error()
        chunk = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        if self._paused and not self._received:
            self._paused = False
            self.transport.resume_reading()
        return chunk

    def check_error(self) -> None:
        """Raise the connection's error, if any."""
        if self._error is not None:
            raise ConnectionError(str(self._error)) from self._error

    def send(self, chunk: bytes) -> None:
        """Send together with other writes of this loop iteration; raises if closed."""
        if self._is_ended or self.transport.is_closing():
            self.check_error()
            raise ConnectionError("the connection is closed")
        if not self._outgoing:
            self._loop.call_soon(self.flush)
        self._outgoing.append(chunk)
        self._outgoing_size += len(chunk)
        if self._outgoing_size >= WRITE_BATCH_BYTES:
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

    async def start_tls(self, context: ssl.SSLContext, server_hostname: str | None) -> None:
        """Switch to TLS with a peer that has a certificate for `server_hostname`."""
        transport = await self._loop.start_tls(
            self.transport, self, context, server_hostname=server_hostname
        )
        if transport is None:
            raise ConnectionError("the connection was closed during the handshake")
        self.transport = transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport (asyncio)."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Buffer received data (asyncio)."""
        self._received += data
        if len(self._received) >= READ_BUFFER_BYTES and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._wake_reader()

    def eof_received(self) -> bool:
        """Record the end and let the transport close (asyncio)."""
        self._mark_ended(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end and its error (asyncio)."""
        self._mark_ended(exc)

    def pause_writing(self) -> None:
        """Make writers wait (asyncio)."""
        if not self._is_ended:
            self.writable.clear()

    def resume_writing(self) -> None:
        """Let writers continue (asyncio)."""
        self.writable.set()

    def _mark_ended(self, error: Exception | None) -> None:
        self._is_ended = True
        self._error = self._error or error
        self.writable.set()
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
