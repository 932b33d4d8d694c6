"""The upstream of the drill: it writes down each charge: `charge_server.py FILE PORT`.

A charge takes a while. It promises nothing about repeating a charge: whoever repeats one is found
out by the file.
"""

import asyncio
import sys
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

HOST = "10.77.0.1"
TAKES_S = 0.3

server = MCPServer("till")
FILE, PORT = Path(sys.argv[1]), int(sys.argv[2])


@server.tool()
async def charge(key: str) -> str:
    """Charge an account."""
    with FILE.open("a", encoding="utf-8") as file:
        file.write(f"{key}\n")
    await asyncio.sleep(TAKES_S)
    return f"charged {key}"


if __name__ == "__main__":
    protection = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[f"{HOST}:{PORT}"],
        allowed_origins=[],
    )
    app = server.streamable_http_app(transport_security=protection)
    uvicorn.run(app, host=HOST, port=PORT, log_level="error")
