"""A server that ends closes event streams, which have no end, and lets other responses finish."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from bonobot.processes.http_protocol import Protocol
from tests.mcp_servers.client.endpoints import until

ENDED_WITHIN_S = 4  # less than the server waits for open responses
EVENT = b"event: counts\ndata: 1\n\n"


class StreamingApp:
    """Streams one event and then waits for the client to disconnect, or for `may_end`."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.disconnects = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        content_type = scope["path"][1:].encode()
        headers = [(b"content-type", content_type)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        if scope["path"] == "/text/plain":
            await self.may_end.wait()
            await send({"type": "http.response.body", "body": b"end"})
            return
        while (await receive())["type"] != "http.disconnect":
            pass
        self.disconnects += 1


@pytest.fixture
async def app() -> StreamingApp:
    return StreamingApp()


@pytest.fixture
async def port(app: StreamingApp) -> AsyncIterator[int]:
    """The port of a server, which the app knows with its task."""
    config = uvicorn.Config(
        app, http=Protocol, lifespan="off", log_level="critical", timeout_graceful_shutdown=5
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listener]))
        await until(lambda: server.started)
        app.server, app.task = server, task  # type: ignore[attr-defined]
        yield listener.getsockname()[1]
        server.should_exit = server.force_exit = True
        await task


@asynccontextmanager
async def open_stream(port: int, content_type: str) -> AsyncIterator[asyncio.StreamReader]:
    """Send a request and read the first event."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /{content_type} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    await reader.readuntil(EVENT)
    yield reader
    writer.close()
    await writer.wait_closed()


async def test_an_event_stream_is_closed_when_the_server_ends(app: Any, port: int) -> None:
    async with open_stream(port, "text/event-stream") as reader:
        app.server.should_exit = True
        await asyncio.wait_for(app.task, ENDED_WITHIN_S)
        await reader.read()
    assert app.disconnects == 1


async def test_another_response_ends_before_the_server_does(app: Any, port: int) -> None:
    async with open_stream(port, "text/plain") as reader:
        app.server.should_exit = True
        await until(lambda: not app.server.servers[0].is_serving())
        app.may_end.set()
        await asyncio.wait_for(app.task, ENDED_WITHIN_S)
        assert b"end" in await reader.read()
