"""An MCP server on the SDK, over HTTP, whose tools change, with notifications.

Usage: `list_changed_server.py [PORT]`.

`alter` gives `echo` another description, `add_one` adds a tool; each sends the notification of the
caller's era. `quietly` changes `echo` without a notification.
"""

import asyncio
import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("changing-test-server")


def echo(text: str) -> str:
    """Return the text as it is."""
    return text


server.add_tool(echo, name="echo", description="Return the text.")


async def _notify(ctx: Context[Any]) -> None:
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()


def _describe(description: str) -> None:
    server.remove_tool("echo")
    server.add_tool(echo, name="echo", description=description)


@server.tool()
async def alter(ctx: Context[Any], description: str) -> str:
    """Give `echo` another description and tell it."""
    _describe(description)
    await _notify(ctx)
    return "altered"


@server.tool()
def quietly(description: str) -> str:
    """Give `echo` another description and tell nobody."""
    _describe(description)
    return "altered"


@server.tool()
async def add_one(ctx: Context[Any], name: str) -> str:
    """Add a tool and tell it."""
    server.add_tool(echo, name=name, description="One more.")
    await _notify(ctx)
    return "added"


@server.tool()
async def touch(ctx: Context[Any], uri: str) -> str:
    """Tell that a resource changed."""
    await ctx.notify_resource_updated(uri)
    return "touched"


if __name__ == "__main__":
    from sdk_server import serve_http  # the script next to this one

    asyncio.run(serve_http(server.streamable_http_app(), int([*sys.argv, "0"][1])))
