"""Connection pools for each test, and real servers over HTTP."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool
from tests import processes
from tests.mcp_servers.client.endpoints import ALL, SCRIPT, SERVERS, Clock, http, stdio, until
from tests.mcp_servers.client.event_recorder import EventRecorder


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def connections(clock: Clock) -> AsyncIterator[ConnectionPool]:
    pool = ConnectionPool(clock=clock)
    yield pool
    await pool.close()


@pytest.fixture(scope="module", params=["http", "stdio"])
def make_endpoint(request: pytest.FixtureRequest) -> Iterator[Callable[..., ServerEndpoint]]:
    """Return a function that builds the endpoint of a server that supports both eras."""
    if request.param == "stdio":
        script = str(SERVERS / SCRIPT)
        yield lambda **more: stdio(
            sys.executable, script, "stdio", allowed_requests=ALL, **{"start_s": 60, **more}
        )
        return
    with processes.serve(SCRIPT, "http") as url:
        yield lambda **more: http(url, allowed_requests=ALL, **more)


@pytest.fixture
async def recorder() -> AsyncIterator[EventRecorder]:
    event_recorder = EventRecorder()
    yield event_recorder
    await event_recorder.connections.close()


@pytest.fixture
async def start_listening(
    recorder: EventRecorder,
) -> AsyncIterator[Callable[[ServerEndpoint], Any]]:
    """Return a function that opens a stream until the test ends; it returns once granted."""
    tasks = []

    async def start(endpoint: ServerEndpoint) -> asyncio.Task[None]:
        task = asyncio.create_task(recorder.listen(endpoint))
        tasks.append(task)
        await until(lambda: recorder.granted or task.done())
        return task

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(scope="session")
def modern_url() -> Iterator[str]:
    """Run the SDK's server over HTTP for the whole session."""
    yield from _run_sdk_server("http", "/mcp")


@pytest.fixture(scope="session")
def sse_url() -> Iterator[str]:
    """Run the SDK's server over HTTP+SSE for the whole session."""
    yield from _run_sdk_server("sse", "/sse")


def _run_sdk_server(transport: str, path: str) -> Iterator[str]:
    command = [sys.executable, str(SERVERS / "sdk_server.py"), transport]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        port = server.stdout.readline().split()[1]
        yield f"http://127.0.0.1:{port}{path}"
        server.terminate()
