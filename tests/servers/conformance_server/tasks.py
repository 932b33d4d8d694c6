"""The tools that become tasks if the client supports them (`io.modelcontextprotocol/tasks`)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from secrets import token_urlsafe
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server

from tests.servers.conformance_server.calls import (
    BOOLEAN,
    NAME,
    STRING,
    TASKS,
    Call,
    Context,
    Json,
    build_input_schema,
    build_tool_error,
    form,
    text,
    tool,
)

TTL_MS, POLL_MS = 600_000, 100
FINAL_STATES = ("completed", "failed", "cancelled")


def now() -> str:
    """Return the time as the extension writes it."""
    return datetime.now(UTC).isoformat()


@dataclass
class Task:
    """A call that continues after its response."""

    name: str = field(default_factory=lambda: token_urlsafe(24))
    status: str = "working"
    created: str = field(default_factory=now)
    changed: str = field(default_factory=now)
    outcome: Json = field(default_factory=dict)
    requests: dict[str, Json] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    running: asyncio.Task[None] | None = None

    def set_status(self, status: str, **outcome: Any) -> None:
        """Set another status, unless the task is finished."""
        if self.status not in FINAL_STATES:
            self.status, self.outcome, self.changed = status, outcome, now()

    def describe(self) -> Json:
        """Return the fields that every response about the task has."""
        return {
            "taskId": self.name,
            "status": self.status,
            "createdAt": self.created,
            "lastUpdatedAt": self.changed,
            "ttlMs": TTL_MS,
            "pollIntervalMs": POLL_MS,
        }

    async def ask(self, **requests: Json) -> dict[str, Any]:
        """Return the client's responses, once all have arrived."""
        self.requests = dict(requests)
        self.set_status("input_required")
        await self.answered.wait()
        self.set_status("working")
        return self.answers

    def store_answers(self, answers: Json) -> None:
        """Store responses to open requests; ignore others."""
        for name in self.requests.keys() & answers.keys():
            self.answers[name] = answers[name]
            del self.requests[name]
        if self.status == "input_required" and not self.requests:
            self.answered.set()


Work = Callable[[Task], Awaitable[Json]]
_tasks: dict[str, Task] = {}


def start_task(work: Work) -> Json:
    """Create a task for a piece of work, and return the call's result."""
    task = Task()
    _tasks[task.name] = task
    task.running = asyncio.create_task(_finish(task, work))
    return {"resultType": "task", **task.describe()}


async def _finish(task: Task, work: Work) -> None:
    try:
        task.set_status("completed", result=await work(task))
    except asyncio.CancelledError:
        task.set_status("cancelled")
    except MCPError as error:
        task.set_status("failed", error={"code": error.error.code, "message": error.error.message})


@tool(build_input_schema(name=STRING))
async def greet(call: Call) -> Json:
    """Greet somebody, at once."""
    return text(f"Hello, {call.arguments['name']}!")


@tool(build_input_schema("label", seconds={"type": "number"}))
async def slow_compute(call: Call) -> Json:
    """Take some seconds; a task where the caller takes those."""

    async def work(task: Task | None = None) -> Json:
        await asyncio.sleep(call.arguments["seconds"])
        return text(f"Computed {call.arguments.get('label', 'it')}")

    return start_task(work) if call.takes_tasks else await work()


@tool()
async def failing_job(call: Call) -> Json:
    """Fail as a tool does; always a task."""

    async def work(task: Task) -> Json:
        await asyncio.sleep(0.2)
        return build_tool_error("The job failed")

    call.require("extensions", TASKS)
    return start_task(work)


@tool()
async def protocol_error_job(call: Call) -> Json:
    """Fail as a protocol does; always a task."""

    async def work(task: Task) -> Json:
        await asyncio.sleep(0.2)
        raise MCPError(types.INTERNAL_ERROR, "The job broke")

    call.require("extensions", TASKS)
    return start_task(work)


@tool(build_input_schema(filename=STRING), annotations={"destructiveHint": True})
async def confirm_delete(call: Call) -> Json:
    """Delete a file once a person agrees; a task where the caller takes those."""
    request = form(f"Delete {call.arguments['filename']}?", confirm=BOOLEAN)

    async def work(task: Task) -> Json:
        return _deleted(await task.ask(**{token_urlsafe(8): request}))

    return start_task(work) if call.takes_tasks else _deleted(await call.ask(confirm=request))


def _deleted(answers: Any) -> Json:
    agreed = any((answer.get("content") or {}).get("confirm") for answer in answers.values())
    return text("Deleted" if agreed else "Kept")


@tool()
async def multi_input(call: Call) -> Json:
    """Ask two questions at once; always a task."""

    async def work(task: Task) -> Json:
        requests = {token_urlsafe(8): NAME for _ in range(2)}
        answers = await task.ask(**requests)
        return text(f"{len(answers)} answers")

    call.require("extensions", TASKS)
    return start_task(work)


@tool()
async def test_tool_with_task(call: Call) -> Json:
    """Ask for a name in a round of its own, and go on as a task."""
    call.require("extensions", TASKS)
    answers = await call.ask("before the task", user_name=NAME)
    name = (answers["user_name"].get("content") or {}).get("name")

    async def work(task: Task) -> Json:
        return text(f"Hello, {name}!")

    return start_task(work)


class TaskParams(types.RequestParams):
    """A request about a task."""

    task_id: str


class TaskAnswers(TaskParams):
    """Responses to a task's input requests."""

    input_responses: dict[str, Any]


def register_handlers(server: Server[Any]) -> None:
    """Register the handlers for task requests."""
    server.extensions[TASKS] = {}
    server.middleware.append(_check_name_header)
    server.add_request_handler("tasks/get", TaskParams, _get)
    server.add_request_handler("tasks/update", TaskAnswers, _update)
    server.add_request_handler("tasks/cancel", TaskParams, _cancel)


async def _get(context: Context, params: TaskParams) -> Json:
    task = _get_task(context, params)
    open_requests = {"inputRequests": task.requests} if task.status == "input_required" else {}
    return {"resultType": "complete", **task.describe(), **task.outcome, **open_requests}


async def _update(context: Context, params: TaskAnswers) -> Json:
    _get_task(context, params).store_answers(params.input_responses)
    return {"resultType": "complete"}


async def _cancel(context: Context, params: TaskParams) -> Json:
    task = _get_task(context, params)
    if task.running is not None:
        task.running.cancel()
    task.set_status("cancelled")
    return {"resultType": "complete"}


def _get_task(context: Context, params: TaskParams) -> Task:
    Call(context, {}).require("extensions", TASKS)
    if task := _tasks.get(params.task_id):
        return task
    raise MCPError(types.INVALID_PARAMS, "Unknown task")


async def _check_name_header(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Refuse a request whose header names another task than its body, as the SDK does for tools."""
    if ctx.method in ("tasks/get", "tasks/update", "tasks/cancel") and ctx.request:
        header = ctx.request.headers.get("mcp-name", "")
        if header != (ctx.params or {}).get("taskId"):
            raise MCPError(types.HEADER_MISMATCH, "`Mcp-Name` isn't the task's id")
    return await call_next(ctx)
