"""`make_call`, the only way to make a governed call.

One `CallContext` goes through all steps; `docs/architecture.md` describes each. The main ones:

- `prepare_call`: which snapshot decides the call, and what its caller may do now.
- `resolve_target`: which attached server, server and definition the name means.
- `check_call_arguments`: whether the arguments match the definition's schema.
- `decide_call`: allow, deny or ask, by the policy; for *ask* `require_approval`.
- `build_admission` and `AdmissionQueue.admit_call`: write the audit entry, reserve the budgets.
  Without an audit entry there is no call.
- `forward_call`: send it to its server, or run the built-in tool.
- `inspect_result`: mask secrets, scan and truncate the text.
- `settle_call`: close the audit entry and settle the budgets. An admitted call is always settled.

Each call is an OpenTelemetry span that follows the GenAI conventions (`execute_tool`).
"""

import asyncio
from contextlib import AbstractContextManager
from time import perf_counter

from opentelemetry.trace import Span

from agents.budgets.admission_queue import AdmissionTicket, get_admission_queue
from agents.calls.admit import build_admission, choose_timeouts
from agents.calls.completions import clean_completion
from agents.calls.connections import release_connections, release_server_connections
from agents.calls.forward import forward_call
from agents.calls.inspect_result import inspect_result
from agents.calls.mcp_tasks import cancel_task
from agents.calls.pending_calls import save_pending_call
from agents.calls.prepare_call import (
    add_call_labels,
    build_rules_changing_error,
    check_call_arguments,
    decide_call,
    is_stale,
    prepare_call,
    record_refusal,
    resolve_target,
)
from agents.calls.require_approval import ApprovalRequired, require_approval
from agents.calls.root_limits import load_root_limits
from agents.calls.settle_call import (
    record_cancellation,
    record_contact,
    record_failure,
    settle_call,
)
from agents.calls.snapshots import SnapshotTool
from agents.calls.types import CallContext, CallIncomplete, CallOutcome, CallRefused, CallRequest
from agents.policies.decisions import PolicyDecision
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.telemetry import tracing
from bonobot.core.telemetry.logging import call_id as call_id_in_logs
from bonobot.core.text.canonical_json import format_uuid
from bonobot.ledger.admission import FlowNeedsApproval, Refusal, StaleSnapshot
from mcp_servers.client.deadlines import measure_answer_wait

__all__ = [
    "ApprovalRequired",
    "CallOutcome",
    "CallRefused",
    "CallRequest",
    "admit_call",
    "cancel_task",
    "make_call",
    "release_connections",
    "release_server_connections",
]

# Only constant policy changes can make a snapshot stale this often between reading and admission.
MAX_ATTEMPTS = 5


async def make_call(request: CallRequest) -> CallOutcome:
    """Make one governed call.

    Raises `CallRefused`, `InvalidArguments`, `NotFound` (unknown tool) or the ledger's `Refusal`,
    each after recording it in the audit log. A server's failure is an outcome, not an exception.
    """
    context = CallContext(request)
    log_token = call_id_in_logs.set(format_uuid(request.call_id))
    try:
        with _trace_call(request) if tracing.TracingState.tracer else tracing.NO_SPAN as span:
            await admit_call(context)
            started_at = perf_counter()
            try:
                with measure_answer_wait() as wait:
                    await _complete_call(context)
            except Problem as problem:
                await record_failure(context, problem)
            except asyncio.CancelledError:
                record_cancellation(context)
                raise
            finally:  # even if the caller disconnects
                elapsed_s = perf_counter() - started_at
                # Concurrent requests of one call can wait at the same time.
                context.answer_wait_ms = round(min(wait.seconds, elapsed_s) * 1000)
                context.duration_ms = round(elapsed_s * 1000) - context.answer_wait_ms
                await settle_call(context)
            if context.answered and context.server is not None:
                await record_contact(context.snapshot, context.server, context.duration_ms)
            if span is not None:
                tracing.set_span_attributes(span, bonobot__outcome=context.outcome)
                tracing.mark_span_failed(span, context.code if context.outcome != "ok" else "")
            return _build_outcome(context)
    finally:
        call_id_in_logs.reset(log_token)


async def admit_call(context: CallContext) -> None:
    """Resolve, check and decide a call, and admit it.

    Admission compares the policy generation of the decision with the current one, so a policy
    change applies from the next call on.

    Raises `CallRefused` (`ApprovalRequired` if a person must approve it), `InvalidArguments`,
    `NotFound` (unknown tool) or the ledger's `Refusal`, each after recording it in the audit log;
    `BadToken` if the caller's token is no longer valid.
    """
    queue, flow_decision = get_admission_queue(), None
    ticket = AdmissionTicket(choose_timeouts(context.request))
    try:
        await prepare_call(context, fresh=False)
        for _ in range(MAX_ATTEMPTS):
            try:
                await resolve_target(context)
                await check_call_arguments(context)
                decide_call(context, flow_decision)
                if isinstance(context.target, SnapshotTool) and context.target.builtin:
                    await add_call_labels(context)
                if context.decision.verdict == "ask":
                    context.grant = await get_runtime().run_orm(require_approval, context)
                if context.request.root:
                    context.root_limits = await load_root_limits(context.request.root)
                context.admission = build_admission(context)
                await queue.admit_call(ticket, context.admission)
                return
            except StaleSnapshot:
                await prepare_call(context, fresh=True)
            except FlowNeedsApproval as refusal:
                flow_decision = PolicyDecision(
                    "ask", "flow", refusal.code, str(refusal), refusal.remedy
                )
            except Problem as problem:
                if isinstance(problem, Refusal) or not await is_stale(context.snapshot):
                    await record_refusal(context, problem)
                    raise
                await prepare_call(context, fresh=True)
    finally:
        if ticket.waits_for:  # most calls never wait
            queue.close_ticket(ticket)
    rules_changing = build_rules_changing_error()
    await record_refusal(context, rules_changing)
    raise rules_changing


async def _complete_call(context: CallContext) -> None:
    """Forward an admitted call and inspect its result, or save how to continue it."""
    request = context.request
    try:
        context.result = await forward_call(context, make_call)
    except CallIncomplete as incomplete:
        context.outcome, context.code = "ok", incomplete.outcome.code
        context.pending_call_id = incomplete.outcome.pending_call_id
        return
    context.answered = True
    result_type = str(context.result.get("resultType", "complete"))
    if result_type != "complete":
        context.pending_call_id = await save_pending_call(context)
        if context.pending_call_id is not None or request.relay:
            context.outcome, context.code = "ok", result_type
            return
    if request.method == "completion/complete":
        context.result = clean_completion(context.result)
    await inspect_result(context)
    is_tool_error = bool(context.result.get("isError"))
    context.outcome, context.code = ("error", "tool_error") if is_tool_error else ("ok", "")


def _build_outcome(context: CallContext) -> CallOutcome:
    """Return the outcome of a settled call."""
    request, target, result_text = context.request, context.target, context.result_text
    builtin = target.builtin if isinstance(target, SnapshotTool) else None
    return CallOutcome(
        call_id=request.call_id,
        outcome=context.outcome,
        text=result_text.text,
        result=context.result,
        duration_ms=context.duration_ms,
        code=context.code,
        remedy=context.remedy,
        cause=context.cause,
        cost_microusd=context.amounts["microusd"],
        server_name=target.facts.server_name,
        own_name=target.facts.own_name if request.method == "tools/call" else request.tool,
        sanitized=result_text.sanitized,
        flagged=result_text.flagged,
        # The result is a trusted instruction of the organization's own people.
        instructs=context.outcome == "ok" and builtin is not None and builtin.returns_instructions,
        pending_call_id=context.pending_call_id,
        error=context.error,
        result_size=context.result_size,
        is_visible=context.is_visible,
    )


def _trace_call(request: CallRequest) -> AbstractContextManager[Span | None]:
    """Start the span of a call."""
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
