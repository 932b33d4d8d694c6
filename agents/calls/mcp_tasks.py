"""Tasks of servers: how long they are waited for, and calls that need one.

Tools of the handshake era with `taskSupport: required` can only be called as tasks. Such a task is
created, followed and collected here, so callers see an ordinary call. It may run as long as
progress may extend a call. Its server's requests reach the call's host meanwhile.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from agents.calls.incomplete_results import MAX_KEY_LENGTH
from mcp_servers.client.deadlines import PROGRESS_FACTOR
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, build_protocol_error

RELATED_TASK_KEY = "io.modelcontextprotocol/related-task"
CANCEL_TIMEOUT_S = 5.0
# The lifetime of a task without a `ttlMs`, and the longest that any task is waited for.
DEFAULT_TASK_TTL = timedelta(hours=24)
MAX_TASK_TTL = timedelta(days=7)

# Sends a method with parameters; `timeout_s` replaces the timeout of the call.
SendRequest = Callable[..., Awaitable[dict[str, Any]]]


def compute_task_end(created_at: datetime, ttl_ms: int | None) -> datetime:
    """Return until when a session waits for a task that its server keeps for `ttl_ms`."""
    ttl = DEFAULT_TASK_TTL if ttl_ms is None else timedelta(milliseconds=ttl_ms)
    return created_at + min(ttl, MAX_TASK_TTL)


def requires_task(endpoint: ServerEndpoint, declaration: Mapping[str, Any]) -> bool:
    """Tell whether a tool can only be called as a task; modern servers create tasks themselves."""
    execution = declaration.get("execution")
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
