"""The server that benchmarks call, and what they call it with; needs no Django."""

import json
from typing import Any

from tests.servers import raw_http_server
from tests.servers.raw_http_server import RecordedRequest

META = "io.modelcontextprotocol/"
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 1000},
        "note": {"type": "string"},
        "count": {"type": "integer", "minimum": 0},
        "where": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    "required": ["text"],
}
SAID = {"resultType": "complete", "content": [{"type": "text", "text": "It is warm. " * 40}]}
COMPLETE = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"}


def answer(asked: RecordedRequest) -> bytes:
    """Answer as the server that is called."""
    if asked.method == "server/discover":
        return raw_http_server.discovery(asked)
    listed = {**COMPLETE, "tools": [{"name": "echo", "inputSchema": SCHEMA}]}
    return raw_http_server.result(asked, listed if asked.method == "tools/list" else SAID)


def arguments(number: int) -> dict[str, Any]:
    """Return the arguments of a call: those of no two calls are the same."""
    text = f"the quick brown fox number {number}"
    return {"text": text, "note": "x" * 200, "count": number, "where": {"city": "Ulm"}}


def modern_request(tool: str, number: int, token: str = "") -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a modern call of the upstream's tool."""
    params = {"name": tool, "arguments": arguments(number)}
    return build_modern_request("tools/call", tool, params, number=number, token=token)


def build_modern_request(
    method: str, name: str, params: dict[str, Any], *, number: int = 1, token: str = ""
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a modern request about the tool or resource `name`."""
    meta = {
        f"{META}protocolVersion": raw_http_server.MODERN,
        f"{META}clientInfo": {"name": "bench", "version": "1"},
        f"{META}clientCapabilities": {},
    }
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params | {"_meta": meta}}
    body = json.dumps(message).encode()
    return {
        "Host": "127.0.0.1",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "MCP-Protocol-Version": raw_http_server.MODERN,
        "Mcp-Method": method,
        "Mcp-Name": name,
        **({"Authorization": f"Bearer {token}"} if token else {}),
    }, body
