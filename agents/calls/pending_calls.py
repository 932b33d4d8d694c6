"""Pending calls: calls that wait for input or for a task, and their next round trips.

A request state without input requests is sent back at once. Everything else is saved as a
`PendingCall` row, and the session continues the call with another round trip. Only sessions can do
that: other callers have no one who could answer.

Each round trip is admitted, audited and settled as a call of its own. Its result is saved before it
is settled, so any process can continue the call after a crash between two round trips.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from agents.approvals.services import calculate_expiry
from agents.calls.incomplete_results import (
    MAX_ROUNDS,
    IncompleteResult,
    InvalidInputRequest,
    parse_incomplete_result,
)
from agents.calls.mcp_tasks import SendRequest, compute_task_end
from agents.calls.types import CallContext, CallContinuation, CallRequest
from agents.models import ElicitationRequest, PendingCall, Session
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_storable
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import build_protocol_error


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


async def deliver_responses(continuation: CallContinuation, send_request: SendRequest) -> None:
    """Send the responses to a task's input requests; raises `UpstreamError`."""
    await send_request(
        "tasks/update",
        {"taskId": continuation.task_id, "inputResponses": dict(continuation.updates)},
    )
    await get_runtime().run_orm(
        mark_delivered, continuation.pending_call_id, list(continuation.updates)
    )
