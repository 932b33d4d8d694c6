"""An MCP server over stdio that sends the client any requests that a test wants.

Usage: `client_request_server.py modern|handshake`.

It uses only the standard library. Every incoming message is a line of JSON in `ASKER_FILE`, and the
states of its tasks are in a file next to it, so that a restarted server knows them.

`script` returns the results from its arguments, one per round (modern era); `task` returns a task
that goes through the states from its arguments; `ask` sends requests and returns the responses
(handshake era); `take_back` sends a request, cancels it while the client works on it, and returns.
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
    value_text = value if isinstance(value, str) else json.dumps(value)
    return {"resultType": "complete", "content": [{"type": "text", "text": value_text}]}


def log(message: Message) -> None:
    with LOG.open("a", encoding="utf-8") as file:
        file.write(json.dumps(message) + "\n")


class PendingCall:
    """A call of the handshake era that waits for the client's responses."""

    def __init__(self, number: Any, arguments: Message, *, cancels: bool) -> None:
        self.number = number
        self.cancels = cancels
        self.requests = list(arguments.get("requests", ()))
        self.answers: list[Message] = []
        for index, client_request in enumerate(self.requests):
            send({"id": f"{number}-{index}", **client_request})
        if cancels:  #  a ping's response shows that the client works on it
            send({"id": "ping", "method": "ping"})

    def handle_response(self, message: Message) -> bool:
        """Handle a response; return whether it was the last one."""
        if self.cancels:
            taken = {"requestId": f"{self.number}-0", "reason": "never mind"}
            send({"method": "notifications/cancelled", "params": taken})
            done = {"elicitationId": "done-1"}
            send({"method": "notifications/elicitation/complete", "params": done})
            send({"id": self.number, "result": text("taken back")})
            return True
        self.answers.append(
            {name: message[name] for name in ("result", "error") if name in message}
        )
        if len(self.answers) < len(self.requests):
            return False
        send({"id": self.number, "result": text(self.answers)})
        return True


def script(params: Message) -> Message:
    """Return the round's result; after the last round, the client's responses."""
    rounds = params["arguments"]["rounds"]
    index = int(params.get("requestState", "0").partition("|")[0])
    if index >= len(rounds):
        return text(params.get("inputResponses", {}))
    return {"resultType": "input_required", "requestState": str(index + 1), **rounds[index]}


def load_states() -> dict[str, list[Message]]:
    return json.loads(STATES.read_text()) if STATES.exists() else {}


def create_task(arguments: Message) -> Message:
    """Create a task that goes through the states, one at each poll."""
    tasks = load_states()
    name = f"task-{len(tasks) + 1}"
    tasks[name] = arguments["states"]
    STATES.write_text(json.dumps(tasks))
    more = {"pollIntervalMs": arguments.get("poll_ms", 10), "ttlMs": arguments.get("ttl_ms")}
    timestamps = {"createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z"}
    return {"resultType": "task", "taskId": name, "status": "working", **timestamps, **more}


def get_task(params: Message) -> Message | None:
    """Return the task's state and advance it; `input_required` stays until it is answered."""
    tasks = load_states()
    states = tasks.get(params["taskId"])
    if states is None:
        return None
    state = states[0]
    if len(states) > 1 and state["status"] != "input_required":
        tasks[params["taskId"]] = states[1:]
        STATES.write_text(json.dumps(tasks))
    return {"resultType": "complete", "taskId": params["taskId"], **state}


def advance_task(name: str, *, cancelled: bool = False) -> None:
    tasks = load_states()
    tasks[name] = [{"status": "cancelled"}] if cancelled else tasks[name][1:]
    STATES.write_text(json.dumps(tasks))


def handle_call(number: Any, params: Message) -> PendingCall | None:
    tool, arguments = params["name"], params.get("arguments", {})
    if tool in ("ask", "take_back"):
        return PendingCall(number, arguments, cancels=tool == "take_back")
    if tool == "url_first" and not LOG.with_suffix(".signed").exists():
        LOG.with_suffix(".signed").touch()
        elicitation = {
            "mode": "url",
            "elicitationId": "e1",
            "url": arguments["url"],
            "message": "Hi",
        }
        fault = {"code": -32042, "message": "Sign in", "data": {"elicitations": [elicitation]}}
        send({"id": number, "error": fault})
        return None
    handler = {"task": create_task, "url_first": lambda _: text("signed in")}.get(tool)
    send({"id": number, "result": handler(arguments) if handler else script(params)})
    return None


def answer(method: str, number: Any, params: Message) -> PendingCall | None:
    capabilities = {"tools": {}, "resources": {}, "prompts": {}}
    if method == "tools/call":
        return handle_call(number, params)
    if method in ("prompts/get", "resources/read"):
        requests = {"name": {"method": "elicitation/create", "params": FORM}}
        rounds = [{"inputRequests": requests}]
        result = script({**params, "arguments": {"rounds": rounds}})
        responses = json.dumps(params.get("inputResponses", {}))
        if "inputRequests" not in result and method == "prompts/get":
            result = {
                "messages": [{"role": "user", "content": {"type": "text", "text": responses}}]
            }
        elif "inputRequests" not in result:
            result = {"contents": [{"uri": params["uri"], "text": responses}]}
        send({"id": number, "result": result})
        return None
    if method == "tasks/update":
        advance_task(params["taskId"])
    elif method == "tasks/cancel":
        advance_task(params["taskId"], cancelled=True)
    results: dict[str, Message | None] = {
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
        "tasks/get": get_task(params) if method == "tasks/get" else None,
    }
    if (result := results.get(method)) is None:
        send({"id": number, "error": {"code": -32602, "message": f"No {method}"}})
    else:
        send({"id": number, "result": result})
    return None


FORM: Message = {
    "mode": "form",
    "message": "Who are you?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}


def main(era: str) -> None:
    """Serve until the input ends."""
    pending: PendingCall | None = None
    for line in sys.stdin:
        message = json.loads(line)
        log(message)
        method, number = message.get("method"), message.get("id")
        if method is None:
            if pending is not None and pending.handle_response(message):
                pending = None
        elif number is not None and method == ("initialize", "server/discover")[era == "handshake"]:
            send({"id": number, "error": {"code": -32601, "message": "Method not found"}})
        elif number is not None:
            pending = answer(method, number, message.get("params", {})) or pending


if __name__ == "__main__":
    main(sys.argv[1])
