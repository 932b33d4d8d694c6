"""Sockets of outbound HTTP: timeouts, limits, and the end of idle connections."""

import asyncio
import socket
import ssl
import struct
from functools import partial
from typing import Any

import httpcore2
import pytest

from bonobot.core.http.network_backend import READ_BUFFER_BYTES, AsyncioNetworkBackend
from tests.wait import eventually


async def _connect_and_run(talk: Any) -> None:
    connections: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await connections.put((reader, writer))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        stream = await AsyncioNetworkBackend().connect_tcp(
            "127.0.0.1", server.sockets[0].getsockname()[1], 5
        )
        reader, writer = await connections.get()
        await talk(stream, reader, writer)
        await stream.aclose()
        writer.close()


def test_a_connection_transfers_data() -> None:
    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        assert stream.get_extra_info("is_readable") is False
        await stream.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        writer.write(b"pong")
        await writer.drain()
        assert await stream.read(16, 5) == b"pong"
        assert stream.get_extra_info("server_addr")[0] == "127.0.0.1"

    asyncio.run(_connect_and_run(talk))


def test_the_end_of_an_idle_connection_is_detected() -> None:
    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        writer.close()
        ended = partial(stream.get_extra_info, "is_readable")
        await asyncio.to_thread(eventually, ended, what="the end")

    asyncio.run(_connect_and_run(talk))


def test_a_closed_stream_isnt_readable() -> None:
    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        await stream.aclose()
        assert stream.get_extra_info("is_readable") is True

    asyncio.run(_connect_and_run(talk))


def test_writes_of_one_loop_iteration_are_sent_together() -> None:
    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        await stream.write(b"head ")
        await stream.write(b"and body")
        await asyncio.sleep(0)
        assert await reader.read(64) == b"head and body"

    asyncio.run(_connect_and_run(talk))


def test_data_is_read_only_on_request() -> None:
    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        await stream.write(b"ping")
        writer.write(b"pong")
        assert await stream.read(2) == b"po"
        assert await stream.read(2) == b"ng"
        assert await reader.readexactly(4) == b"ping"

    asyncio.run(_connect_and_run(talk))


def test_an_endless_sender_is_throttled_without_loss() -> None:
    payload = bytes(range(256)) * 16 * 1024

    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        writer.write(payload)
        while not stream._protocol._paused:
            await asyncio.sleep(0)
        assert len(stream._protocol._received) < 2 * READ_BUFFER_BYTES
        received = b""
        while len(received) < len(payload):
            received += await stream.read(65536, 5)
        assert received == payload

    asyncio.run(_connect_and_run(talk))


def test_a_peer_that_reads_nothing_times_out_the_write() -> None:
    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        async def flood() -> None:
            for _ in range(64):
                await stream.write(bytes(1024 * 1024), 0.05)

        with pytest.raises(httpcore2.WriteTimeout):
            await flood()

    asyncio.run(_connect_and_run(talk))


def test_a_read_timeout_keeps_the_stream_usable() -> None:
    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        with pytest.raises(httpcore2.ReadTimeout):
            await stream.read(16, 0.01)
        writer.write(b"late")
        assert await stream.read(16, 5) == b"late"

    asyncio.run(_connect_and_run(talk))


def test_a_reset_connection_is_an_error_and_a_closed_one_isnt() -> None:
    async def end(stream: Any, reader: Any, writer: Any) -> None:
        writer.write(b"last")
        writer.close()
        assert await stream.read(16, 5) == b"last"
        assert await stream.read(16, 5) == b""
        with pytest.raises(httpcore2.WriteError):
            await stream.write(b"more")

    async def reset(stream: Any, reader: Any, writer: Any) -> None:
        linger = struct.pack("ii", 1, 0)  # a close that sends a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        with pytest.raises(httpcore2.ReadError):
            await stream.read(16, 5)

    asyncio.run(_connect_and_run(end))
    asyncio.run(_connect_and_run(reset))


def test_plain_text_before_tls_isnt_accepted_as_encrypted() -> None:
    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not stream.get_extra_info("is_readable"):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(httpcore2.ConnectError):
            await stream.start_tls(ssl.create_default_context(), "localhost", 5)
        assert stream.get_extra_info("is_readable") is True

    asyncio.run(_connect_and_run(talk))


def test_a_hanging_tls_handshake_times_out() -> None:
    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        with pytest.raises(httpcore2.ConnectTimeout):
            await stream.start_tls(ssl.create_default_context(), "localhost", 0.05)

    asyncio.run(_connect_and_run(talk))


def test_an_unused_address_is_a_connect_error(free_port: int) -> None:
    with pytest.raises(httpcore2.ConnectError):
        asyncio.run(AsyncioNetworkBackend().connect_tcp("127.0.0.1", free_port, 5))
