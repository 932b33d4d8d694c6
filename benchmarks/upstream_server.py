"""The server that benchmarks call, and what they call it with; needs no Django."""

from typing import Any

from tests.servers import raw_http_server
from tests.servers.raw_http_server import RecordedRequest

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
