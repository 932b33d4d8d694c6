"""An idle connection says at once whether its server has closed it."""

import asyncio
from functools import partial
from typing import Any

from bonobot.lib.streams import Backend
from tests.eventually import eventually


async def _served(talk: Any) -> None:
    arrived: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await arrived.put((reader, writer))

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        stream = await Backend().connect_tcp("127.0.0.1", server.sockets[0].getsockname()[1], 5)
        reader, writer = await arrived.get()
        await talk(stream, reader, writer)
        await stream.aclose()
        writer.close()


def test_it_carries_what_is_said() -> None:
    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        assert stream.get_extra_info("is_readable") is False
        await stream.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        writer.write(b"pong")
        await writer.drain()
        assert await stream.read(16, 5) == b"pong"
        assert stream.get_extra_info("server_addr")[0] == "127.0.0.1"

    asyncio.run(_served(talk))


def test_the_end_of_an_idle_connection_is_seen() -> None:
    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        writer.close()
        ended = partial(stream.get_extra_info, "is_readable")
        await asyncio.to_thread(eventually, ended, what="the end")

    asyncio.run(_served(talk))


def test_a_closed_stream_is_none_to_wait_for() -> None:
    async def talk(stream: Any, reader: Any, writer: Any) -> None:
        await stream.aclose()
        assert stream.get_extra_info("is_readable") is True

    asyncio.run(_served(talk))
