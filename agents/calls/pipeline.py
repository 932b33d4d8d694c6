"""`make_call`, the only way to make a governed call.

Steps:
1. `resolve`: which attached server, server and definition the name means.
2. `check_and_admit`: check the arguments, decide by the policy (allow, deny or ask), and admit the
   call with its audit entry (`admit`), or request an approval (`require_approval`). Without an
   audit entry there is no call.
3. `forward`: send it to its server, or run the built-in tool.
4. `inspect_result`: mask secrets, scan and truncate the text.
5. `settle_call`: close the audit entry and settle the budgets. An admitted call is always settled.

Each call is an OpenTelemetry span that follows the GenAI conventions (`execute_tool`).
"""

from contextlib import AbstractContextManager
from time import perf_counter

from opentelemetry.trace import Span

from agents.calls.check_and_admit import AdmittedCall, admit_call
from agents.calls.connections import release_connections, release_server_connections
from agents.calls.forward import cancel_task, forward_call
from agents.calls.inspect_result import inspect_result
from agents.calls.pending_calls import save_pending_call
from agents.calls.require_approval import ApprovalRequired
from agents.calls.resolve import Target
from agents.calls.results import clean_completion
from agents.calls.settle_call import (
    CallResult,
    record_contact,
    record_failure,
    settle_call,
)
from agents.calls.snapshots import SnapshotTool
from agents.calls.types import CallIncomplete, CallOutcome, CallRefused, CallRequest
from bonobot.core.problems import Problem
from bonobot.core.telemetry import tracing
from bonobot.core.telemetry.logging import LogContext

__all__ = [
    "ApprovalRequired",
    "CallOutcome",
    "CallRefused",
    "CallRequest",
    "cancel_task",
    "make_call",
    "release_connections",
    "release_server_connections",
]


async def make_call(request: CallRequest) -> CallOutcome:
    """Make one governed call.

    Raises `CallRefused`, `InvalidArguments`, `NotFound` (unknown tool) or the ledger's `Refusal`,
    each after recording it in the audit log. A server's failure is an outcome, not an exception.
    """
    with LogContext(call=str(request.call_id)), _trace_call(request) as span:
        return _set_span_outcome(span, await _forward_and_settle(await admit_call(request)))


async def _forward_and_settle(admitted: AdmittedCall) -> CallOutcome:
    """Forward the call and always settle it, even if the caller disconnects."""
    request, started_at, call_result = admitted.request, perf_counter(), CallResult()
    try:
        await _complete_call(request, admitted, call_result)
    except Problem as problem:
        await record_failure(request, admitted, problem, call_result)
    finally:
        call_result.duration_ms = round((perf_counter() - started_at) * 1000)
        await settle_call(request, admitted, call_result)
    if call_result.answered:
        await record_contact(admitted, call_result)
    return CallOutcome(
        call_id=request.call_id,
        outcome=call_result.outcome,
        text=call_result.result_text.text,
        result=call_result.result,
        duration_ms=call_result.duration_ms,
        code=call_result.code,
        remedy=call_result.remedy,
        cause=call_result.cause,
        cost_microusd=call_result.amounts["microusd"],
        server_name=admitted.target.facts.server_name,
        own_name=_get_requested_name(request, admitted.target),
        sanitized=call_result.result_text.sanitized,
        flagged=call_result.result_text.flagged,
        instructs=call_result.outcome == "ok" and _is_trusted_instruction(admitted.target),
        exchange_id=call_result.exchange_id,
        error=call_result.error,
    )


def _is_trusted_instruction(target: Target) -> bool:
    """Return whether the result is a trusted instruction of the organization's own people."""
    return isinstance(target, SnapshotTool) and bool(
        target.builtin and target.builtin.returns_instructions
    )


async def _complete_call(
    request: CallRequest, admitted: AdmittedCall, call_result: CallResult
) -> None:
    try:
        call_result.result = await forward_call(request, admitted, make_call)
    except CallIncomplete as incomplete:
        call_result.outcome, call_result.code = "ok", incomplete.outcome.code
        call_result.exchange_id = incomplete.outcome.exchange_id
        return
    call_result.answered = True
    call_result.exchange_id = await save_pending_call(request, admitted, call_result.result)
    result_type = str(call_result.result.get("resultType", "complete"))
    if call_result.exchange_id is not None or (request.relay and result_type != "complete"):
        call_result.outcome, call_result.code = "ok", result_type
        return
    if request.method == "completion/complete":
        call_result.result = clean_completion(call_result.result)
    call_result.result_text, call_result.result, call_result.audit_details = await inspect_result(
        request, admitted, call_result.result
    )
    is_tool_error = bool(call_result.result.get("isError"))
    call_result.outcome, call_result.code = ("error", "tool_error") if is_tool_error else ("ok", "")


def _get_requested_name(request: CallRequest, target: Target) -> str:
    """Return the tool's own name at its server; for other methods the requested name or URI."""
    return target.facts.own_name if request.method == "tools/call" else request.tool


def _trace_call(request: CallRequest) -> AbstractContextManager[Span | None]:
    """Start the span of a call; a no-op without tracing."""
    if not tracing.is_tracing():
        return tracing.NO_SPAN
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


def _set_span_outcome(span: Span | None, outcome: CallOutcome) -> CallOutcome:
    """Record the outcome on the span and return it."""
    if span is not None:
        tracing.set_span_attributes(span, bonobot__outcome=outcome.outcome)
        tracing.mark_span_failed(span, outcome.code if outcome.outcome != "ok" else "")
    return outcome
