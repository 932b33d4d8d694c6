"""An MCP server on the SDK, both eras: `live_requests_server.py stdio`, or `http` or `stateless`.

Its tools `ask` and `sample` send requests during a call, which the SDK does only in the handshake
era; `era` returns the protocol version of the call. `stateless` serves HTTP without sessions, where
such requests can't be sent either.
"""

import asyncio
import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import SamplingMessage, TextContent
from pydantic import BaseModel

from tests.servers.sdk_server import serve_http

server = MCPServer("live-requests-server")


class Person(BaseModel):
    """What a person is asked for."""

    name: str


@server.tool()
async def ask(ctx: Context[Any]) -> str:
    """Ask the person for a name."""
    answer = await ctx.elicit("Who are you?", Person)
    return f"Hello {answer.data.name}" if answer.action == "accept" else answer.action


@server.tool()
async def sample(ctx: Context[Any]) -> str:
    """Have the client's model name a color."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="Name a color."))
    answer = await ctx.session.create_message([message], max_tokens=50)
    return f"painted {getattr(answer.content, 'text', '?')}"


@server.tool()
def era(ctx: Context[Any]) -> str:
    """Return the protocol version of this call."""
    return str(ctx.request_context.protocol_version)


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        app = server.streamable_http_app(stateless_http=sys.argv[1] == "stateless")
        asyncio.run(serve_http(app, 0))
