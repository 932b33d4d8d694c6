"""Endpoints of the servers in `tests/servers`, and helpers to call them."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.pool import ConnectionPool

SERVERS = Path(__file__).parents[2] / "servers"
# A server that supports both eras and sends requests of each kind, and these kinds.
SCRIPT = "live_requests_server.py"
ALL = frozenset({"sampling", "elicitation", "roots"})
ORGANIZATION = UUID(int=1)
HOLDER = "session:test"


class Clock:
    """A clock that tests set forward."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def until(predicate: Callable[[], Any], within_s: float = 5) -> None:
    """Run the loop until `predicate` is true."""
    async with asyncio.timeout(within_s):
        while not predicate():
            await asyncio.sleep(0.01)


async def failure(request: Awaitable[Any]) -> UpstreamError:
    """Return the error of a request to `a server`."""
    with pytest.raises(UpstreamError) as error:
        await request
    assert (error.value.server, "a server" in str(error.value)) == ("a server", True)
    return error.value


def http(url: str, **more: Any) -> ServerEndpoint:
    """Return the endpoint of a server on the loopback."""
    fields: dict[str, Any] = {
        "server_id": uuid4(),
        "name": "a server",
        "organization_id": ORGANIZATION,
        "allow_private": True,
        "connect_s": 5,
        "read_s": 10,
    }
    return ServerEndpoint(transport="http", url=url, **(fields | more))


def stdio(command: str, *args: str, **more: Any) -> ServerEndpoint:
    """Return the endpoint of a command."""
    fields: dict[str, Any] = {
        "server_id": uuid4(),
        "name": "a server",
        "organization_id": ORGANIZATION,
        "read_s": 10,
    }
    return ServerEndpoint(transport="stdio", command=command, args=args, **(fields | more))


def faulty_stdio(behavior: str = "both", catalog: str = "tools", **more: Any) -> ServerEndpoint:
    """Return the endpoint of `tests/servers/faulty_stdio_server.py`."""
    script = str(SERVERS / "faulty_stdio_server.py")
    return stdio(sys.executable, script, f"--era={behavior}", f"--catalog={catalog}", **more)


async def call(
    connections: ConnectionPool, endpoint: ServerEndpoint, tool: str, /, **options: Any
) -> dict[str, Any]:
    """Call a tool; keywords that aren't options of `send_request` are its arguments."""
    option_names = ("holder", "timeout_s", "on_progress", "input_schema", "host")
    request_options = {name: options.pop(name) for name in option_names if name in options}
    params = {"name": tool, "arguments": options}
    return await connections.send_request(
        endpoint, "tools/call", params, **({"holder": HOLDER} | request_options)
    )


def count_starts(connections: ConnectionPool, endpoint: ServerEndpoint) -> int:
    """Count how often the server's latest connection started a child process."""
    return connections.get_stderr_tail(endpoint.server_id).count("started")


def text_of(result: dict[str, Any]) -> str:
    """Return the first text of a tool's result."""
    return str(result["content"][0]["text"])
