"""Tasks of servers: poll and cancel them, how long they are waited for, and calls that need one.

Tools of the handshake era with `taskSupport: required` can only be called as tasks. Such a task is
created, followed and collected here, so callers see an ordinary call. It may run as long as
progress may extend a call. Its server's requests reach the call's host meanwhile.

A task can only be accessed while its tool may still be called. The end of a task is recorded in
the audit log, once per process that reports it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, Literal
from uuid import UUID

from django.utils import timezone

from agents.calls.connections import resolve_user_endpoint
from agents.calls.incomplete_results import (
    MAX_KEY_LENGTH,
    InvalidInputRequest,
    parse_input_requests,
    parse_poll_ms,
)
from agents.calls.redaction import redact_result
from agents.calls.snapshots import CallSnapshot, SnapshotTool, get_snapshot_cache
from agents.calls.types import CallContinuation, CallRequest
from bonobot.core.crypto.signatures import compute_fingerprint
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import to_sorted_json
from bonobot.ledger.audit.admin_changes import ChangeEvent, record_finished_change
from mcp_servers.client.deadlines import PROGRESS_FACTOR
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, build_protocol_error, build_rpc_error
from mcp_servers.client.pool import get_connection_pool

RELATED_TASK_KEY = "io.modelcontextprotocol/related-task"
CANCEL_TIMEOUT_S = 5.0
# The lifetime of a task without a `ttlMs`, and the longest that any task is waited for.
DEFAULT_TASK_TTL = timedelta(hours=24)
MAX_TASK_TTL = timedelta(days=7)
# Consecutive polls that may fail before the task is left for later.
MAX_POLL_FAILURES = 3
UNKNOWN_TASK_CODE = -32602
FINISHED_STATUSES = ("completed", "failed", "cancelled")
MAX_SEEN_TASKS = 10_000

TaskMethod = Literal["tasks/get", "tasks/update", "tasks/cancel"]
# Sends a method with parameters; `timeout_s` replaces the timeout of the call.
SendRequest = Callable[..., Awaitable[dict[str, Any]]]

_seen_tasks: OrderedDict[UUID, None] = OrderedDict()


@dataclass(frozen=True)
class RemoteTask:
    """A server's task and the call that created it; `tool` is the name the caller used."""

    server_id: UUID
    id: str
    tool: str
    call_id: UUID


def compute_task_end(created_at: datetime, ttl_ms: int | None) -> datetime:
    """Return until when a session waits for a task that its server keeps for `ttl_ms`."""
    ttl = DEFAULT_TASK_TTL if ttl_ms is None else timedelta(milliseconds=ttl_ms)
    return created_at + min(ttl, MAX_TASK_TTL)


def requires_task(endpoint: ServerEndpoint, execution: object) -> bool:
    """Tell whether a tool with this execution can only be called as a task.

    Modern servers create tasks themselves.
    """
    required = isinstance(execution, Mapping) and execution.get("taskSupport") == "required"
    return required and endpoint.era != "modern"


async def call_as_task(
    endpoint: ServerEndpoint,
    send_request: SendRequest,
    timeout_s: float | None,
    method: str,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Create a task, wait for its end and return its result; raises `UpstreamError`."""
    limit_s = timeout_s or endpoint.read_s * PROGRESS_FACTOR
    created = await send_request(method, {**params, "task": {"ttl": round(limit_s * 1000)}})
    task = created.get("task")
    if not isinstance(task, Mapping):
        return created  # the server answered at once
    task_id = task.get("taskId")
    if not isinstance(task_id, str) or not 0 < len(task_id) <= MAX_KEY_LENGTH:
        raise build_protocol_error(endpoint, "its task has no valid ID", answered=True)
    task_params = {"taskId": task_id}
    is_finished = False
    try:
        # It answers when the task ends.
        result = await send_request("tasks/result", task_params, timeout_s=limit_s)
        is_finished = True
    except UpstreamError as error:
        is_finished = error.rpc_code is not None
        raise error.with_sent(True) from error
    finally:
        if not is_finished:
            with suppress(UpstreamError):
                await send_request("tasks/cancel", task_params, timeout_s=CANCEL_TIMEOUT_S)
    meta = result.get("_meta")
    if not isinstance(meta, Mapping) or RELATED_TASK_KEY not in meta:
        return result
    own_meta = {key: value for key, value in meta.items() if key != RELATED_TASK_KEY}
    return {key: value for key, value in result.items() if key != "_meta"} | (
        {"_meta": own_meta} if own_meta else {}
    )


async def poll_task(
    request: CallRequest,
    endpoint: ServerEndpoint,
    continuation: CallContinuation,
    send_request: SendRequest,
) -> dict[str, Any]:
    """Poll a task until it ends, asks for input, or this round trip times out.

    After repeated failures the task is left for later. Raises `UpstreamError`: the task's own
    error, or `task_lost`, `task_cancelled`, `task_expired`.
    """
    task_params = {"taskId": continuation.task_id}
    deadline = monotonic() + (request.timeout_s or endpoint.read_s)
    failures = 0
    while True:
        if timezone.now() >= continuation.ends_at:
            with suppress(UpstreamError):  # the task is given up in any case
                await send_request("tasks/cancel", task_params)
            raise _build_task_error(endpoint, "task_expired", "the task didn't finish in time")
        try:
            task, failures = await send_request("tasks/get", task_params), 0
        except UpstreamError as problem:
            failures += 1
            if problem.rpc_code == UNKNOWN_TASK_CODE:
                raise _build_task_error(
                    endpoint, "task_lost", "the server no longer knows the task"
                ) from problem
            if not problem.temporary:
                raise
            task = {"status": "working"}
        if (result := _parse_task_result(endpoint, continuation, task)) is not None:
            return result
        pause_s = max(continuation.poll_s, parse_poll_ms(task.get("pollIntervalMs")) / 1000)
        should_stop = request.stopping is not None and request.stopping.is_set()
        if should_stop or failures >= MAX_POLL_FAILURES or monotonic() + pause_s > deadline:
            interval_ms = round(pause_s * 1000)
            return {
                **task_params,
                "resultType": "task",
                "status": "working",
                "pollIntervalMs": interval_ms,
            }
        await asyncio.sleep(pause_s)


def _parse_task_result(
    endpoint: ServerEndpoint, continuation: CallContinuation, task: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the result of a task; None while it is still working."""
    status = task.get("status")
    if status == "completed":
        result = task.get("result")
        if not isinstance(result, dict):
            raise build_protocol_error(endpoint, "a finished task without a result")
        return {name: value for name, value in result.items() if name != "resultType"}
    if status == "failed":
        raise build_rpc_error(endpoint, task.get("error"))
    if status == "cancelled":
        raise _build_task_error(endpoint, "task_cancelled", "the server canceled the task")
    if status != "input_required":
        return None
    try:
        input_requests = parse_input_requests(
            task.get("inputRequests") or {}, endpoint.allowed_requests
        )
    except InvalidInputRequest as fault:
        raise build_protocol_error(endpoint, str(fault)) from None
    if not set(input_requests) - continuation.answered_keys:
        return None  # it has our responses but hasn't processed them yet
    return {**task, "resultType": "task", "taskId": continuation.task_id}


def _build_task_error(endpoint: ServerEndpoint, code: str, event: str) -> UpstreamError:
    return UpstreamError(
        format_message(
            "`{endpoint}` ran this call as a task, but {what}.", endpoint=endpoint.name, what=event
        ),
        code=code,
        server=endpoint.name,
        sent=True,
        remedy="Retry the call only if running it twice is safe.",
    )


async def send_task_request(
    request: CallRequest,
    snapshot: CallSnapshot,
    task: RemoteTask,
    method: TaskMethod,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Send a task request to a server and return its response with secrets masked.

    `snapshot` must be current. Raises `NotFound` (`unknown_task`) if the tool may no longer be
    called, and `UpstreamError`.
    """
    tool, server = snapshot.find_tool(task.tool), snapshot.servers.get(task.server_id)
    is_callable = (
        tool is not None and tool.facts.server_id == task.server_id and tool.decision.is_callable
    )
    if tool is None or server is None or not is_callable or not server.enabled:
        raise NotFound("The task doesn't exist.", code="unknown_task")
    endpoint = await resolve_user_endpoint(server.endpoint, request.principal, request.session_id)
    meta = {"_meta": dict(request.relay.meta)} if request.relay and request.relay.meta else {}
    response = await get_connection_pool().send_request(
        endpoint,
        method,
        {**params, "taskId": task.id, **meta},
        holder=request.holder,
        timeout_s=request.timeout_s,
        host=request.host,
    )
    if response.get("status") in FINISHED_STATUSES and _mark_seen(task):
        await get_runtime().run_orm(
            partial(_record_task_end, request, snapshot, tool, task, response)
        )
    return redact_result(response, snapshot.organization_id)


def _record_task_end(
    request: CallRequest,
    snapshot: CallSnapshot,
    tool: SnapshotTool,
    task: RemoteTask,
    response: Mapping[str, Any],
) -> None:
    """Record the end of a task in the audit log."""
    result, error = response.get("result"), response.get("error")
    is_error = error is not None or (isinstance(result, Mapping) and bool(result.get("isError")))
    text = to_sorted_json(result if result is not None else error)
    record_finished_change(
        organization_id=snapshot.organization_id,
        actor=request.principal.actor,
        action="call_task_ended",
        resource_type="call",
        resource_id=str(task.call_id),
        resource_name=tool.facts.own_name,
        details={
            "status": response["status"],
            "output_sha256": compute_fingerprint(snapshot.organization_id, text),
        },
        governed=False,
        event=ChangeEvent(
            "change",
            outcome="error" if is_error else "ok",
            code=("upstream_error" if error is not None else "tool_error") if is_error else "",
            server_id=task.server_id,
            server_name=tool.facts.server_name,
        ),
    )


def _mark_seen(task: RemoteTask) -> bool:
    """Return True the first time this process sees that a task has ended."""
    if task.call_id in _seen_tasks:
        return False
    _seen_tasks[task.call_id] = None
    if len(_seen_tasks) > MAX_SEEN_TASKS:
        _seen_tasks.popitem(last=False)
    return True


async def cancel_task(request: CallRequest, task_id: str) -> None:
    """Send `tasks/cancel` for a task whose result is no longer needed."""
    if request.agent_id is None or request.server_id is None:
        return
    snapshot = await get_runtime().run_orm(get_snapshot_cache().load, "agent", request.agent_id)
    server = snapshot.servers.get(request.server_id)
    if server is None or not server.enabled:
        return
    endpoint = await resolve_user_endpoint(server.endpoint, request.principal, request.session_id)
    await get_connection_pool().send_request(
        endpoint,
        "tasks/cancel",
        {"taskId": task_id},
        holder=request.holder,
        timeout_s=CANCEL_TIMEOUT_S,
        host=request.host,
    )
