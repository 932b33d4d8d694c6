"""A small MCP server for tests (2026-07-28, stdio): tools that answer, fail, wait and count.

It uses only the standard library, so that it starts in a few hundredths of a second; third-party
servers are tested elsewhere. `count` appends a line to the file in `WORKSHOP_FILE`, so that a test
sees each effect, and a long `wait` writes a line there when it begins. `WORKSHOP_TOOLS` names
additional tools, so that a server can change between two starts. With `WORKSHOP_CHANGES` it changes
while it runs and sends notifications on `subscriptions/listen`: `change` gives `echo` another
description. With `WORKSHOP_GATE` it has a tool `climb`, which reports progress and then waits until
the file of that name exists.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

VERSION = "2026-07-28"
CHANGES = bool(os.environ.get("WORKSHOP_CHANGES"))
GATE = os.environ.get("WORKSHOP_GATE")
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
subscriptions = []
LOCK = threading.Lock()
# Tests interrupt a wait of this length.
LONG_WAIT_S = 60


def tool(name, description, **properties):
    schema = {"type": "object", "properties": properties, "required": sorted(properties)}
    return {"name": name, "description": description, "inputSchema": schema}


TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
TOOLS = [
    tool("echo", "Return the text.", text=TEXT),
    tool("add", "Add two numbers.", a=WHOLE, b=WHOLE),
    tool("fail", "Fail, always.", reason=TEXT),
    tool("wait", "Wait before answering.", seconds=NUMBER),
    tool("count", "Write a line into the test's file.", what=TEXT),
    tool("long", "Return a long text.", characters=WHOLE),
    tool("crash", "End the process without an answer."),
    tool("environment", "Return the names of the environment's variables."),
    *([tool("change", "Describe `echo` anew and tell it.", words=TEXT)] if CHANGES else []),
    *([tool("climb", "Climb, slowly.")] if GATE else []),
    *(tool(name, "One more tool.") for name in os.environ.get("WORKSHOP_TOOLS", "").split()),
]


def write(line):
    if file := os.environ.get("WORKSHOP_FILE"):
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(f"{line}\n")


def run(name, arguments):
    """Return (text, structured content, is error) of one call."""
    if name == "echo":
        return arguments["text"], None, False
    if name == "add":
        total = arguments["a"] + arguments.get("b", 0)  # a changed schema can have a default
        return (
            str(total),
            {"result": total},
            False,
        )
    if name == "fail":
        return arguments["reason"], None, True
    if name == "wait":
        if arguments["seconds"] >= LONG_WAIT_S:
            write("waiting")
        time.sleep(arguments["seconds"])
        return f"waited {arguments['seconds']} s", None, False
    if name == "count":
        write(arguments["what"])
        return f"counted {arguments['what']}", None, False
    if name == "long":
        return "x" * arguments["characters"], None, False
    if name == "crash":
        os._exit(3)
    if name == "environment":
        return "\n".join(sorted(os.environ)), None, False
    return name, None, False


def result(method, params):
    if method == "server/discover":
        return {
            "supportedVersions": [VERSION],
            "capabilities": {"tools": {"listChanged": True} if CHANGES else {}},
            "instructions": "Tools to test with.",
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "workshop", "version": "1"}},
        }
    if method == "tools/list":
        return {"tools": TOOLS, "ttlMs": 0, "cacheScope": "private"}
    if method == "tools/call" and params["name"] == "change":
        TOOLS[0] = tool("echo", params["arguments"]["words"], text=TEXT)
        for number in subscriptions:
            notify("tools/list_changed", number)
        return {"content": [{"type": "text", "text": "changed"}]}
    if method == "tools/call" and params["name"] == "climb":
        progress = {"progressToken": params["_meta"]["progressToken"], "progress": 1, "total": 2}
        send({"method": "notifications/progress", "params": progress | {"message": "half way"}})
        while not Path(GATE).exists():
            time.sleep(0.02)
        return {"content": [{"type": "text", "text": "at the top"}]}
    if method == "tools/call":
        text, structured, failed = run(params["name"], params.get("arguments") or {})
        answer = {"content": [{"type": "text", "text": text}], "isError": failed}
        return answer | ({"structuredContent": structured} if structured else {})
    return None


def send(message):
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def notify(event, subscription_id, **params):
    params["_meta"] = {SUBSCRIPTION: subscription_id}
    send({"method": f"notifications/{event}", "params": params})


def answer(request):
    if CHANGES and request["method"] == "subscriptions/listen":
        subscriptions.append(request["id"])
        filters = request["params"]["notifications"]
        notify("subscriptions/acknowledged", request["id"], notifications=filters)
        return
    value = result(request["method"], request.get("params") or {})
    if value is None:
        body = {"error": {"code": -32601, "message": "Method not found"}}
    else:
        body = {"result": {"resultType": "complete", **value}}
    send({"id": request["id"], **body})


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            threading.Thread(target=answer, args=(message,), daemon=True).start()
