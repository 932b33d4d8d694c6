"""A server of the handshake era over stdio, without the SDK, that talks to its connection unasked.

The tool `poke` is answered, and then the connection gets a log message and an update of each
resource it subscribed to, `times` times. `hold` isn't answered before the next `say`, which logs
once, while both are pending.
"""

import json
import sys
from typing import Any

OBJECT = {"type": "object"}
LISTS: dict[str, Any] = {
    "tools/list": {"tools": [{"name": x, "inputSchema": OBJECT} for x in ("poke", "hold", "say")]},
    "resources/list": {"resources": [{"uri": "talk://a", "name": "a"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "prompts/list": {"prompts": []},
}
INFO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "resources": {"subscribe": True}, "logging": {}},
    "serverInfo": {"name": "talkative", "version": "1"},
}
subscribed: list[str] = []
held: list[Any] = []


def send(message: dict[str, Any]) -> None:
    """Write one message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def log(text: str) -> None:
    """Send a log message."""
    send({"method": "notifications/message", "params": {"level": "info", "data": text}})


def answer(request_id: Any) -> None:
    """Answer a call."""
    send({"id": request_id, "result": {"content": [{"type": "text", "text": "done"}]}})


def call(request_id: Any, tool: str, arguments: dict[str, Any]) -> None:
    """Run a tool."""
    if tool == "hold":
        held.append(request_id)
        return
    if tool == "say":
        log("said")
        for pending in (*held, request_id):
            answer(pending)
        held.clear()
        return
    answer(request_id)
    for number in range(arguments.get("times", 1)):
        log(f"poked {number}")
        for uri in subscribed:
            send({"method": "notifications/resources/updated", "params": {"uri": uri}})


for line in sys.stdin:
    received = json.loads(line)
    method, number, params = received.get("method"), received.get("id"), received.get("params", {})
    if number is None or method is None:
        continue
    if method == "tools/call":
        call(number, params["name"], params.get("arguments", {}))
    elif method == "resources/subscribe":
        subscribed.append(params["uri"])
        send({"id": number, "result": {}})
    elif method == "initialize" or method in LISTS:
        send({"id": number, "result": INFO if method == "initialize" else LISTS[method]})
    elif method in ("ping", "resources/unsubscribe", "resources/read"):
        send({"id": number, "result": {"contents": []} if method == "resources/read" else {}})
    else:
        send({"id": number, "error": {"code": -32601, "message": "Method not found"}})
