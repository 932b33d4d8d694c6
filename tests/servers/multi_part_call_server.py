"""A modern MCP server over HTTP whose calls take several parts: `multi_part_call_server.py FILE`.

It logs each of its effects to the file. `provision` asks for a name and then completes; `build`
creates a task that works, asks for a name and completes; a resource and a prompt ask for a name
first. A task can be polled again in any state, and a repeated answer counts once.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from raw_http_server import (  # the script next to this one
    MODERN,
    RawHttp,
    RecordedRequest,
    error,
    result,
)

FILE = Path(sys.argv[1])
TASKS = "io.modelcontextprotocol/tasks"
# Longer than a part of a call may take: each poll of the task is one part.
PACE_MS = 100_000
KEY_SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
FORM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Who are you?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}
RESULTS: dict[str, dict[str, Any]] = {
    "server/discover": {
        "supportedVersions": [MODERN],
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "extensions": {TASKS: {}}},
    },
    "tools/list": {
        "tools": [{"name": name, "inputSchema": KEY_SCHEMA} for name in ("provision", "build")]
    },
    "resources/list": {"resources": [{"uri": "parts://book", "name": "book"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "prompts/list": {"prompts": [{"name": "letter"}]},
}
polls: dict[str, int] = {}
answers: dict[str, str] = {}


def log(text: str) -> str:
    with FILE.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return text


def name_in(params: dict[str, Any]) -> str | None:
    """Return the name that a person entered; None if it must be requested."""
    answer = params.get("inputResponses", {}).get("who")
    return answer and str(answer.get("content", {}).get("name", answer["action"]))


def complete_call(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Complete a request whose name is known."""
    name = name_in(params)
    if method == "resources/read":
        text = log("read book")
        return {"contents": [{"uri": params["uri"], "text": f"{text} {name}"}]}
    if method == "prompts/get":
        content = {"type": "text", "text": f"{log('fill letter')} {name}"}
        return {"messages": [{"role": "user", "content": content}]}
    text = log(f"provision {params['arguments']['key']}")
    return {"content": [{"type": "text", "text": f"{text} {name}"}]}


def task(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the state of a task, or store an answer to it."""
    name = params["taskId"]
    if name not in polls:
        return None
    if method == "tasks/update":
        if name not in answers:
            answers[name] = log(f"told {name} {name_in(params)}")
        return {}
    polls[name] += 1
    if name in answers:
        finished = {"content": [{"type": "text", "text": f"built {name}"}]}
        return {"taskId": name, "status": "completed", "result": finished}
    if polls[name] == 1:
        return {"taskId": name, "status": "working", "pollIntervalMs": PACE_MS}
    return {"taskId": name, "status": "input_required", "inputRequests": {"who": FORM}}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method in RESULTS:
        return RESULTS[method]
    if method.startswith("tasks/"):
        return task(method, params)
    if params.get("name") == "build":
        log(f"build {params['arguments']['key']}")
        name = f"task-{len(polls) + 1}"
        polls[name] = 0
        return {
            **{"resultType": "task", "taskId": name, "status": "working"},
            **{"pollIntervalMs": PACE_MS, "ttlMs": None},
        }
    if name_in(params) is None:
        return {
            **{"resultType": "input_required", "inputRequests": {"who": FORM}},
            "requestState": "asked",
        }
    return complete_call(method, params)


def respond(request: RecordedRequest) -> bytes:
    value = answer(request.method, request.message.get("params", {}))
    if value is None:
        return error(request, -32602, 200)
    return result(request, value)


async def main() -> None:
    """Serve until the process ends."""
    async with RawHttp(respond).listening() as server:
        sys.stdout.write(f"PORT {server.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
