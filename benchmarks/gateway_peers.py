"""The processes that `bench_gateway` compares with Bonobot: a server, and a relay.

    python -m benchmarks.gateway_peers upstream PORT
    python -m benchmarks.gateway_peers relay PORT URL

The relay is a server of the SDK that forwards calls to a client of the SDK, without any checks.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.types import CallToolResult, ListToolsResult

from benchmarks.upstream_server import answer
from tests.servers.raw_http_server import RawHttp


async def run_upstream(port: int) -> None:
    """Answer calls immediately until the process ends."""
    http = RawHttp(answer, port=port)
    async with http.listening():
        while True:
            await asyncio.sleep(1)
            http.asked.clear()


def run_relay(port: int, url: str) -> None:
    """Forward every call through one open client."""

    @asynccontextmanager
    async def open_client(_: Server[Client]) -> AsyncIterator[Client]:
        async with Client(streamable_http_client(url), mode="2026-07-28") as client:
            await client.list_tools()
            yield client

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        results: ListToolsResult = await ctx.lifespan_context.list_tools()
        return results

    async def call_tool(ctx: Any, params: Any) -> CallToolResult:
        results: CallToolResult = await ctx.lifespan_context.call_tool(
            params.name, params.arguments
        )
        return results

    server: Server[Client] = Server(
        "relay", lifespan=open_client, on_list_tools=list_tools, on_call_tool=call_tool
    )
    application = server.streamable_http_app()
    uvicorn.run(application, host="127.0.0.1", port=port, log_level="error", access_log=False)


if __name__ == "__main__":
    if sys.argv[1] == "upstream":
        asyncio.run(run_upstream(int(sys.argv[2])))
    else:
        run_relay(int(sys.argv[2]), sys.argv[3])
