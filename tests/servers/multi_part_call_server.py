"""A modern MCP server over HTTP whose calls take several parts: `multi_part_call_server.py FILE`.

It writes down each thing that it does. `provision` asks for a name and then provides; `build` makes
a task that works, asks for a name and is done; a resource and a prompt ask for a name first.
Whoever asks anew finds a task as it stands, and what a task was told twice counts once.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from raw_http_server import MODERN, Asked, RawHttp, error, result  # the script beside this one

FILE = Path(sys.argv[1])
TASKS = "io.modelcontextprotocol/tasks"
# Longer than a part of a call may last: a look at the task is one part.
PACE_MS = 100_000
KEYED = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
FORM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Who are you?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}
OFFERS: dict[str, dict[str, Any]] = {
    "server/discover": {
        "supportedVersions": [MODERN],
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "extensions": {TASKS: {}}},
    },
    "tools/list": {
        "tools": [{"name": name, "inputSchema": KEYED} for name in ("provision", "build")]
    },
    "resources/list": {"resources": [{"uri": "parts://book", "name": "book"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "prompts/list": {"prompts": [{"name": "letter"}]},
}
looks: dict[str, int] = {}
told: dict[str, str] = {}


def note(text: str) -> str:
    with FILE.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return text


def name_in(params: dict[str, Any]) -> str | None:
    """Return the name that a person entered; None where it must be asked for."""
    answer = params.get("inputResponses", {}).get("who")
    return answer and str(answer.get("content", {}).get("name", answer["action"]))


def done(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked, whose name is known by now."""
    name = name_in(params)
    if method == "resources/read":
        text = note("read book")
        return {"contents": [{"uri": params["uri"], "text": f"{text} {name}"}]}
    if method == "prompts/get":
        content = {"type": "text", "text": f"{note('fill letter')} {name}"}
        return {"messages": [{"role": "user", "content": content}]}
    text = note(f"provision {params['arguments']['key']}")
    return {"content": [{"type": "text", "text": f"{text} {name}"}]}


def task(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return how a task stands, or take what it is told."""
    name = params["taskId"]
    if name not in looks:
        return None
    if method == "tasks/update":
        if name not in told:
            told[name] = note(f"told {name} {name_in(params)}")
        return {}
    looks[name] += 1
    if name in told:
        finished = {"content": [{"type": "text", "text": f"built {name}"}]}
        return {"taskId": name, "status": "completed", "result": finished}
    if looks[name] == 1:
        return {"taskId": name, "status": "working", "pollIntervalMs": PACE_MS}
    return {"taskId": name, "status": "input_required", "inputRequests": {"who": FORM}}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method in OFFERS:
        return OFFERS[method]
    if method.startswith("tasks/"):
        return task(method, params)
    if params.get("name") == "build":
        note(f"build {params['arguments']['key']}")
        name = f"task-{len(looks) + 1}"
        looks[name] = 0
        return {
            **{"resultType": "task", "taskId": name, "status": "working"},
            **{"pollIntervalMs": PACE_MS, "ttlMs": None},
        }
    if name_in(params) is None:
        return {
            **{"resultType": "input_required", "inputRequests": {"who": FORM}},
            "requestState": "asked",
        }
    return done(method, params)


def respond(asked: Asked) -> bytes:
    found = answer(asked.method, asked.message.get("params", {}))
    if found is None:
        return error(asked, -32602, 200)
    return result(asked, found)


async def main() -> None:
    """Serve until the process ends."""
    async with RawHttp(respond).listening() as served:
        sys.stdout.write(f"PORT {served.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
