"""Send an admitted call to its server, or run its built-in tool."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any
from uuid import UUID

from agents.builtin_tools.registry import run_builtin_tool
from agents.builtin_tools.types import BuiltinToolContext
from agents.calls.connections import resolve_user_endpoint
from agents.calls.definitions import SnapshotDefinition
from agents.calls.incomplete_results import (
    MAX_ROUNDS,
    URL_NEEDED,
    InvalidInputRequest,
    parse_incomplete_result,
    parse_url_elicitations,
)
from agents.calls.mcp_tasks import (
    SendRequest,
    call_as_task,
    poll_task,
    requires_task,
)
from agents.calls.pending_calls import deliver_responses
from agents.calls.prepare_call import redecide_call
from agents.calls.resolve import build_params, get_argument_schema
from agents.calls.snapshots import SnapshotTool, Target
from agents.calls.types import (
    CallContext,
    CallIncomplete,
    CallOutcome,
    CallRequest,
    CallSuperseded,
    Method,
    RelayOptions,
)
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, build_protocol_error
from mcp_servers.client.mcp_extensions import is_skill_content
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.client.protocol_versions import HEADER_MISMATCH
from mcp_servers.refresh_definitions import await_refresh_on_error

MIN_TIMEOUT_S = 0.1  # for a retry shortly before the deadline

MakeCall = Callable[[CallRequest], Awaitable[CallOutcome]]


async def forward_call(context: CallContext, make_call: MakeCall) -> dict[str, Any]:
    """Return the raw result; retry once if the server rejects headers built from an old schema.

    A server that rejects the headers (-32020) didn't process the call. Its definitions are then
    refreshed, and the call is decided again before it is resent (MCP 2026-07-28, transports).
    `make_call` makes the calls of built-in tools.
    """
    started_at = perf_counter()
    try:
        return await _send_call(context, make_call)
    except UpstreamError as problem:
        target, server, holder = context.target, context.server, context.request.holder
        is_mismatch = problem.rpc_code == HEADER_MISMATCH
        if not is_mismatch or not isinstance(target, SnapshotTool) or server is None:
            raise
        await await_refresh_on_error(server.id, problem, holder)
        redecided = await redecide_call(context)
        if get_argument_schema(redecided.request, redecided.target) == target.input_schema:
            raise
    remaining_s = redecided.deadline_ms / 1000 - (perf_counter() - started_at)
    redecided.request = replace(redecided.request, timeout_s=max(remaining_s, MIN_TIMEOUT_S))
    return await _send_call(redecided, make_call)


async def _send_call(context: CallContext, make_call: MakeCall) -> dict[str, Any]:
    request, target, server = context.request, context.target, context.server
    if request.may_send is not None and not await request.may_send():
        raise CallSuperseded("Another process took over this session before the call was sent.")
    if (builtin := target.builtin if isinstance(target, SnapshotTool) else None) is not None:
        tool_context = _build_tool_context(context, make_call)
        context.sent = True
        return await run_builtin_tool(builtin, tool_context, request.arguments)
    if server is None:
        raise NotFound("This tool has no server.", code="unknown_tool")
    endpoint = server.endpoint
    if server.is_per_person:
        endpoint = await resolve_user_endpoint(endpoint, request.principal, request.session_id)
    tool = target if isinstance(target, SnapshotTool) else None
    send_request = partial(
        get_connection_pool().send_request,
        endpoint,
        holder=request.holder,
        timeout_s=request.timeout_s,
        on_progress=request.on_progress,
        on_log=request.relay.on_log if request.relay else None,
        log_subscriber=request.relay.log_subscriber if request.relay else "",
        input_schema=tool.input_schema if tool else None,
        declaration=tool.declaration if tool else None,
        host=request.host,
    )
    is_poll = request.continuation is not None and request.continuation.task_id
    # Few tools declare their execution.
    execution = tool.declaration.get("execution") if tool and not is_poll else None
    if execution is not None and requires_task(endpoint, execution):
        send_request = partial(call_as_task, endpoint, send_request, request.timeout_s)
    context.sent = True
    result = await _send_round_trip(request, endpoint, send_request, build_params(request, target))
    if tool is None:
        await _check_skill_content(request, target, result, endpoint.name)
    return result


async def _send_round_trip(
    request: CallRequest,
    endpoint: ServerEndpoint,
    send_request: SendRequest,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Send a request of a call, or poll its task; return the raw result."""
    continuation = request.continuation
    if continuation and continuation.task_id:
        if continuation.updates:
            await deliver_responses(continuation, send_request)
        return await poll_task(request, endpoint, continuation, send_request)
    if request.relay:
        return await send_request(request.method, _build_relayed_params(params, request.relay))
    round_trip_params = {**params, **(continuation.extra_params if continuation else {})}
    try:
        result = await send_request(request.method, round_trip_params)
        for _ in range(MAX_ROUNDS):
            if result.get("resultType") != "input_required" or result.get("inputRequests"):
                return result
            incomplete = parse_incomplete_result(result, endpoint.allowed_requests)
            result = await send_request(
                request.method, {**params, "requestState": incomplete and incomplete.state}
            )
        raise InvalidInputRequest(f"it required more than {MAX_ROUNDS} retries")
    except InvalidInputRequest as fault:
        raise build_protocol_error(endpoint, str(fault), answered=True) from None
    except UpstreamError as error:
        elicitations = (
            parse_url_elicitations(error.rpc_data) if error.rpc_code == URL_NEEDED else {}
        )
        if (
            not elicitations
            or request.session_id is None
            or "elicitation" not in endpoint.allowed_requests
        ):
            raise
        return {"resultType": "url", "inputRequests": elicitations}


def _build_relayed_params(params: Mapping[str, Any], relay: RelayOptions) -> dict[str, Any]:
    """Return the parameters of a relayed call, with the client's responses and request state."""
    meta = {"_meta": dict(relay.meta)} if relay.meta else {}
    return {**params, **relay.extra_params, **meta}


async def _check_skill_content(
    request: CallRequest, target: Target, result: dict[str, Any], server: str
) -> None:
    """Raise `UpstreamError` (`skill_changed`) for a file that isn't as the skill was approved."""
    if not isinstance(target, SnapshotDefinition) or target.facts.kind != "skill":
        return
    if result.get("resultType", "complete") != "complete":
        return
    # Files can be large.
    if not await asyncio.to_thread(is_skill_content, target.declaration, request.tool, result):
        raise UpstreamError(
            format_message("`{uri}` isn't as it was approved.", uri=request.tool),
            code="skill_changed",
            server=server,
            answered=True,
            remedy="Refresh the server's definitions, and review the skill again.",
        )


def _build_tool_context(context: CallContext, make_call: MakeCall) -> BuiltinToolContext:
    request, snapshot = context.request, context.snapshot
    toolbox = snapshot.toolbox
    return BuiltinToolContext(
        organization_id=snapshot.organization_id,
        agent_id=snapshot.agent_id,
        session_id=request.session_id,
        principal=request.principal,
        call_id=request.call_id,
        labels=context.target.labels,
        label_session_id=request.label_session_id,
        snapshot=snapshot,
        toolbox=replace(toolbox, folder=request.folder) if request.folder else toolbox,
        call=partial(_make_nested_call, make_call, request),
        timeout_s=request.timeout_s,
        stopping=request.stopping,
    )


async def _make_nested_call(
    make_call: MakeCall, parent: CallRequest, method: Method, server_id: UUID, name: str
) -> CallOutcome:
    """Make a call for a built-in tool; it is decided, admitted and audited on its own.

    Raises `CallIncomplete` if the call is pending.
    """
    outcome = await make_call(
        CallRequest(
            principal=parent.principal,
            principal_generation=parent.principal_generation,
            renew_principal=parent.renew_principal,
            method=method,
            tool=name,
            arguments={},
            via=parent.via,
            holder=parent.holder,
            agent_id=parent.agent_id,
            server_id=server_id,
            session_id=parent.session_id,
            root=parent.root,
            parent_id=parent.call_id,
            client=parent.client,
            timeout_s=parent.timeout_s,
            may_send=parent.may_send,
            stopping=parent.stopping,
            host=parent.host,
            continuation=parent.continuation,
        )
    )
    if outcome.pending_call_id is not None:
        raise CallIncomplete(outcome)
    return outcome
