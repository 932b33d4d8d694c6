"""An MCP server on the SDK, over HTTP, that logs its calls to a file: `call_log_server.py FILE`.

`charge` has an effect each time; `get_balance` is declared read-only.
"""

import asyncio
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("counting-test-server")
FILE = Path(sys.argv[1])


def _log(text: str) -> str:
    with FILE.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return text


@server.tool()
def charge(key: str) -> str:
    """Charge an account."""
    return _log(f"charge {key}")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def get_balance(key: str) -> str:
    """Get the balance of an account."""
    return _log(f"get_balance {key}")


if __name__ == "__main__":
    from sdk_server import serve_http  # the script next to this one

    asyncio.run(serve_http(server.streamable_http_app(), 0))
