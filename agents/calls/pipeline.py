"""`call`: forward, inspect, settle; span; release connections.

Resolve, check, decide and admit (`admitting`); then forward, inspect and settle. No audit row, no
call; an admitted call is always settled.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any
from uuid import UUID

from django.conf import settings
from opentelemetry.trace import Span

from agents.budgets.call_costs import FREE, calculate_amounts
from agents.budgets.limits import build_settlements
from agents.builtin_tools.registry import run_builtin
from agents.builtin_tools.types import BuiltinToolContext
from agents.calls.admit import calculate_deadline_ms
from agents.calls.check_and_admit import AdmittedCall, admit, decide_again
from agents.calls.forward import resolve_user_endpoint
from agents.calls.pending_calls import save_pending_call, send_leg
from agents.calls.redaction import redact_result
from agents.calls.require_approval import ApprovalRequired
from agents.calls.resolve import Target, build_params, get_argument_schema
from agents.calls.results import (
    ResultText,
    clean_completion,
    clean_text,
    estimate_size,
    render_result,
)
from agents.calls.snapshots import SnapshotTool, get_snapshot_cache
from agents.calls.types import (
    CallIncomplete,
    CallOutcome,
    CallRefused,
    CallRequest,
    CallSuperseded,
    Method,
    OutcomeUnrecorded,
)
from agents.models import StoredResult
from bonobot.core.crypto.signatures import compute_fingerprint
from bonobot.core.db.transactions import AWAY
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.telemetry import tracing
from bonobot.core.telemetry.logging import LogContext
from bonobot.core.text.canonical_json import to_sorted_json
from bonobot.ledger.refusals import AuditUnavailable
from bonobot.ledger.types import Outcome as LedgerOutcome
from bonobot.ledger.types import Settlement
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.client.protocol_versions import HEADER_MISMATCH
from mcp_servers.health.services import record_trouble
from mcp_servers.refresh_definitions import await_refresh_on_error, request_refresh_on_error


def trace_call(request: CallRequest) -> AbstractContextManager[Span | None]:
    """Return the span of a call, from the door on."""
    if not tracing.is_on():
        return tracing.NOTHING
    return tracing.start_span(
        f"execute_tool {request.tool}" if request.method == "tools/call" else request.method,
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name=request.tool if request.method == "tools/call" else "",
        gen_ai__tool__call__id=str(request.call_id),
        gen_ai__agent__id=str(request.agent_id or ""),
        gen_ai__conversation__id=str(request.session_id or ""),
        mcp__method__name=request.method,
        bonobot__organization__id=str(request.principal.organization_id),
    )


def set_span_outcome(span: Span | None, outcome: CallOutcome) -> CallOutcome:
    """Say on the span how the call ended; return the outcome."""
    if span is not None:
        tracing.note(span, bonobot__outcome=outcome.outcome)
        tracing.mark_span_failed(span, outcome.code if outcome.outcome != "ok" else "")
    return outcome


__all__ = ["ApprovalRequired", "CallOutcome", "CallRefused", "CallRequest", "call", "release"]

logger = logging.getLogger(__name__)

READ_INLINE = 16_384
NOTE = 512
PARTING_S = 5.0
LEAST_S = 0.1  # of a call that goes out again when its time is nearly over


async def call(request: CallRequest) -> CallOutcome:
    """Make one governed call.

    Raises `Refused`, `InvalidArguments`, `NotFound` (unknown tool) or the ledger's `Refusal`, each
    after it was written to the audit; an upstream's failure is an outcome, not an exception.
    """
    with LogContext(call=str(request.call_id)), trace_call(request) as span:
        return set_span_outcome(span, await _forward_and_settle(await admit(request)))


async def release(holder: str) -> None:
    """Close what calls of `holder` opened: children and handshake sessions."""
    await get_connection_pool().release(holder)


async def disconnect(holder: str, server_id: UUID) -> None:
    """Close what calls of `holder` opened at one server."""
    await get_connection_pool().release(holder, server_id)


@dataclass(slots=True)
class _CallResult:
    """What came of a call so far; as long as nobody knows, it was cancelled."""

    outcome: LedgerOutcome = "unknown"
    code: str = "cancelled"
    shown: ResultText = field(default_factory=lambda: ResultText(""))
    result: dict[str, Any] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""
    sent: bool = True
    answered: bool = False
    duration_ms: int = 0
    exchange_id: UUID | None = None
    error: dict[str, Any] | None = None
    took: dict[str, int] = field(default_factory=dict)


async def _forward_and_settle(passed: AdmittedCall) -> CallOutcome:
    """Forward the call and settle it, whatever happens: also when the caller goes away."""
    request, began, end = passed.request, perf_counter(), _CallResult()
    try:
        await _complete_call(request, passed, end)
    except Problem as problem:
        await _fail_call(request, passed, problem, end)
    finally:
        end.duration_ms = round((perf_counter() - began) * 1000)
        end.took = _calculate_amounts(
            request, passed, end.duration_ms, sent=end.sent, known=end.outcome != "unknown"
        )
        # Handed over before it waits: a caller that goes away meanwhile changes nothing of it.
        await _record_settlement(request, _build_settlement(request, passed, end))
    return CallOutcome(
        call_id=request.call_id,
        outcome=end.outcome,
        text=end.shown.text,
        result=end.result,
        duration_ms=end.duration_ms,
        code=end.code,
        remedy=end.remedy,
        cost_microusd=end.took["microusd"],
        server_name=passed.target.facts.server_name,
        own_name=_get_requested_name(request, passed.target),
        sanitized=end.shown.sanitized,
        flagged=end.shown.flagged,
        instructs=end.outcome == "ok" and _is_trusted_instruction(passed.target),
        exchange_id=end.exchange_id,
        error=end.error,
    )


def _is_trusted_instruction(target: Target) -> bool:
    """Tell whether what a call gives are our own people's words."""
    return isinstance(target, SnapshotTool) and bool(target.builtin and target.builtin.instructs)


async def _record_settlement(request: CallRequest, settlement: Settlement) -> None:
    """Settle a call before its answer goes out; a session waits for a database that is away.

    Raises `OutcomeUnrecorded` to the others: the call was made, and they must not repeat it.
    """
    try:
        await get_writer().settle_async(settlement, patient=request.session_id is not None)
    except AuditUnavailable as problem:
        raise OutcomeUnrecorded(problem) from problem


async def _complete_call(request: CallRequest, passed: AdmittedCall, end: _CallResult) -> None:
    try:
        end.result = await _send_call(request, passed)
    except CallIncomplete as part:
        end.outcome, end.code = "ok", part.outcome.code
        end.exchange_id = part.outcome.exchange_id
        return
    end.answered = True
    end.exchange_id = await save_pending_call(request, passed, end.result)
    kind = str(end.result.get("resultType", "complete"))
    if end.exchange_id is not None or (request.relay and kind != "complete"):
        end.outcome, end.code = "ok", kind
        return
    if request.method == "completion/complete":
        end.result = clean_completion(end.result)
    end.shown, end.result, end.told = await _inspect_result(request, passed, end.result)
    failed = bool(end.result.get("isError"))
    end.outcome, end.code = ("error", "tool_error") if failed else ("ok", "")


async def _fail_call(
    request: CallRequest, passed: AdmittedCall, problem: Problem, end: _CallResult
) -> None:
    end.sent = end.answered or (isinstance(problem, UpstreamError) and problem.sent)
    end.outcome = "unknown" if _is_outcome_unknown(problem) else "error"
    end.code, end.remedy, end.result = problem.code, problem.remedy, {}  # a refused answer's
    end.error = _find_server_error(problem, passed.snapshot.organization_id)
    end.shown = clean_text(str(problem))
    await _note_trouble(request, passed.target.facts.server_id, problem)


def _build_settlement(request: CallRequest, passed: AdmittedCall, end: _CallResult) -> Settlement:
    shown = end.shown
    return Settlement(
        call_id=request.call_id,
        organization_id=passed.snapshot.organization_id,
        outcome=end.outcome,
        code=end.code,
        duration_ms=end.duration_ms,
        details={
            "execution_time_ms": end.duration_ms,
            "sanitized": shown.changes(),
            **({"flagged": dict(shown.flagged)} if shown.flagged else {}),
            **end.told,
        },
        actuals=build_settlements(passed.admission.reserves, end.took),
        cost_microusd=end.took["microusd"],
    )


def _calculate_amounts(
    request: CallRequest, passed: AdmittedCall, duration_ms: int, *, sent: bool, known: bool
) -> dict[str, int]:
    """Return what the call took of its budgets; a built-in tool is a call that costs nothing."""
    server_id = passed.target.facts.server_id
    server = passed.snapshot.servers.get(server_id) if server_id else None
    return calculate_amounts(
        server.price if server else FREE,
        deadline_ms=calculate_deadline_ms(request, server),
        duration_ms=duration_ms,
        # A look at a task is no call: the one that began it was.
        sent=(sent and not (request.continues and request.continues.task_id)) or server is None,
        known=known,
    )


def _get_requested_name(request: CallRequest, target: Target) -> str:
    """Return what was asked for by its server's own name; of a template, the URI."""
    return target.facts.own_name if request.method == "tools/call" else request.tool


async def _note_trouble(request: CallRequest, server_id: UUID | None, problem: Problem) -> None:
    """Write what a failure says of its server: that it is away, or that it has changed."""
    if server_id is not None:
        try:
            await get_runtime().orm(record_trouble, server_id, problem)
        except AWAY as fault:
            logger.warning("a server's trouble could not be noted: %s", fault)
        if request.method == "tools/call":
            request_refresh_on_error(server_id, problem, request.holder)


def _find_server_error(problem: Problem, organization_id: UUID) -> dict[str, Any] | None:
    """Return the error that the server answered with, without our secrets; None if it didn't."""
    if not isinstance(problem, UpstreamError) or problem.rpc_code is None:
        return None
    error = {"code": problem.rpc_code, "message": problem.rpc_message}
    if problem.rpc_data is not None:
        error["data"] = problem.rpc_data
    return redact_result(error, organization_id)


def _is_outcome_unknown(problem: Problem) -> bool:
    """Tell whether the call was sent and nobody knows whether it ran."""
    lost = ("call_timeout", "server_unreachable", "server_crashed")
    return isinstance(problem, UpstreamError) and problem.sent and problem.code in lost


async def _send_call(request: CallRequest, passed: AdmittedCall) -> dict[str, Any]:
    """Return the raw result; a call that was mirrored by old annotations goes out once more.

    A server that refuses headers (-32020) has read nothing of the call. Its declarations are read
    again, and only what may be called as it is declared now is sent (MCP 2026-07-28, transports).
    """
    began = perf_counter()
    try:
        return await _forward(request, passed)
    except UpstreamError as problem:
        old, server_id = passed.target, passed.target.facts.server_id
        if (
            problem.rpc_code != HEADER_MISMATCH
            or not isinstance(old, SnapshotTool)
            or server_id is None
        ):
            raise
        await await_refresh_on_error(server_id, problem, request.holder)
        renewed = await decide_again(request, passed)
        if get_argument_schema(request, renewed.target) == old.input_schema:
            raise
    server = renewed.snapshot.servers.get(server_id)
    left_s = calculate_deadline_ms(request, server) / 1000 - (perf_counter() - began)
    return await _forward(replace(renewed.request, timeout_s=max(left_s, LEAST_S)), renewed)


async def _forward(request: CallRequest, passed: AdmittedCall) -> dict[str, Any]:
    snapshot, target = passed.snapshot, passed.target
    if request.may_send is not None and not await request.may_send():
        raise CallSuperseded("Another process took this session over before the call was sent.")
    if (builtin := target.builtin if isinstance(target, SnapshotTool) else None) is not None:
        return await run_builtin(builtin, _build_tool_context(request, passed), request.arguments)
    server_id = target.facts.server_id
    if server_id is None:
        raise NotFound("This tool has no server.", code="unknown_tool")
    reached = snapshot.servers[server_id].endpoint
    endpoint = await resolve_user_endpoint(reached, request.principal, request.session_id)

    async def ask(method: str, said: Mapping[str, Any]) -> dict[str, Any]:
        return await get_connection_pool().request(
            endpoint,
            method,
            said,
            holder=request.holder,
            timeout_s=request.timeout_s,
            on_progress=request.on_progress,
            on_log=request.relay.on_log if request.relay else None,
            input_schema=target.input_schema if isinstance(target, SnapshotTool) else None,
            declaration=target.declaration if isinstance(target, SnapshotTool) else None,
            host=request.host,
        )

    return await send_leg(request, endpoint, ask, build_params(request, target))


async def cancel_task(request: CallRequest, task_id: str) -> None:
    """Tell a server that nobody waits for its task any more; what it does then is its own."""
    if request.agent_id is None or request.server_id is None:
        return
    snapshot = await get_runtime().orm(get_snapshot_cache().read, "agent", request.agent_id)
    server = snapshot.servers.get(request.server_id)
    if server is None or not server.enabled:
        return
    endpoint = await resolve_user_endpoint(server.endpoint, request.principal, request.session_id)
    await get_connection_pool().request(
        endpoint,
        "tasks/cancel",
        {"taskId": task_id},
        holder=request.holder,
        timeout_s=PARTING_S,
        host=request.host,
    )


def _build_tool_context(request: CallRequest, passed: AdmittedCall) -> BuiltinToolContext:
    snapshot, toolbox = passed.snapshot, passed.snapshot.toolbox
    return BuiltinToolContext(
        organization_id=snapshot.organization_id,
        agent_id=snapshot.agent_id,
        session_id=request.session_id,
        principal=request.principal,
        call_id=request.call_id,
        labels=passed.target.labels,
        holding_session=request.holding_session,
        snapshot=snapshot,
        toolbox=replace(toolbox, folder=request.folder) if request.folder else toolbox,
        call=partial(_call_on_behalf, request),
        timeout_s=request.timeout_s,
    )


async def _call_on_behalf(
    parent: CallRequest, method: Method, server_id: UUID, name: str
) -> CallOutcome:
    """Make a call on behalf of a built-in tool: decided, admitted and audited by itself.

    Raises `GoesOn` where its server asks for something first.
    """
    outcome = await call(
        CallRequest(
            principal=parent.principal,
            principal_generation=parent.principal_generation,
            renewed=parent.renewed,
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
            leaving=parent.leaving,
            host=parent.host,
            continues=parent.continues,
        )
    )
    if outcome.exchange_id is not None:
        raise CallIncomplete(outcome)
    return outcome


async def _inspect_result(
    request: CallRequest, passed: AdmittedCall, result: dict[str, Any]
) -> tuple[ResultText, dict[str, Any], dict[str, Any]]:
    """Return the result as models read it, as programs do, and what the audit is told of it."""
    organization_id = passed.snapshot.organization_id
    limit = settings.BONOBOT_RESULT_LIMIT
    if passed.target.facts.source == "builtin":
        limit += NOTE  # of the call that it made, which was cut already and says so
    # Long texts are read beside the loop, which other calls are waiting for.
    read = partial(_read, result, organization_id, limit=limit, result_id=request.call_id)
    inline = estimate_size(result, READ_INLINE) <= READ_INLINE
    shown, result, told = read() if inline else await asyncio.to_thread(read)
    if shown.whole:
        await get_runtime().orm(
            StoredResult.objects.create,
            pk=request.call_id,
            organization_id=organization_id,
            agent_id=passed.snapshot.agent_id,
            session_id=request.session_id,
            text=shown.whole,
        )
    return shown, result, told


def _read(
    result: dict[str, Any], organization_id: UUID, *, limit: int, result_id: UUID
) -> tuple[ResultText, dict[str, Any], dict[str, Any]]:
    told: dict[str, Any] = {
        "output_sha256": compute_fingerprint(organization_id, to_sorted_json(result))
    }
    if (clean := redact_result(result, organization_id)) is not result and clean != result:
        told["secrets_masked"] = True
    return render_result(clean, limit=limit, result_id=result_id), clean, told
