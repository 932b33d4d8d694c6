"""Settle a call: record its outcome, its cost, and server trouble behind a failure.

An admitted call is always settled.
"""

import logging
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agents.budgets.admission_queue import notify_settled
from agents.budgets.call_costs import FREE, calculate_amounts
from agents.budgets.limits import build_settlements
from agents.calls.admit import calculate_deadline_ms
from agents.calls.check_and_admit import AdmittedCall
from agents.calls.redaction import redact_result
from agents.calls.results import ResultText, clean_text
from agents.calls.types import CallRequest, OutcomeUnrecorded
from agents.calls.unknown_outcomes import (
    OUTCOME_UNKNOWN_CODE,
    OUTCOME_UNKNOWN_REMEDY,
    describe_unknown_outcome,
    is_outcome_unknown,
    is_repeatable,
)
from bonobot.core.db.transactions import UNAVAILABLE_ERRORS
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.refusals import AuditUnavailable
from bonobot.ledger.types import Outcome as LedgerOutcome
from bonobot.ledger.types import Settlement
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.client.errors import UpstreamError
from mcp_servers.health.services import (
    STATUS_BY_CODE,
    record_call_contact,
    record_call_failure,
)
from mcp_servers.refresh_definitions import request_refresh_on_error

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CallResult:
    """The result of a call so far; until something else is known, it was canceled."""

    outcome: LedgerOutcome = "unknown"
    code: str = "cancelled"
    result_text: ResultText = field(default_factory=lambda: ResultText(""))
    result: dict[str, Any] = field(default_factory=dict)
    audit_details: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""
    cause: str = ""
    sent: bool = True
    answered: bool = False
    duration_ms: int = 0
    exchange_id: UUID | None = None
    error: dict[str, Any] | None = None
    amounts: dict[str, int] = field(default_factory=dict)


async def settle_call(
    request: CallRequest, admitted: AdmittedCall, call_result: CallResult
) -> None:
    """Settle a call before its result is returned; sessions wait for an unreachable database.

    Raises `OutcomeUnrecorded` for other callers: the call was made and must not be repeated.
    """
    call_result.amounts = _calculate_amounts(request, admitted, call_result)
    settlement = _build_settlement(request, admitted, call_result)
    # The item is queued before this waits, so a canceled caller doesn't prevent the settlement.
    try:
        await get_writer().settle_call_async(
            settlement, wait_for_database=request.session_id is not None
        )
    except AuditUnavailable as problem:
        raise OutcomeUnrecorded(problem) from problem
    notify_settled(admitted.admission.reservations)


async def record_failure(
    request: CallRequest, admitted: AdmittedCall, problem: Problem, call_result: CallResult
) -> None:
    """Store a problem in the call's result and record the server trouble behind it."""
    call_result.sent = call_result.answered or (isinstance(problem, UpstreamError) and problem.sent)
    call_result.outcome = "unknown" if is_outcome_unknown(problem) else "error"
    call_result.code, call_result.remedy, call_result.result = (
        problem.code,
        problem.remedy,
        {},
    )  # drops a rejected result
    call_result.error = _find_server_error(problem, admitted.snapshot.organization_id)
    call_result.result_text = clean_text(str(problem))
    if is_outcome_unknown(problem) and not is_repeatable(request, admitted.target):
        _report_unknown_outcome(problem, call_result)
    await _record_server_trouble(request, admitted.target.facts.server_id, problem)


def _report_unknown_outcome(problem: UpstreamError, call_result: CallResult) -> None:
    """Report a call that must not be repeated, without output of its server."""
    call_result.cause = problem.summary
    call_result.audit_details = {"cause": problem.code}
    call_result.code, call_result.remedy = OUTCOME_UNKNOWN_CODE, OUTCOME_UNKNOWN_REMEDY
    call_result.result_text = clean_text(describe_unknown_outcome(problem.summary))


def _build_settlement(
    request: CallRequest, admitted: AdmittedCall, call_result: CallResult
) -> Settlement:
    result_text = call_result.result_text
    return Settlement(
        call_id=request.call_id,
        organization_id=admitted.snapshot.organization_id,
        outcome=call_result.outcome,
        code=call_result.code,
        duration_ms=call_result.duration_ms,
        details={
            "execution_time_ms": call_result.duration_ms,
            "sanitized": result_text.build_audit_details(),
            **({"flagged": dict(result_text.flagged)} if result_text.flagged else {}),
            **call_result.audit_details,
        },
        actuals=build_settlements(admitted.admission.reservations, call_result.amounts),
        cost_microusd=call_result.amounts["microusd"],
    )


def _calculate_amounts(
    request: CallRequest, admitted: AdmittedCall, call_result: CallResult
) -> dict[str, int]:
    """Return what the call used of its budgets; built-in tools are free."""
    server_id = admitted.target.facts.server_id
    server = admitted.snapshot.servers.get(server_id) if server_id else None
    return calculate_amounts(
        server.price if server else FREE,
        deadline_ms=calculate_deadline_ms(request, server),
        duration_ms=call_result.duration_ms,
        # Polling a task isn't charged: the call that started it was.
        was_sent=(call_result.sent and not (request.continuation and request.continuation.task_id))
        or server is None,
        is_outcome_known=call_result.outcome != "unknown",
    )


# Servers whose last call from this process failed.
_failed_servers: set[UUID] = set()


async def record_contact(admitted: AdmittedCall, call_result: CallResult) -> None:
    """Record that a server answered whose last call or check had failed."""
    server_id, snapshot = admitted.target.facts.server_id, admitted.snapshot
    server = snapshot.servers.get(server_id) if server_id else None
    if server is None or server_id is None:
        return
    # The snapshot stays as it is, so that it says it once.
    had_failed = server.has_failed and ("answered", server_id) not in snapshot.memo
    if server_id not in _failed_servers and not had_failed:
        return
    snapshot.memo["answered", server_id] = True
    _failed_servers.discard(server_id)
    try:
        await get_runtime().run_orm(record_call_contact, server_id, call_result.duration_ms)
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


async def _record_server_trouble(
    request: CallRequest, server_id: UUID | None, problem: Problem
) -> None:
    """Record server trouble behind a failure and refresh definitions that may have changed."""
    if server_id is not None:
        await record_server_trouble(server_id, problem)
        if request.method == "tools/call":
            request_refresh_on_error(server_id, problem, request.holder)


def _find_server_error(problem: Problem, organization_id: UUID) -> dict[str, Any] | None:
    """Return the server's JSON-RPC error with secrets masked, or None."""
    if not isinstance(problem, UpstreamError) or problem.rpc_code is None:
        return None
    error = {"code": problem.rpc_code, "message": problem.rpc_message}
    if problem.rpc_data is not None:
        error["data"] = problem.rpc_data
    return redact_result(error, organization_id)
