"""Connections of their own for each test, and a real server over HTTP."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import SERVERS, Clock, until
from tests.mcp_servers.client.event_recorder import Ears


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def connections(clock: Clock) -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(clock=clock)
    yield made
    await made.close()


@pytest.fixture
async def ears() -> AsyncIterator[Ears]:
    made = Ears()
    yield made
    await made.connections.close()


@pytest.fixture
async def listening_to(ears: Ears) -> AsyncIterator[Callable[[ServerEndpoint], Any]]:
    """Return a function that listens until the test is over, and returns when granted."""
    tasks = []

    async def begin(endpoint: ServerEndpoint) -> asyncio.Task[None]:
        task = asyncio.create_task(ears.listen(endpoint))
        tasks.append(task)
        await until(lambda: ears.granted or task.done())
        return task

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(scope="session")
def modern_url() -> Iterator[str]:
    """Run the SDK's server over HTTP for the whole session."""
    yield from _served("http", "/mcp")


@pytest.fixture(scope="session")
def sse_url() -> Iterator[str]:
    """Run the SDK's server over HTTP+SSE for the whole session."""
    yield from _served("sse", "/sse")


def _served(way: str, path: str) -> Iterator[str]:
    command = [sys.executable, str(SERVERS / "sdk_server.py"), way]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        port = server.stdout.readline().split()[1]
        yield f"http://127.0.0.1:{port}{path}"
        server.terminate()
