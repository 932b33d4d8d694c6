"""The tools that become tasks where the caller takes those (`io.modelcontextprotocol/tasks`)."""

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
    failed,
    form,
    takes,
    text,
    tool,
)

TTL_MS, POLL_MS = 600_000, 100
OVER = ("completed", "failed", "cancelled")


def now() -> str:
    """Return the time as the extension writes it."""
    return datetime.now(UTC).isoformat()


@dataclass
class Task:
    """A call that goes on after its answer."""

    name: str = field(default_factory=lambda: token_urlsafe(24))
    status: str = "working"
    created: str = field(default_factory=now)
    changed: str = field(default_factory=now)
    outcome: Json = field(default_factory=dict)
    wanted: dict[str, Json] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    running: asyncio.Task[None] | None = None

    def become(self, status: str, **outcome: Any) -> None:
        """Go to another status, unless the task is over."""
        if self.status not in OVER:
            self.status, self.outcome, self.changed = status, outcome, now()

    def shown(self) -> Json:
        """Return what is always told of the task."""
        return {
            "taskId": self.name,
            "status": self.status,
            "createdAt": self.created,
            "lastUpdatedAt": self.changed,
            "ttlMs": TTL_MS,
            "pollIntervalMs": POLL_MS,
        }

    async def ask(self, **requests: Json) -> dict[str, Any]:
        """Return the caller's answers, once all are there."""
        self.wanted = dict(requests)
        self.become("input_required")
        await self.answered.wait()
        self.become("working")
        return self.answers

    def take(self, answers: Json) -> None:
        """Take answers to what is still asked; others are not ours."""
        for name in self.wanted.keys() & answers.keys():
            self.answers[name] = answers[name]
            del self.wanted[name]
        if self.status == "input_required" and not self.wanted:
            self.answered.set()


Work = Callable[[Task], Awaitable[Json]]
_tasks: dict[str, Task] = {}


def begin(work: Work) -> Json:
    """Make a task of a piece of work, and return what the call answers."""
    task = Task()
    _tasks[task.name] = task
    task.running = asyncio.create_task(_finish(task, work))
    return {"resultType": "task", **task.shown()}


async def _finish(task: Task, work: Work) -> None:
    try:
        task.become("completed", result=await work(task))
    except asyncio.CancelledError:
        task.become("cancelled")
    except MCPError as error:
        task.become("failed", error={"code": error.error.code, "message": error.error.message})


@tool(takes(name=STRING))
async def greet(call: Call) -> Json:
    """Greet somebody, at once."""
    return text(f"Hello, {call.arguments['name']}!")


@tool(takes("label", seconds={"type": "number"}))
async def slow_compute(call: Call) -> Json:
    """Take some seconds; a task where the caller takes those."""

    async def work(task: Task | None = None) -> Json:
        await asyncio.sleep(call.arguments["seconds"])
        return text(f"Computed {call.arguments.get('label', 'it')}")

    return begin(work) if call.takes_tasks else await work()


@tool()
async def failing_job(call: Call) -> Json:
    """Fail as a tool does; always a task."""

    async def work(task: Task) -> Json:
        await asyncio.sleep(0.2)
        return failed("The job failed")

    call.require("extensions", TASKS)
    return begin(work)


@tool()
async def protocol_error_job(call: Call) -> Json:
    """Fail as a protocol does; always a task."""

    async def work(task: Task) -> Json:
        await asyncio.sleep(0.2)
        raise MCPError(types.INTERNAL_ERROR, "The job broke")

    call.require("extensions", TASKS)
    return begin(work)


@tool(takes(filename=STRING), annotations={"destructiveHint": True})
async def confirm_delete(call: Call) -> Json:
    """Delete a file once a person agrees; a task where the caller takes those."""
    asked = form(f"Delete {call.arguments['filename']}?", confirm=BOOLEAN)

    async def work(task: Task) -> Json:
        return _deleted(await task.ask(**{token_urlsafe(8): asked}))

    return begin(work) if call.takes_tasks else _deleted(await call.ask(confirm=asked))


def _deleted(answers: Any) -> Json:
    agreed = any((answer.get("content") or {}).get("confirm") for answer in answers.values())
    return text("Deleted" if agreed else "Kept")


@tool()
async def multi_input(call: Call) -> Json:
    """Ask two questions at once; always a task."""

    async def work(task: Task) -> Json:
        asked = {token_urlsafe(8): NAME for _ in range(2)}
        answers = await task.ask(**asked)
        return text(f"{len(answers)} answers")

    call.require("extensions", TASKS)
    return begin(work)


@tool()
async def test_tool_with_task(call: Call) -> Json:
    """Ask for a name in a round of its own, and go on as a task."""
    call.require("extensions", TASKS)
    answers = await call.ask("before the task", user_name=NAME)
    name = (answers["user_name"].get("content") or {}).get("name")

    async def work(task: Task) -> Json:
        return text(f"Hello, {name}!")

    return begin(work)


class About(types.RequestParams):
    """A request about a task."""

    task_id: str


class Answers(About):
    """Answers to a task that asks."""

    input_responses: dict[str, Any]


def serve(server: Server[Any]) -> None:
    """Serve what is asked about tasks."""
    server.extensions[TASKS] = {}
    server.middleware.append(_named)
    server.add_request_handler("tasks/get", About, _get)
    server.add_request_handler("tasks/update", Answers, _update)
    server.add_request_handler("tasks/cancel", About, _cancel)


async def _get(context: Context, params: About) -> Json:
    task = _found(context, params)
    asked = {"inputRequests": task.wanted} if task.status == "input_required" else {}
    return {"resultType": "complete", **task.shown(), **task.outcome, **asked}


async def _update(context: Context, params: Answers) -> Json:
    _found(context, params).take(params.input_responses)
    return {"resultType": "complete"}


async def _cancel(context: Context, params: About) -> Json:
    task = _found(context, params)
    if task.running is not None:
        task.running.cancel()
    task.become("cancelled")
    return {"resultType": "complete"}


def _found(context: Context, params: About) -> Task:
    Call(context, {}).require("extensions", TASKS)
    if task := _tasks.get(params.task_id):
        return task
    raise MCPError(types.INVALID_PARAMS, "Unknown task")


async def _named(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Refuse a request about a task whose header names another one, as the SDK does for tools."""
    if ctx.method in ("tasks/get", "tasks/update", "tasks/cancel") and ctx.request:
        named = ctx.request.headers.get("mcp-name", "")
        if named != (ctx.params or {}).get("taskId"):
            raise MCPError(types.HEADER_MISMATCH, "`Mcp-Name` isn't the task's id")
    return await call_next(ctx)
