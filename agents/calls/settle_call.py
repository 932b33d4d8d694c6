"""Settle a call: record its outcome, its cost, and server trouble behind a failure.

An admitted call is always settled.
"""

import logging
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agents.budgets.call_costs import FREE, calculate_amounts
from agents.budgets.limits import build_settlements
from agents.calls.admit import calculate_deadline_ms
from agents.calls.check_and_admit import AdmittedCall
from agents.calls.redaction import redact_result
from agents.calls.results import ResultText, clean_text
from agents.calls.types import CallRequest, OutcomeUnrecorded
from bonobot.core.db.transactions import AWAY
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.refusals import AuditUnavailable
from bonobot.ledger.types import Outcome as LedgerOutcome
from bonobot.ledger.types import Settlement
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.client.errors import UpstreamError
from mcp_servers.health.services import record_trouble
from mcp_servers.refresh_definitions import request_refresh_on_error

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CallResult:
    """The result of a call so far; until something else is known, it was canceled."""

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


async def settle_call(request: CallRequest, passed: AdmittedCall, end: CallResult) -> None:
    """Settle a call before its result is returned; sessions wait for an unreachable database.

    Raises `OutcomeUnrecorded` for other callers: the call was made and must not be repeated.
    """
    end.took = _calculate_amounts(request, passed, end)
    settlement = _build_settlement(request, passed, end)
    # The item is queued before this waits, so a canceled caller doesn't prevent the settlement.
    try:
        await get_writer().settle_async(settlement, patient=request.session_id is not None)
    except AuditUnavailable as problem:
        raise OutcomeUnrecorded(problem) from problem


async def record_failure(
    request: CallRequest, passed: AdmittedCall, problem: Problem, end: CallResult
) -> None:
    """Store a problem in the call's result and record the server trouble behind it."""
    end.sent = end.answered or (isinstance(problem, UpstreamError) and problem.sent)
    end.outcome = "unknown" if _is_outcome_unknown(problem) else "error"
    end.code, end.remedy, end.result = problem.code, problem.remedy, {}  # drops a rejected result
    end.error = _find_server_error(problem, passed.snapshot.organization_id)
    end.shown = clean_text(str(problem))
    await _note_trouble(request, passed.target.facts.server_id, problem)


def _build_settlement(request: CallRequest, passed: AdmittedCall, end: CallResult) -> Settlement:
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
    request: CallRequest, passed: AdmittedCall, end: CallResult
) -> dict[str, int]:
    """Return what the call used of its budgets; built-in tools are free."""
    server_id = passed.target.facts.server_id
    server = passed.snapshot.servers.get(server_id) if server_id else None
    return calculate_amounts(
        server.price if server else FREE,
        deadline_ms=calculate_deadline_ms(request, server),
        duration_ms=end.duration_ms,
        # Polling a task isn't charged: the call that started it was.
        sent=(end.sent and not (request.continues and request.continues.task_id)) or server is None,
        known=end.outcome != "unknown",
    )


async def _note_trouble(request: CallRequest, server_id: UUID | None, problem: Problem) -> None:
    """Record server trouble behind a failure and refresh definitions that may have changed."""
    if server_id is not None:
        try:
            await get_runtime().orm(record_trouble, server_id, problem)
        except AWAY as fault:
            logger.warning("a server's trouble could not be noted: %s", fault)
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


def _is_outcome_unknown(problem: Problem) -> bool:
    """Return whether the call was sent but it is unknown whether it ran."""
    lost = ("call_timeout", "server_unreachable", "server_crashed")
    return isinstance(problem, UpstreamError) and problem.sent and problem.code in lost
