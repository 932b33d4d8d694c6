"""A client that doesn't read the rest of a response loses its connection, however little waits."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn

from bonobot.processes.http_protocol import Protocol
from tests.mcp_servers.client.endpoints import until

BUFFER = 4096  # of the system at both ends; the rest waits in the process
HEAD = b"Host: 127.0.0.1\r\n"
CLOSED_WITHIN_S = 10
BYTES_PER_S = 20_000  # of a slow reader


async def send_body(scope: Any, receive: Any, send: Any) -> None:
    """Answer with as many bytes as the path says."""
    size = int(scope["path"][1:])
    headers = [(b"content-length", b"%d" % size)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x" * size})


@pytest.fixture
async def server(settings: Any) -> AsyncIterator[uvicorn.Server]:
    """A server with small buffers."""
    settings.BONOBOT_RESPONSE_S = 1
    settings.BONOBOT_REQUEST_HEAD_S = 2
    config = uvicorn.Config(
        send_body, http=Protocol, lifespan="off", log_level="critical", timeout_keep_alive=1
    )
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        listener.bind(("127.0.0.1", 0))
        uvicorn_server = uvicorn.Server(config)
        uvicorn_server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        task = asyncio.create_task(uvicorn_server._serve([listener]))
        while not uvicorn_server.started:
            await asyncio.sleep(0)
        uvicorn_server.port = listener.getsockname()[1]  # type: ignore[attr-defined]
        yield uvicorn_server
        uvicorn_server.should_exit = uvicorn_server.force_exit = True
        await task


@asynccontextmanager
async def connect(server: Any) -> AsyncIterator[socket.socket]:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", server.port))
        yield client


async def read(client: socket.socket, size: int) -> int:
    """Read up to `size` bytes; return how many came."""
    received = 0
    while received < size:
        part = await asyncio.get_running_loop().sock_recv(client, min(4096, size - received))
        if not part:
            break
        received += len(part)
    return received


async def read_nothing(client: socket.socket) -> None:
    pass


async def read_most(client: socket.socket) -> None:
    """Read until less waits than what pauses the application."""
    await read(client, 80 * 1024)


REQUESTS = {
    "closed after the response": b"GET /40000 HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n",
    "HTTP/1.0": b"GET /40000 HTTP/1.0\r\n\r\n",
    "kept alive": b"GET /40000 HTTP/1.1\r\n" + HEAD + b"\r\n",
    "followed by an invalid request": b"GET /40000 HTTP/1.1\r\n" + HEAD + b"\r\nnonsense\r\n\r\n",
    "followed by half a request": b"GET /40000 HTTP/1.1\r\n" + HEAD + b"\r\nGET /",
    "error with a body": b"POST /40000 HTTP/1.1\r\n" + HEAD + b"Content-Length: 9\r\n\r\n1",
}
READERS: dict[str, tuple[bytes, Callable[[socket.socket], Awaitable[None]]]] = {
    **{name: (request, read_nothing) for name, request in REQUESTS.items()},
    "less left than what pauses": (
        REQUESTS["closed after the response"].replace(b"/40000", b"/100000"),
        read_most,
    ),
}


@pytest.mark.parametrize("name", READERS)
async def test_a_client_that_stops_reading_is_disconnected(
    server: uvicorn.Server, name: str
) -> None:
    request, read_part = READERS[name]
    connections = server.server_state.connections
    async with connect(server) as client:
        await asyncio.get_running_loop().sock_sendall(client, request)
        await read_part(client)
        await until(lambda: not connections, CLOSED_WITHIN_S)


def has_passed(moment: float) -> bool:
    return time.monotonic() >= moment


@pytest.mark.parametrize("name", ["closed after the response", "HTTP/1.0", "kept alive"])
async def test_a_client_that_reads_slowly_gets_the_whole_response(
    server: uvicorn.Server, name: str
) -> None:
    async with connect(server) as client:
        await asyncio.get_running_loop().sock_sendall(client, REQUESTS[name])
        received, started = 0, time.monotonic()
        while received < 40_000 and (part := await read(client, 4096)):
            received += part
            next_at = started + received / BYTES_PER_S
            await until(partial(has_passed, next_at))
    assert received >= 40_000
