"""Start the server: `stdio` or `http [PORT]`."""

import asyncio
import sys

from mcp.server.stdio import stdio_server

from tests.servers.conformance_server.server import OPTIONS, SERVER
from tests.servers.sdk_server import serve_http


async def serve_stdio() -> None:
    """Serve until the input ends."""
    async with stdio_server() as (read, write):
        await SERVER.run(read, write, OPTIONS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        asyncio.run(serve_http(SERVER.streamable_http_app(), int([*sys.argv, "0"][2])))
    else:
        asyncio.run(serve_stdio())
