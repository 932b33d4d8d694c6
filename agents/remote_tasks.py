"""Remote tasks: what somebody else's program asks about a task that a server made of its call.

The call went through the door. Its task is spoken of only as long as the tool may be called as it
was then; that it is over is in the audit, once for each process that has told of it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from uuid import UUID

from agents.governance.snapshots import Snapshot, Tool
from agents.people import personal
from agents.redaction import given
from agents.requests import Request
from bonobot.ledger.changes import Event, record
from bonobot.ledger.fingerprints import fingerprint
from bonobot.lib.canonical import sorted_text
from bonobot.lib.problems import NotFound
from bonobot.lib.runtime import runtime
from mcp_servers.connections.pool import connections

TaskMethod = Literal["tasks/get", "tasks/update", "tasks/cancel"]

OVER = ("completed", "failed", "cancelled")
MOST_SEEN = 10_000


@dataclass(frozen=True)
class RemoteTask:
    """A server's task, and the call that it was made of: `tool` is its name for the caller."""

    server_id: UUID
    id: str
    tool: str
    call_id: UUID


async def ask(
    request: Request,
    snapshot: Snapshot,
    task: RemoteTask,
    method: TaskMethod,
    said: Mapping[str, Any],
) -> dict[str, Any]:
    """Ask a server about a task and return its answer, without our secrets.

    `snapshot` is how things are now. Raises `NotFound` (`unknown_task`) where the tool may not be
    called any more, and `UpstreamError`.
    """
    tool, server = snapshot.tools.get(task.tool), snapshot.servers.get(task.server_id)
    known = tool is not None and tool.facts.server_id == task.server_id and tool.decision.offered
    if tool is None or server is None or not known or not server.enabled:
        raise NotFound("There is no such task.", code="unknown_task")
    endpoint = await personal(server.endpoint, request.principal, request.session_id)
    meta = {"_meta": dict(request.relay.meta)} if request.relay and request.relay.meta else {}
    found = await connections().request(
        endpoint,
        method,
        {**said, "taskId": task.id, **meta},
        holder=request.holder,
        timeout_s=request.timeout_s,
        host=request.host,
    )
    if found.get("status") in OVER and _first(task):
        await runtime().orm(partial(_note, request, snapshot, tool, task, found))
    return given(found, snapshot.organization_id)


def _note(
    request: Request,
    snapshot: Snapshot,
    tool: Tool,
    task: RemoteTask,
    found: Mapping[str, Any],
) -> None:
    """Write to the audit how a task ended."""
    result, failure = found.get("result"), found.get("error")
    failed = failure is not None or (isinstance(result, Mapping) and bool(result.get("isError")))
    text = sorted_text(result if result is not None else failure)
    record(
        organization_id=snapshot.organization_id,
        actor=request.principal.actor,
        action="call_task_ended",
        resource_type="call",
        resource_id=str(task.call_id),
        resource_name=tool.facts.own_name,
        details={
            "status": found["status"],
            "output_sha256": fingerprint(snapshot.organization_id, text),
        },
        governed=False,
        event=Event(
            "change",
            outcome="error" if failed else "ok",
            code=("upstream_error" if failure is not None else "tool_error") if failed else "",
            server_id=task.server_id,
            server_name=tool.facts.server_name,
        ),
    )


_seen: OrderedDict[UUID, None] = OrderedDict()


def _first(task: RemoteTask) -> bool:
    """Tell whether this process hears for the first time that a task is over."""
    if task.call_id in _seen:
        return False
    _seen[task.call_id] = None
    if len(_seen) > MOST_SEEN:
        _seen.popitem(last=False)
    return True
