"""Pending calls: calls that wait for input or for a task, and their next round trips.

A request state without input requests is sent back at once. Everything else is saved as a
`PendingCall` row, and the session continues the call with another round trip. Only sessions can do
that: other callers have no one who could answer.

Each round trip is admitted, audited and settled as a call of its own. Its result is saved before it
is settled, so any process can continue the call after a crash between two round trips.

A task can only be accessed while its tool may still be called. The end of a task is recorded in
the audit log, once per process that reports it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any, Literal
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from agents.approvals.services import calculate_expiry
from agents.calls.connections import resolve_user_endpoint
from agents.calls.context import CallContext
from agents.calls.incomplete_results import (
    MAX_ROUNDS,
    IncompleteResult,
    InvalidInputRequest,
    parse_incomplete_result,
    parse_input_requests,
    parse_poll_ms,
)
from agents.calls.mcp_tasks import compute_task_end
from agents.calls.redaction import redact_result
from agents.calls.snapshots import CallSnapshot, SnapshotTool
from agents.calls.types import CallContinuation, CallRequest
from agents.models import ElicitationRequest, PendingCall, Session
from bonobot.core.crypto.signatures import compute_fingerprint
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import to_sorted_json
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.audit.admin_changes import ChangeEvent, record_finished_change
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, build_protocol_error, build_rpc_error
from mcp_servers.client.pool import get_connection_pool


def write_incomplete_result(
    request: CallRequest, incomplete: IncompleteResult, *, server_id: UUID, name: str, own: str
) -> PendingCall:
    """Save the incomplete result of a round trip of a session's call.

    Raises `InvalidInputRequest` if the server asks too many times.
    """
    continuation = request.continuation
    if continuation is None:
        pending_call = _build_pending_call(request, server_id, name, own)
    else:
        pending_call = PendingCall.objects.get(pk=continuation.pending_call_id)
    if pending_call.kind != PendingCall.Kind.TASK and incomplete.kind == "task":
        pending_call.ends_at = compute_task_end(timezone.now(), incomplete.ttl_ms)
    open_requests = {
        key: input_request
        for key, input_request in incomplete.requests.items()
        if key not in pending_call.answered
    }
    if open_requests or incomplete.kind != "task":
        pending_call.round += 1
    if pending_call.round > MAX_ROUNDS:
        raise InvalidInputRequest(f"it requested input more than {MAX_ROUNDS} times")
    pending_call.kind = incomplete.kind
    pending_call.requests = make_storable(open_requests)
    pending_call.request_state = incomplete.state
    pending_call.responses = {}
    # The session continues its own call, even if a built-in tool made this one for it.
    pending_call.call_id = request.parent_id or request.call_id
    new_call_ids = dict.fromkeys((pending_call.call_id, request.call_id))
    pending_call.call_ids = [*pending_call.call_ids, *map(str, new_call_ids)]
    pending_call.task_id = incomplete.task_id or pending_call.task_id
    pending_call.poll_ms = incomplete.poll_ms
    pending_call.next_at = None
    pending_call.save(force_insert=continuation is None)
    return pending_call


def _build_pending_call(
    request: CallRequest, server_id: UUID, server_name: str, own_name: str
) -> PendingCall:
    assert request.session_id is not None  # noqa: S101 - only a session's call can go on
    session = Session.objects.get(pk=request.session_id)
    return PendingCall(
        organization_id=session.organization_id,
        agent_id=session.agent_id,
        session=session,
        server_id=server_id,
        server_name=server_name,
        own_name=own_name[:2048],
        method=request.method,
        round=0,
        ends_at=calculate_expiry(session.organization_id),
    )


def build_continuation(pending_call: PendingCall) -> CallContinuation:
    """Return the next round trip: the responses and the unchanged request state."""
    answers: dict[str, Any] = pending_call.responses.open() or {}
    extra_params: dict[str, Any] = {}
    if pending_call.kind == PendingCall.Kind.INPUT:
        extra_params = {"inputResponses": answers} if pending_call.requests else {}
        if pending_call.request_state is not None:
            extra_params["requestState"] = pending_call.request_state
    return CallContinuation(
        pending_call_id=pending_call.pk,
        earlier_call_ids=frozenset(UUID(call_id) for call_id in pending_call.call_ids),
        extra_params=extra_params,
        task_id=pending_call.task_id,
        poll_s=pending_call.poll_ms / 1000,
        updates=answers if pending_call.kind == PendingCall.Kind.TASK else {},
        answered_keys=frozenset((*pending_call.answered, *answers)),
        ends_at=pending_call.ends_at,
    )


def save_responses(pending_call: PendingCall, responses: Mapping[str, Any]) -> None:
    """Save responses until the server has received them, so that none is created twice."""
    pending_call.responses = {
        **(pending_call.responses.open() or {}),
        **make_storable(dict(responses)),
    }
    pending_call.save(update_fields=["responses", "updated_at"])


def mark_delivered(pending_call_id: UUID, keys: Iterable[str]) -> None:
    """Mark responses as delivered to a task and clear them."""
    pending_call = PendingCall.objects.get(pk=pending_call_id)
    pending_call.answered = [*pending_call.answered, *keys]
    pending_call.responses = {}
    pending_call.requests = {}
    pending_call.save(update_fields=["answered", "responses", "requests", "updated_at"])


def find_open_call(
    pending_call_id: UUID | str | None = None, call_id: UUID | None = None
) -> PendingCall | None:
    """Return an open pending call by its id or by the id of its last round trip."""
    condition = Q(pk=pending_call_id) if pending_call_id else Q(call_id=call_id)
    return PendingCall.objects.filter(condition, closed_at=None).first()


def close_pending_call(pending_call_id: UUID | str) -> None:
    """Close a pending call, withdraw its requests and clear the answers entered for it."""
    if (pending_call := find_open_call(pending_call_id)) is None:
        return
    pending_call.closed_at = timezone.now()
    pending_call.responses = {}
    pending_call.request_state = None
    pending_call.save(update_fields=["closed_at", "responses", "request_state", "updated_at"])
    pending_call.elicitation_requests.filter(state=ElicitationRequest.State.WAITING).update(
        state=ElicitationRequest.State.WITHDRAWN, answered_at=timezone.now()
    )
    for elicitation_request in pending_call.elicitation_requests.all():
        elicitation_request.content = {}
        elicitation_request.save(update_fields=["content"])


def schedule_check(pending_call: PendingCall, at: datetime) -> None:
    """Schedule the next check of a task, so that no worker has to wait for it."""
    PendingCall.objects.filter(pk=pending_call.pk).update(next_at=at)


def list_open_calls(session_id: UUID) -> list[PendingCall]:
    """Return a session's open pending calls."""
    return list(PendingCall.objects.filter(session_id=session_id, closed_at=None))


def filter_waiting_sessions(sessions: Any) -> Any:
    """Filter sessions that wait for an elicitation or for a scheduled task check."""
    waiting_requests = ElicitationRequest.objects.filter(
        state=ElicitationRequest.State.WAITING, pending_call__isnull=False
    )
    scheduled_calls = PendingCall.objects.filter(closed_at=None, next_at__gt=timezone.now())
    return sessions.filter(
        Q(pk__in=waiting_requests.values("session_id"))
        | Q(pk__in=scheduled_calls.values("session_id"))
    )


SendRequest = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]

# Consecutive polls that may fail before the task is left for later.
MAX_POLL_FAILURES = 3
UNKNOWN_TASK_CODE = -32602


async def save_pending_call(context: CallContext) -> UUID | None:
    """Save a call whose result is incomplete as a pending call, and return its id.

    Returns None for a complete result, and for a caller who continues the call itself.

    Raises `UpstreamError` (`protocol_error`) if the server asks for something it may not.
    """
    request, server = context.request, context.server
    if server is None:
        return None
    try:
        incomplete = parse_incomplete_result(
            context.result, _get_allowed_requests(request, server.endpoint)
        )
        if incomplete is None or request.relay:
            return None
        if request.session_id is None or request.host is None:
            raise InvalidInputRequest("it requested input, but the caller can't provide any")
        write = partial(write_incomplete_result, server_id=server.id, name=server.name)
        own_name = context.target.facts.own_name
        return (await get_runtime().run_orm(partial(write, own=own_name), request, incomplete)).pk
    except InvalidInputRequest as fault:
        raise build_protocol_error(server.endpoint, str(fault), answered=True) from None


def _get_allowed_requests(request: CallRequest, endpoint: ServerEndpoint) -> frozenset[str]:
    """Return the requests a server may send: enabled for it and supported by the caller."""
    allowed = frozenset(str(method) for method in endpoint.allowed_requests)
    return allowed & request.relay.allowed_requests if request.relay else allowed


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
    if continuation.updates:
        await send_request(
            "tasks/update", {**task_params, "inputResponses": dict(continuation.updates)}
        )
        await get_runtime().run_orm(
            mark_delivered, continuation.pending_call_id, list(continuation.updates)
        )
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


TaskMethod = Literal["tasks/get", "tasks/update", "tasks/cancel"]

FINISHED_STATUSES = ("completed", "failed", "cancelled")
MAX_SEEN_TASKS = 10_000


@dataclass(frozen=True)
class RemoteTask:
    """A server's task and the call that created it; `tool` is the name the caller used."""

    server_id: UUID
    id: str
    tool: str
    call_id: UUID


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


_seen_tasks: OrderedDict[UUID, None] = OrderedDict()


def _mark_seen(task: RemoteTask) -> bool:
    """Return True the first time this process sees that a task has ended."""
    if task.call_id in _seen_tasks:
        return False
    _seen_tasks[task.call_id] = None
    if len(_seen_tasks) > MAX_SEEN_TASKS:
        _seen_tasks.popitem(last=False)
    return True
