"""Pending calls: calls that wait for input or for a task, and their next legs.

A request state without input requests is sent back at once. Everything else is saved as an
`Exchange` row, and the session continues the call with another leg. Only sessions can do that:
other callers have no one who could answer.

Each leg is admitted, audited and settled as a call of its own. Its result is saved before it is
settled, so any process can continue the call after a crash between two legs.

A task can only be accessed while its tool may still be called. The end of a task is recorded in
the audit log, once per process that reports it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, Literal
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from agents.approvals.services import calculate_expiry
from agents.calls.check_and_admit import AdmittedCall
from agents.calls.redaction import redact_result
from agents.calls.results import (
    ROUNDS,
    URL_NEEDED,
    IncompleteResult,
    InvalidInputRequest,
    parse_incomplete_result,
    parse_input_requests,
    parse_url_elicitations,
    poll_ms,
)
from agents.calls.snapshots import CallSnapshot, SnapshotTool
from agents.calls.types import CallContinuation, CallRequest, RelayOptions
from agents.calls.user_endpoints import resolve_user_endpoint
from agents.models import Exchange, Question, Session
from bonobot.core.crypto.signatures import compute_fingerprint
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import to_sorted_json
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.audit.admin_changes import ChangeEvent, record
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, build_protocol_error, build_rpc_error
from mcp_servers.client.pool import get_connection_pool

# The lifetime of a task without a `ttlMs`, and the longest that any task is waited for.
TASK_TIME = timedelta(hours=24)
LONGEST_TASK = timedelta(days=7)


def note(
    request: CallRequest, found: IncompleteResult, *, server_id: UUID, name: str, own: str
) -> Exchange:
    """Save the incomplete result of a leg of a session's call.

    Raises `InvalidInputRequest` if the server asks too many times.
    """
    before = request.continues
    if before is None:
        exchange = _build_pending_call(request, server_id, name, own)
    else:
        exchange = Exchange.objects.get(pk=before.exchange_id)
    if exchange.kind != Exchange.Kind.TASK and found.kind == "task":
        kept = TASK_TIME if found.ttl_ms is None else timedelta(milliseconds=found.ttl_ms)
        exchange.ends_at = timezone.now() + min(kept, LONGEST_TASK)
    asks = {key: one for key, one in found.requests.items() if key not in exchange.answered}
    if asks or found.kind != "task":
        exchange.round += 1
    if exchange.round > ROUNDS:
        raise InvalidInputRequest(f"it asks for more than {ROUNDS} times")
    exchange.kind = found.kind
    exchange.requests = make_storable(asks)
    exchange.request_state = found.state
    exchange.responses = {}
    # The session continues its own call, even if a built-in tool made this one for it.
    exchange.call_id = request.parent_id or request.call_id
    parts = dict.fromkeys((exchange.call_id, request.call_id))
    exchange.legs = [*exchange.legs, *map(str, parts)]
    exchange.task_id = found.task_id or exchange.task_id
    exchange.poll_ms = found.poll_ms
    exchange.next_at = None
    exchange.save(force_insert=before is None)
    return exchange


def _build_pending_call(request: CallRequest, server_id: UUID, name: str, own: str) -> Exchange:
    assert request.session_id is not None  # noqa: S101 - only a session's call can go on
    session = Session.objects.get(pk=request.session_id)
    return Exchange(
        organization_id=session.organization_id,
        agent_id=session.agent_id,
        session=session,
        server_id=server_id,
        server_name=name,
        own_name=own[:2048],
        method=request.method,
        round=0,
        ends_at=calculate_expiry(session.organization_id),
    )


def build_continuation(exchange: Exchange) -> CallContinuation:
    """Return the continuation for the next leg: the responses and the unchanged request state."""
    answers: dict[str, Any] = exchange.responses.open() or {}
    more: dict[str, Any] = {}
    if exchange.kind == Exchange.Kind.INPUT:
        more = {"inputResponses": answers} if exchange.requests else {}
        if exchange.request_state is not None:
            more["requestState"] = exchange.request_state
    return CallContinuation(
        exchange_id=exchange.pk,
        legs=frozenset(UUID(leg) for leg in exchange.legs),
        more=more,
        task_id=exchange.task_id,
        poll_s=exchange.poll_ms / 1000,
        updates=answers if exchange.kind == Exchange.Kind.TASK else {},
        answered=frozenset((*exchange.answered, *answers)),
        ends_at=exchange.ends_at,
    )


def save_responses(exchange: Exchange, responses: Mapping[str, Any]) -> None:
    """Save responses until the server has received them, so that none is created twice."""
    exchange.responses = {**(exchange.responses.open() or {}), **make_storable(dict(responses))}
    exchange.save(update_fields=["responses", "updated_at"])


def mark_delivered(exchange_id: UUID, keys: Iterable[str]) -> None:
    """Mark responses as delivered to a task and clear them."""
    exchange = Exchange.objects.get(pk=exchange_id)
    exchange.answered = [*exchange.answered, *keys]
    exchange.responses = {}
    exchange.requests = {}
    exchange.save(update_fields=["answered", "responses", "requests", "updated_at"])


def open_one(exchange_id: UUID | str | None = None, call_id: UUID | None = None) -> Exchange | None:
    """Return an open pending call by its id or by the id of its last leg."""
    wanted = Q(pk=exchange_id) if exchange_id else Q(call_id=call_id)
    return Exchange.objects.filter(wanted, closed_at=None).first()


def close(exchange_id: UUID | str) -> None:
    """Close a pending call and clear the answers that were entered for it."""
    if (exchange := open_one(exchange_id)) is None:
        return
    exchange.closed_at = timezone.now()
    exchange.responses = {}
    exchange.request_state = None
    exchange.save(update_fields=["closed_at", "responses", "request_state", "updated_at"])
    for question in exchange.questions.all():
        question.content = {}
        question.save(update_fields=["content"])


def schedule_check(exchange: Exchange, at: datetime) -> None:
    """Schedule the next check of a task, so that no worker has to wait for it."""
    Exchange.objects.filter(pk=exchange.pk).update(next_at=at)


def open_of(session_id: UUID) -> list[Exchange]:
    """Return a session's open pending calls."""
    return list(Exchange.objects.filter(session_id=session_id, closed_at=None))


def filter_waiting_sessions(sessions: Any) -> Any:
    """Filter sessions that wait for an elicitation or for a scheduled task check."""
    asked = Question.objects.filter(state=Question.State.WAITING, exchange__isnull=False)
    later = Exchange.objects.filter(closed_at=None, next_at__gt=timezone.now())
    return sessions.filter(
        Q(pk__in=asked.values("session_id")) | Q(pk__in=later.values("session_id"))
    )


Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]

# Consecutive polls that may fail before the task is left for later.
FAILURES = 3
UNKNOWN_TASK = -32602


async def send_leg(
    request: CallRequest, endpoint: ServerEndpoint, ask: Ask, params: Mapping[str, Any]
) -> dict[str, Any]:
    """Send a leg of a call, or poll its task; return the raw result."""
    going_on = request.continues
    if going_on and going_on.task_id:
        return await _poll_task(request, endpoint, going_on, ask)
    if request.relay:
        return await ask(request.method, _build_relayed_params(params, request.relay))
    said = {**params, **(going_on.more if going_on else {})}
    try:
        result = await ask(request.method, said)
        for _ in range(ROUNDS):
            if result.get("resultType") != "input_required" or result.get("inputRequests"):
                return result
            state = parse_incomplete_result(result, endpoint.may_ask)
            result = await ask(request.method, {**params, "requestState": state and state.state})
        raise InvalidInputRequest(f"it wants to be asked again more than {ROUNDS} times")
    except InvalidInputRequest as fault:
        raise build_protocol_error(endpoint, str(fault)) from None
    except UpstreamError as error:
        wanted = parse_url_elicitations(error.rpc_data) if error.rpc_code == URL_NEEDED else {}
        if not wanted or request.session_id is None or "elicitation" not in endpoint.may_ask:
            raise
        return {"resultType": "url", "inputRequests": wanted}


async def save_pending_call(
    request: CallRequest, passed: AdmittedCall, result: Mapping[str, Any]
) -> UUID | None:
    """Save a call whose result is incomplete as a pending call, and return its id.

    Raises `UpstreamError` (`protocol_error`) if the server asks for something it may not.
    """
    server_id = passed.target.facts.server_id
    server = passed.snapshot.servers.get(server_id) if server_id else None
    if server is None or result.get("resultType", "complete") == "complete":
        return None
    try:
        found = parse_incomplete_result(result, _get_allowed_requests(request, server.endpoint))
        if found is None or request.relay:
            return None
        if request.session_id is None or request.host is None:
            raise InvalidInputRequest("it asks for input where nobody was offered to give it")
        write = partial(note, server_id=server.id, name=server.name)
        own = passed.target.facts.own_name
        return (await get_runtime().orm(partial(write, own=own), request, found)).pk
    except InvalidInputRequest as fault:
        raise build_protocol_error(server.endpoint, str(fault)) from None


def _build_relayed_params(params: Mapping[str, Any], relay: RelayOptions) -> dict[str, Any]:
    """Return the parameters of a relayed call, with the client's responses and request state."""
    meta = {"_meta": dict(relay.meta)} if relay.meta else {}
    return {**params, **relay.more, **meta}


def _get_allowed_requests(request: CallRequest, endpoint: ServerEndpoint) -> frozenset[str]:
    """Return the requests a server may send: enabled for it and supported by the caller."""
    chosen = frozenset(str(one) for one in endpoint.may_ask)
    return chosen & request.relay.may_ask if request.relay else chosen


async def _poll_task(
    request: CallRequest, endpoint: ServerEndpoint, going_on: CallContinuation, ask: Ask
) -> dict[str, Any]:
    """Poll a task until it ends, asks for input, or this leg times out.

    After repeated failures the task is left for later. Raises `UpstreamError`: the task's own
    error, or `task_lost`, `task_cancelled`, `task_expired`.
    """
    named = {"taskId": going_on.task_id}
    if going_on.updates:
        await ask("tasks/update", {**named, "inputResponses": dict(going_on.updates)})
        await get_runtime().orm(mark_delivered, going_on.exchange_id, list(going_on.updates))
    until = monotonic() + (request.timeout_s or endpoint.read_s)
    failures = 0
    while True:
        if timezone.now() >= going_on.ends_at:
            await ask("tasks/cancel", named)
            raise _build_task_error(endpoint, "task_expired", "did not finish it in time")
        try:
            found, failures = await ask("tasks/get", named), 0
        except UpstreamError as problem:
            failures += 1
            if problem.rpc_code == UNKNOWN_TASK:
                raise _build_task_error(
                    endpoint, "task_lost", "does not know it any more"
                ) from problem
            if not problem.retryable and problem.code != "call_timeout":
                raise
            found = {"status": "working"}
        if (result := _parse_task_result(endpoint, going_on, found)) is not None:
            return result
        pause_s = max(going_on.poll_s, poll_ms(found.get("pollIntervalMs")) / 1000)
        leaving = request.leaving is not None and request.leaving()
        if leaving or failures >= FAILURES or monotonic() + pause_s > until:
            pace = round(pause_s * 1000)
            return {**named, "resultType": "task", "status": "working", "pollIntervalMs": pace}
        await asyncio.sleep(pause_s)


def _parse_task_result(
    endpoint: ServerEndpoint, going_on: CallContinuation, found: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the result of a task; None while it is still working."""
    status = found.get("status")
    if status == "completed":
        result = found.get("result")
        if not isinstance(result, dict):
            raise build_protocol_error(endpoint, "a finished task without a result")
        return {name: value for name, value in result.items() if name != "resultType"}
    if status == "failed":
        raise build_rpc_error(endpoint, found.get("error"))
    if status == "cancelled":
        raise _build_task_error(endpoint, "task_cancelled", "gave it up")
    if status != "input_required":
        return None
    try:
        wanted = parse_input_requests(found.get("inputRequests") or {}, endpoint.may_ask)
    except InvalidInputRequest as fault:
        raise build_protocol_error(endpoint, str(fault)) from None
    if not set(wanted) - going_on.answered:
        return None  # it has our responses but hasn't processed them yet
    return {**found, "resultType": "task", "taskId": going_on.task_id}


def _build_task_error(endpoint: ServerEndpoint, code: str, what: str) -> UpstreamError:
    return UpstreamError(
        format_message(
            "`{endpoint}` made a task of this call, and {what}.", endpoint=endpoint.name, what=what
        ),
        code=code,
        server=endpoint.name,
        sent=True,
        remedy="Call it again if that does no harm.",
    )


TaskMethod = Literal["tasks/get", "tasks/update", "tasks/cancel"]

OVER = ("completed", "failed", "cancelled")
MOST_SEEN = 10_000


@dataclass(frozen=True)
class RemoteTask:
    """A server's task and the call that created it; `tool` is the name the caller used."""

    server_id: UUID
    id: str
    tool: str
    call_id: UUID


async def ask(
    request: CallRequest,
    snapshot: CallSnapshot,
    task: RemoteTask,
    method: TaskMethod,
    said: Mapping[str, Any],
) -> dict[str, Any]:
    """Send a task request to a server and return its response with secrets masked.

    `snapshot` must be current. Raises `NotFound` (`unknown_task`) if the tool may no longer be
    called, and `UpstreamError`.
    """
    tool, server = snapshot.tools.get(task.tool), snapshot.servers.get(task.server_id)
    known = tool is not None and tool.facts.server_id == task.server_id and tool.decision.offered
    if tool is None or server is None or not known or not server.enabled:
        raise NotFound("There is no such task.", code="unknown_task")
    endpoint = await resolve_user_endpoint(server.endpoint, request.principal, request.session_id)
    meta = {"_meta": dict(request.relay.meta)} if request.relay and request.relay.meta else {}
    found = await get_connection_pool().request(
        endpoint,
        method,
        {**said, "taskId": task.id, **meta},
        holder=request.holder,
        timeout_s=request.timeout_s,
        host=request.host,
    )
    if found.get("status") in OVER and _mark_seen(task):
        await get_runtime().orm(partial(_note, request, snapshot, tool, task, found))
    return redact_result(found, snapshot.organization_id)


def _note(
    request: CallRequest,
    snapshot: CallSnapshot,
    tool: SnapshotTool,
    task: RemoteTask,
    found: Mapping[str, Any],
) -> None:
    """Record the end of a task in the audit log."""
    result, failure = found.get("result"), found.get("error")
    failed = failure is not None or (isinstance(result, Mapping) and bool(result.get("isError")))
    text = to_sorted_json(result if result is not None else failure)
    record(
        organization_id=snapshot.organization_id,
        actor=request.principal.actor,
        action="call_task_ended",
        resource_type="call",
        resource_id=str(task.call_id),
        resource_name=tool.facts.own_name,
        details={
            "status": found["status"],
            "output_sha256": compute_fingerprint(snapshot.organization_id, text),
        },
        governed=False,
        event=ChangeEvent(
            "change",
            outcome="error" if failed else "ok",
            code=("upstream_error" if failure is not None else "tool_error") if failed else "",
            server_id=task.server_id,
            server_name=tool.facts.server_name,
        ),
    )


_seen: OrderedDict[UUID, None] = OrderedDict()


def _mark_seen(task: RemoteTask) -> bool:
    """Return True the first time this process sees that a task has ended."""
    if task.call_id in _seen:
        return False
    _seen[task.call_id] = None
    if len(_seen) > MOST_SEEN:
        _seen.popitem(last=False)
    return True
