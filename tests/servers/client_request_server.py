"""An MCP server over stdio that asks back whatever a test wants.

Usage: `client_request_server.py modern|handshake`.

Nothing but the standard library. Every request and answer that comes is a line of JSON in
`ASKER_FILE`, and what its tasks have come to stands beside it, so that a server that was started
anew knows them.

`script` answers with the results that it is given, one a round (modern era); `task` with a task
that goes through the states that it is given; `ask` sends requests and answers with what came back
(handshake era); `take_back` asks, takes it back while that is being worked on, and answers.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

Message = dict[str, Any]
MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
TASKS = "io.modelcontextprotocol/tasks"
INFO = {"name": "asker", "version": "1"}
LOG = Path(os.environ["ASKER_FILE"])
STATES = LOG.with_suffix(".tasks")
OBJECT = {"type": "object"}
ANY: Message = {"type": "object", "properties": {}}
TOOLS = ("script", "task", "ask", "take_back", "url_first")


def send(message: Message) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value: Any) -> Message:
    shown = value if isinstance(value, str) else json.dumps(value)
    return {"resultType": "complete", "content": [{"type": "text", "text": shown}]}


def note(message: Message) -> None:
    with LOG.open("a", encoding="utf-8") as file:
        file.write(json.dumps(message) + "\n")


class Waiting:
    """A call of the handshake era that waits for answers of ours."""

    def __init__(self, number: Any, arguments: Message, *, takes_back: bool) -> None:
        self.number = number
        self.takes_back = takes_back
        self.wanted = list(arguments.get("requests", ()))
        self.answers: list[Message] = []
        for place, asked in enumerate(self.wanted):
            send({"id": f"{number}-{place}", **asked})
        if takes_back:  # the answer to a ping says that it is being worked on
            send({"id": "ping", "method": "ping"})

    def take(self, message: Message) -> bool:
        """Take an answer; say whether that was the last."""
        if self.takes_back:
            taken = {"requestId": f"{self.number}-0", "reason": "never mind"}
            send({"method": "notifications/cancelled", "params": taken})
            done = {"elicitationId": "done-1"}
            send({"method": "notifications/elicitation/complete", "params": done})
            send({"id": self.number, "result": text("taken back")})
            return True
        self.answers.append(
            {name: message[name] for name in ("result", "error") if name in message}
        )
        if len(self.answers) < len(self.wanted):
            return False
        send({"id": self.number, "result": text(self.answers)})
        return True


def script(params: Message) -> Message:
    """Answer with the round's result; behind the last, with what came back."""
    rounds = params["arguments"]["rounds"]
    at = int(params.get("requestState", "0").partition("|")[0])
    if at >= len(rounds):
        return text(params.get("inputResponses", {}))
    return {"resultType": "input_required", "requestState": str(at + 1), **rounds[at]}


def states() -> dict[str, list[Message]]:
    return json.loads(STATES.read_text()) if STATES.exists() else {}


def begin(arguments: Message) -> Message:
    """Make a task that goes through the states, one at each look."""
    known = states()
    name = f"task-{len(known) + 1}"
    known[name] = arguments["states"]
    STATES.write_text(json.dumps(known))
    more = {"pollIntervalMs": arguments.get("poll_ms", 10), "ttlMs": arguments.get("ttl_ms")}
    at = {"createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z"}
    return {"resultType": "task", "taskId": name, "status": "working", **at, **more}


def look(params: Message) -> Message | None:
    """Return the task as it is now, and let it go on; one that asks waits for its answers."""
    known = states()
    left = known.get(params["taskId"])
    if left is None:
        return None
    now = left[0]
    if len(left) > 1 and now["status"] != "input_required":
        known[params["taskId"]] = left[1:]
        STATES.write_text(json.dumps(known))
    return {"resultType": "complete", "taskId": params["taskId"], **now}


def go_on(name: str, *, cancelled: bool = False) -> None:
    known = states()
    known[name] = [{"status": "cancelled"}] if cancelled else known[name][1:]
    STATES.write_text(json.dumps(known))


def called(number: Any, params: Message) -> Waiting | None:
    tool, arguments = params["name"], params.get("arguments", {})
    if tool in ("ask", "take_back"):
        return Waiting(number, arguments, takes_back=tool == "take_back")
    if tool == "url_first" and not LOG.with_suffix(".signed").exists():
        LOG.with_suffix(".signed").touch()
        wanted = {"mode": "url", "elicitationId": "e1", "url": arguments["url"], "message": "Hi"}
        fault = {"code": -32042, "message": "Sign in", "data": {"elicitations": [wanted]}}
        send({"id": number, "error": fault})
        return None
    made = {"task": begin, "url_first": lambda _: text("signed in")}.get(tool)
    send({"id": number, "result": made(arguments) if made else script(params)})
    return None


def answer(method: str, number: Any, params: Message) -> Waiting | None:
    capabilities = {"tools": {}, "resources": {}, "prompts": {}}
    if method == "tools/call":
        return called(number, params)
    if method in ("prompts/get", "resources/read"):
        asked = {"name": {"method": "elicitation/create", "params": FORM}}
        rounds = [{"inputRequests": asked}]
        found = script({**params, "arguments": {"rounds": rounds}})
        given = json.dumps(params.get("inputResponses", {}))
        if "inputRequests" not in found and method == "prompts/get":
            found = {"messages": [{"role": "user", "content": {"type": "text", "text": given}}]}
        elif "inputRequests" not in found:
            found = {"contents": [{"uri": params["uri"], "text": given}]}
        send({"id": number, "result": found})
        return None
    if method == "tasks/update":
        go_on(params["taskId"])
    elif method == "tasks/cancel":
        go_on(params["taskId"], cancelled=True)
    found_by: dict[str, Message | None] = {
        "server/discover": {"supportedVersions": [MODERN], "capabilities": capabilities},
        "initialize": {
            **{"protocolVersion": HANDSHAKE, "capabilities": capabilities, "serverInfo": INFO},
        },
        "tools/list": {"tools": [{"name": name, "inputSchema": ANY} for name in TOOLS]},
        "resources/list": {"resources": [{"uri": "ask://one", "name": "one"}]},
        "prompts/list": {"prompts": [{"name": "ask"}]},
        "resources/templates/list": {"resourceTemplates": []},
        "ping": {},
        **{name: {"resultType": "complete"} for name in ("tasks/update", "tasks/cancel")},
        "tasks/get": look(params) if method == "tasks/get" else None,
    }
    if (found := found_by.get(method)) is None:
        send({"id": number, "error": {"code": -32602, "message": f"No {method}"}})
    else:
        send({"id": number, "result": found})
    return None


FORM: Message = {
    "mode": "form",
    "message": "Who are you?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}


def main(era: str) -> None:
    """Serve until the input ends."""
    waiting: Waiting | None = None
    for line in sys.stdin:
        message = json.loads(line)
        note(message)
        method, number = message.get("method"), message.get("id")
        if method is None:
            if waiting is not None and waiting.take(message):
                waiting = None
        elif number is not None and method == ("initialize", "server/discover")[era == "handshake"]:
            send({"id": number, "error": {"code": -32601, "message": "Method not found"}})
        elif number is not None:
            waiting = answer(method, number, message.get("params", {})) or waiting


if __name__ == "__main__":
    main(sys.argv[1])
