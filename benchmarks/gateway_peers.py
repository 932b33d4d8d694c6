"""The processes that `bench_gateway` measures beside Bonobot: an upstream, and a bare relay.

    python -m benchmarks.gateway_peers upstream PORT
    python -m benchmarks.gateway_peers relay PORT URL

The relay is the SDK's own server in front of the SDK's own client: no policy, no audit, nothing.
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


async def upstream(port: int) -> None:
    """Answer at once, for ever."""
    http = RawHttp(answer, port=port)
    async with http.listening():
        while True:
            await asyncio.sleep(1)
            http.asked.clear()


def relay(port: int, url: str) -> None:
    """Hand every call on, over one client that stays open."""

    @asynccontextmanager
    async def opened(_: Server[Client]) -> AsyncIterator[Client]:
        async with Client(streamable_http_client(url), mode="2026-07-28") as client:
            await client.list_tools()
            yield client

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        found: ListToolsResult = await ctx.lifespan_context.list_tools()
        return found

    async def call_tool(ctx: Any, params: Any) -> CallToolResult:
        found: CallToolResult = await ctx.lifespan_context.call_tool(params.name, params.arguments)
        return found

    server: Server[Client] = Server(
        "relay", lifespan=opened, on_list_tools=list_tools, on_call_tool=call_tool
    )
    application = server.streamable_http_app()
    uvicorn.run(application, host="127.0.0.1", port=port, log_level="error", access_log=False)


if __name__ == "__main__":
    if sys.argv[1] == "upstream":
        asyncio.run(upstream(int(sys.argv[2])))
    else:
        relay(int(sys.argv[2]), sys.argv[3])
