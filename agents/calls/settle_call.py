"""Settle a call: record its outcome, its cost, and server trouble behind a failure.

An admitted call is always settled. The outcome of a call that may have run is unknown.
"""

import logging
from collections.abc import Mapping
from typing import Any, TypeGuard
from uuid import UUID

from agents.budgets.admission_queue import get_admission_queue
from agents.calls.definitions import FREE, CallPrice, ServerFacts
from agents.calls.redaction import redact_result
from agents.calls.result_text import clean_text
from agents.calls.snapshots import CallSnapshot, Target
from agents.calls.types import CallContext, CallRequest, OutcomeUnrecorded
from bonobot.core.db.transactions import UNAVAILABLE_ERRORS
from bonobot.core.i18n.messages import TranslatableMessage, format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.admission import AuditUnavailable
from bonobot.ledger.budgets import settle_reservations
from bonobot.ledger.types import Settlement
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.client.errors import UpstreamError
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.health.server_status import (
    STATUS_BY_CODE,
    record_call_contact,
    record_call_failure,
)
from mcp_servers.refresh_definitions import request_refresh_on_error

logger = logging.getLogger(__name__)

MILLISECONDS_PER_SECOND = 1000
OUTCOME_UNKNOWN_CODE = "outcome_unknown"
OUTCOME_UNKNOWN_REMEDY = format_message(
    "The call may have run, so don't repeat it before you have checked its effect."
)
PROCESS_ENDED = format_message("The process that made this call ended before the result arrived.")
UNANSWERED_CODES = (
    *("call_timeout", "server_unreachable", "server_crashed"),
    # A task that was started, and whose end isn't known.
    *("task_lost", "task_expired"),
)


def describe_unknown_outcome(cause: str) -> TranslatableMessage:
    """Return the text of a call that may have run; `cause` is a sentence."""
    return format_message(
        "It is unknown whether this call ran. {cause} The call was not repeated.", cause=cause
    )


def is_outcome_unknown(problem: Problem) -> TypeGuard[UpstreamError]:
    """Return whether the call was sent but it is unknown whether it ran."""
    if not isinstance(problem, UpstreamError) or not problem.sent:
        return False
    is_failed_server = problem.rpc_code is None and (problem.http_status or 0) >= 500
    # With a status below 500, the server refused the request.
    is_unreadable = (
        problem.code == "protocol_error" and problem.http_status is None and not problem.answered
    )
    return problem.code in UNANSWERED_CODES or is_failed_server or is_unreadable


def is_repeatable(request: CallRequest, target: Target) -> bool:
    """Return whether a second call does no more than the first one.

    Only our own label counts; everything but a tool call only reads.
    """
    return request.method != "tools/call" or FlowLabel.REPEATABLE in target.labels


def is_read_only(request: CallRequest, target: Target) -> bool:
    """Return whether a call has no effect: its approved definition says so.

    The decision about repeating a call doesn't depend on it, only how its entry is shown.
    """
    if request.method != "tools/call":
        return True
    if FlowLabel.SENDS_OUT in target.labels:
        return False
    annotations = target.declaration.get("annotations")
    return isinstance(annotations, Mapping) and annotations.get("readOnlyHint") is True


def record_cancellation(context: CallContext) -> None:
    """Store that the call was canceled; its outcome is unknown if it may have had an effect."""
    if not context.sent or is_read_only(context.request, context.target):
        context.outcome = "cancelled"


async def settle_call(context: CallContext) -> None:
    """Settle a call before its result is returned; sessions wait for an unreachable database.

    Raises `OutcomeUnrecorded` for other callers: the call was made and must not be repeated.
    """
    server, continuation = context.server, context.request.continuation
    context.amounts = calculate_amounts(
        server.price if server else FREE,  # built-in tools are free
        deadline_ms=context.deadline_ms,
        duration_ms=context.duration_ms,
        # Polling a task isn't charged: the call that started it was.
        was_sent=server is None or (context.sent and not (continuation and continuation.task_id)),
        # A server that was asked to cancel a call may continue with it.
        is_outcome_known=context.outcome not in ("unknown", "cancelled"),
    )
    result_text = context.result_text
    settlement = Settlement(
        call_id=context.request.call_id,
        organization_id=context.snapshot.organization_id,
        outcome=context.outcome,
        code=context.code,
        duration_ms=context.duration_ms,
        details={
            "execution_time_ms": context.duration_ms,
            **({"answer_wait_ms": context.answer_wait_ms} if context.answer_wait_ms else {}),
            "sanitized": result_text.build_audit_details(),
            **({"flagged": dict(result_text.flagged)} if result_text.flagged else {}),
            **context.audit_details,
        },
        actuals=settle_reservations(context.admission.reservations, context.amounts),
        cost_microusd=context.amounts["microusd"],
    )
    # The item is queued before this waits, so a canceled caller doesn't prevent the settlement.
    try:
        await get_writer().settle_call_async(
            settlement, wait_for_database=context.request.session_id is not None
        )
    except AuditUnavailable as problem:
        raise OutcomeUnrecorded(problem) from problem
    get_admission_queue().notify_settled(context.admission.reservations)


async def record_failure(context: CallContext, problem: Problem) -> None:
    """Store a problem as the call's outcome and record the server trouble behind it."""
    context.sent = context.answered or (isinstance(problem, UpstreamError) and problem.sent)
    context.outcome = "unknown" if is_outcome_unknown(problem) else "error"
    context.code, context.remedy = problem.code, problem.remedy
    context.result = {}  # drops a rejected result
    context.error = _find_server_error(problem, context.snapshot.organization_id)
    context.result_text = clean_text(str(problem))
    if is_outcome_unknown(problem) and not is_repeatable(context.request, context.target):
        _report_unknown_outcome(context, problem)
    if (server_id := context.target.facts.server_id) is not None:
        await record_server_trouble(server_id, problem)
        if context.request.method == "tools/call":
            # The definitions may have changed.
            request_refresh_on_error(server_id, problem, context.request.holder)


def _report_unknown_outcome(context: CallContext, problem: UpstreamError) -> None:
    """Report a call that must not be repeated, without output of its server."""
    context.cause = problem.summary
    context.audit_details = {"cause": problem.code}
    context.code, context.remedy = OUTCOME_UNKNOWN_CODE, OUTCOME_UNKNOWN_REMEDY
    context.result_text = clean_text(describe_unknown_outcome(problem.summary))


# Servers whose last call from this process failed.
_failed_servers: set[UUID] = set()


async def record_contact(snapshot: CallSnapshot, server: ServerFacts, duration_ms: int) -> None:
    """Record that a server answered whose last call or check had failed."""
    server_id = server.id
    # The snapshot stays as it is, so that it says it once.
    had_failed = server.has_failed and ("answered", server_id) not in snapshot.memo
    if server_id not in _failed_servers and not had_failed:
        return
    snapshot.memo["answered", server_id] = True
    _failed_servers.discard(server_id)
    try:
        await get_runtime().run_orm(record_call_contact, server_id, duration_ms)
    except UNAVAILABLE_ERRORS as fault:
        logger.warning("a server's recovery could not be noted: %s", fault)


async def record_server_trouble(server_id: UUID, problem: Problem) -> None:
    """Record that a server can't be reached or used, if that is what a problem means."""
    if problem.code in STATUS_BY_CODE:
        _failed_servers.add(server_id)
    try:
        await get_runtime().run_orm(record_call_failure, server_id, problem)
    except UNAVAILABLE_ERRORS as fault:
        logger.warning("a server's trouble could not be noted: %s", fault)


def _find_server_error(problem: Problem, organization_id: UUID) -> dict[str, Any] | None:
    """Return the server's JSON-RPC error with secrets masked, or None."""
    if not isinstance(problem, UpstreamError) or problem.rpc_code is None:
        return None
    error = {"code": problem.rpc_code, "message": problem.rpc_message}
    if problem.rpc_data is not None:
        error["data"] = problem.rpc_data
    return redact_result(error, organization_id)


def calculate_amounts(
    price: CallPrice, *, deadline_ms: int, duration_ms: int, was_sent: bool, is_outcome_known: bool
) -> dict[str, int]:
    """Return the actual amounts of a call: zero if unsent, the maximum if its outcome is unknown.

    The time is limited to the deadline, because starting a server isn't charged, so a settlement
    never exceeds the reservation.
    """
    if not was_sent:
        return {"calls": 0, "milliseconds": 0, "microusd": 0}
    billed_ms = min(duration_ms, deadline_ms) if is_outcome_known else deadline_ms
    return {"calls": 1, "milliseconds": billed_ms, "microusd": calculate_cost(price, billed_ms)}


def calculate_cost(price: CallPrice, duration_ms: int) -> int:
    """Return the cost of a call in micro-dollars, rounded up."""
    return price.per_call + -(-price.per_second * duration_ms // MILLISECONDS_PER_SECOND)
