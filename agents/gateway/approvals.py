"""Calls that need approval: URL elicitations and deferred tasks.

A task id is encrypted for the principal and the address, as with servers' own tasks.

A URL elicitation sends the person to the approval's page: a modern client gets it as a result
(`input_required`), a client of the handshake era as a request. After approval the same call is
admitted again, which uses up the approval. Clients without URL elicitation get an error.
"""

import asyncio
from collections.abc import Mapping
from math import inf
from typing import Any
from uuid import UUID

from django.utils import timezone
from mcp.shared.exceptions import MCPError

from agents.approvals.changed_definitions import can_be_requested_again
from agents.approvals.services import build_approval_topic, withdraw_approval
from agents.calls.deferred_calls import create_deferred_call
from agents.calls.incomplete_results import InvalidInputRequest, parse_input_requests
from agents.calls.pipeline import ApprovalRequired, CallRefused
from agents.calls.require_approval import build_refusal, is_denied
from agents.gateway.client_request import GatewayRequest, list_supported_requests
from agents.gateway.errors import build_refusal_result
from agents.gateway.request_state import TASK, build_protocol_error, encrypt_state
from agents.models import Approval, DeferredCall
from bonobot.core.message_bus import listen
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime

APPROVAL_REQUEST_KEY = "bonobot-approval"
ELICITATION_METHOD = "elicitation/create"
# A modern client's request is answered within this time, if necessary with a new elicitation.
MAX_WAIT_S = 20.0
DEFERRED_CALL_KEY = "promise"
POLL_INTERVAL_MS = 2_000
State = DeferredCall.State


def can_show_url(capabilities: Mapping[str, Any]) -> bool:
    """Tell whether a client supports URL elicitation."""
    elicitation = capabilities.get("elicitation")
    return isinstance(elicitation, Mapping) and "url" in elicitation


def build_url_elicitation(problem: ApprovalRequired, *, modern: bool) -> dict[str, Any]:
    """Return the parameters of a URL elicitation for an approval."""
    id_fields = {} if modern else {"elicitationId": str(problem.approval_id)}
    return {
        "mode": "url",
        "message": str(problem),
        "url": problem.extra["approval_url"],
        **id_fields,
    }


def is_declined(responses: Mapping[str, Any]) -> bool:
    """Tell whether the person declined or canceled the elicitation."""
    answer = responses.get(APPROVAL_REQUEST_KEY)
    return isinstance(answer, Mapping) and answer.get("action") in ("decline", "cancel")


async def ask_for_approval(inbound: GatewayRequest, problem: ApprovalRequired) -> None:
    """Send the URL elicitation to a client of the handshake era and wait for the decision.

    The client waits as long as the approval can be answered. Raises `CallRefused`
    (`approval_cancelled`, `approval_expired`). The approval ends with the call if the client
    cancels or disconnects.
    """
    elicitation = build_url_elicitation(problem, modern=False)
    try:
        answer = await inbound.send_request(ELICITATION_METHOD, elicitation)
        if answer.get("action") == "accept":
            await wait_for_decision(problem.approval_id)
    except (asyncio.CancelledError, MCPError):
        # Not awaited here: a canceled request is canceled again at every await.
        get_runtime().spawn(_withdraw_approval(inbound, problem.approval_id), name="end approval")
        raise
    if answer.get("action") != "accept":
        await _withdraw_approval(inbound, problem.approval_id)
    await _require_not_ended(problem.approval_id)


async def end_declined_approval(inbound: GatewayRequest, approval_id: UUID) -> None:
    """End the approval of a call that its user declined to wait for.

    Raises `CallRefused` (`approval_cancelled`, `approval_expired`) unless it was decided before.
    """
    await _withdraw_approval(inbound, approval_id)
    await _require_not_ended(approval_id)


async def wait_for_decision(approval_id: UUID, timeout_s: float = inf) -> None:
    """Wait until an approval is decided, has expired or can be requested again.

    At most `timeout_s` seconds.
    """
    clock = get_runtime().loop.time
    deadline = clock() + timeout_s
    async with listen(build_approval_topic(approval_id)) as listener:
        while await get_runtime().run_orm(_is_pending, approval_id):
            if clock() >= deadline:
                return
            await listener.wait(deadline - clock())


async def _withdraw_approval(inbound: GatewayRequest, approval_id: UUID) -> None:
    approval = await get_runtime().run_orm(Approval.objects.get, pk=approval_id)
    await get_runtime().run_orm(withdraw_approval, inbound.caller.principal, approval)


async def _require_not_ended(approval_id: UUID) -> None:
    """Raise `CallRefused` for an approval that ended without a person's decision."""
    approval = await get_runtime().run_orm(Approval.objects.get, pk=approval_id)
    if approval.is_answerable(timezone.now()):
        return  # the call requests another one, since its definition changed
    refusal: CallRefused | None = build_refusal(approval)
    if refusal is not None and not is_denied(approval):
        raise refusal


def _is_pending(approval_id: UUID) -> bool:
    approval = Approval.objects.pending().filter(pk=approval_id).first()
    return approval is not None and not can_be_requested_again(approval)


async def start_deferred_call(
    inbound: GatewayRequest, problem: ApprovalRequired, request: Mapping[str, Any]
) -> dict[str, Any]:
    """Create a deferred call and return its task for the client."""
    stored_request = {**request, "meta": inbound.forwarded_meta, "client": inbound.client_name}
    row = await get_runtime().run_orm(create_deferred_call, problem.approval_id, stored_request)
    task_id = encrypt_state(
        inbound.caller,
        TASK,
        {DEFERRED_CALL_KEY: str(row.pk)},
        lifetime=row.ends_at - timezone.now(),
    )
    task = build_deferred_task(inbound, row)
    task.pop("inputRequests", None)
    return {"resultType": TASK, "taskId": task_id, **task}


def build_deferred_task(inbound: GatewayRequest, row: DeferredCall) -> dict[str, Any]:
    """Return a deferred call's task, as in `tasks/get`."""
    return _build_timestamps(row) | _build_status(inbound, row)


def _build_status(inbound: GatewayRequest, row: DeferredCall) -> dict[str, Any]:
    if row.state == State.WAITING:
        return _build_pending_status(inbound, row)
    if row.state == State.CANCELLED:
        return {"status": "cancelled"}
    if row.state == State.DONE:
        return _build_final_status(row.answer.open())
    if row.state != State.ASKING:
        return {"status": "working"}
    state = row.answer.open()
    responses = state.get("given", {})
    missing = {key: request for key, request in state["requests"].items() if key not in responses}
    try:
        requests = parse_input_requests(missing, list_supported_requests(inbound.capabilities))
    except InvalidInputRequest as error:
        raise build_protocol_error(error) from None
    return {"status": "input_required", "inputRequests": requests}


def _build_pending_status(inbound: GatewayRequest, row: DeferredCall) -> dict[str, Any]:
    """Return the status of a call that waits for approval, with a URL elicitation until visited."""
    problem = ApprovalRequired(row.approval)
    message = {"statusMessage": f"{problem} {problem.remedy.partition(';')[0]}."}
    if row.visited or not can_show_url(inbound.capabilities):
        return {"status": "working", **message}
    elicitation = {
        "method": ELICITATION_METHOD,
        "params": build_url_elicitation(problem, modern=True),
    }
    return {
        "status": "input_required",
        "inputRequests": {APPROVAL_REQUEST_KEY: elicitation},
        **message,
    }


def _build_final_status(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a finished call; only a protocol error is a failed task."""
    if "error" in answer:
        return {"status": "failed", "error": answer["error"]}
    if "refused" in answer:
        return {
            "status": "completed",
            "result": build_refusal_result(_build_problem(answer["refused"])),
        }
    return {"status": "completed", "result": answer["result"]}


def _build_problem(details: Mapping[str, Any]) -> Problem:
    names = ("code", "field", "remedy", "rule", "retry_after")
    extra = {name: details[name] for name in details.keys() - {*names, "detail"}}
    return Problem(
        str(details.get("detail", "")),
        extra=extra,
        **{k: details[k] for k in names if k in details},
    )


def _build_timestamps(row: DeferredCall) -> dict[str, Any]:
    ttl = row.ends_at - row.created_at
    return {
        "createdAt": row.created_at.isoformat(),
        "lastUpdatedAt": row.updated_at.isoformat(),
        "ttlMs": round(ttl.total_seconds() * 1_000),
        "pollIntervalMs": POLL_INTERVAL_MS,
    }
