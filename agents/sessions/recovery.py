"""Recover the unsettled steps that a dead runner left.

A call without an audit entry was never sent and is made now. A call that was sent, but whose answer
is lost, is repeated only if it is labeled idempotent. Otherwise, if the audit log has its outcome,
the model gets an error that the answer was lost. If not, a person decides, and the session is
suspended.
"""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from agents.calls.redaction import ensure_masker_loaded
from agents.calls.settle_call import OUTCOME_UNKNOWN_CODE
from agents.calls.snapshots import SnapshotTool, get_snapshot_cache
from agents.elicitations.services import withdraw_live_requests
from agents.models import Step
from agents.sessions import step_store
from agents.sessions.history import load_history
from agents.sessions.leases import SessionLease
from agents.sessions.sampling import withdraw_live_approvals
from agents.sessions.tool_calls import (
    ask_person,
    cancel_pending_call,
    get_unknown_text,
    resume_interrupted_call,
)
from bonobot.core.i18n.messages import format_message
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.abandoned_calls import settle_session_calls
from bonobot.ledger.models import AuditRow
from mcp_servers.flow_labels import FlowLabel

LOST_CODE = "answer_lost"
LOST_TEXT = (
    "This call ran, but its result was lost because the process ended. The call was not repeated."
)
NOT_MADE_TEXT = "This call was not made because the run ended first."
CANCELED_TEXT = format_message("This call was canceled. It only reads, so it changed nothing.")
UNFINISHED_TEXT = (
    "This call was not completed: the run ended while the server was still working or waiting."
)
CUT_OFF_TEXT = format_message("The run ended before the answer was complete.")
TURN_LOST_TEXT = format_message(
    "The process ended before the model answered, so the request was repeated."
)

Verdict = Literal["make", "again", "ask", "lost", "unknown"]


@dataclass(frozen=True)
class RecoveredCalls:
    """The calls to make now, and whether others wait for a person."""

    calls: tuple[Step, ...] = ()
    waits_for_person: bool = False


def decide_recovery(row: AuditRow | None, tool: SnapshotTool | None) -> Verdict:
    """Decide how to handle an unsettled call. Pure."""
    if row is None:
        return "make"
    if row.decision != AuditRow.Decision.ALLOW or (tool and FlowLabel.REPEATABLE in tool.labels):
        return "again"
    if row.outcome in (AuditRow.Outcome.OK, AuditRow.Outcome.ERROR):
        return "lost"
    return "ask" if tool else "unknown"


async def recover_calls(lease: SessionLease, agent_id: UUID) -> RecoveredCalls:
    """Settle what a dead runner left; return the calls to make now.

    Sent requests are settled at their full reservation, which they may have cost.
    """
    if lease.is_first:
        return RecoveredCalls()
    orm = get_runtime().run_orm
    await orm(settle_session_calls, lease.session_id)
    await orm(withdraw_live_requests, lease.session_id)
    await orm(withdraw_live_approvals, lease.session_id)
    pending = (await orm(load_history, lease.session_id)).pending_steps
    if not pending:
        return RecoveredCalls()
    snapshot = await orm(get_snapshot_cache().load_current, "agent", agent_id)
    await ensure_masker_loaded(snapshot)
    calls, waits_for_person = [], False
    for step in pending:
        if step.kind != Step.Kind.CALL:
            await _close_step(lease, step)
            continue
        if await resume_interrupted_call(lease, step):
            calls.append(step)
            continue
        tool = snapshot.find_tool(step.payload["name"])
        verdict = decide_recovery(await orm(_find_audit_row, step), tool)
        if verdict == "ask" and tool is not None:
            verdict = await orm(ask_person, lease, step, tool)
        if verdict == "again":
            await orm(step_store.replace_call_id, lease, step)
        if verdict in ("make", "again"):
            calls.append(step)
        elif verdict == "ask":
            waits_for_person = True
        else:
            await _close_step(lease, step, lost=verdict == "lost")
    return RecoveredCalls(tuple(calls), waits_for_person)


async def close_pending_steps(lease: SessionLease) -> None:
    """Close all pending steps at the end of a run, without making calls or asking a person."""
    orm = get_runtime().run_orm
    await orm(settle_session_calls, lease.session_id)
    for step in (await orm(load_history, lease.session_id)).pending_steps:
        if step.kind != Step.Kind.CALL:
            payload = {**step.payload, "code": "cut_off", "detail": CUT_OFF_TEXT}
            await orm(step_store.finish_step, lease, step, Step.State.FAILED, payload)
        elif await cancel_pending_call(lease, step):
            payload = {**step.payload, "text": UNFINISHED_TEXT, "code": "unfinished"}
            await orm(step_store.finish_step, lease, step, Step.State.FAILED, payload)
        elif (row := await orm(_find_audit_row, step)) is None:
            payload = {**step.payload, "text": NOT_MADE_TEXT, "code": "not_made"}
            await orm(step_store.finish_step, lease, step, Step.State.FAILED, payload)
        elif row.outcome == AuditRow.Outcome.CANCELLED:
            payload = {**step.payload, "text": CANCELED_TEXT, "code": "cancelled"}
            await orm(step_store.finish_step, lease, step, Step.State.FAILED, payload)
        else:
            await _close_step(lease, step)


async def _close_step(lease: SessionLease, step: Step, *, lost: bool = False) -> None:
    """Close a step without an outcome; `lost`: it ran, but its answer is lost."""
    orm = get_runtime().run_orm
    if step.kind != Step.Kind.CALL:
        payload = {**step.payload, "code": "interrupted", "detail": TURN_LOST_TEXT}
        await orm(step_store.finish_step, lease, step, Step.State.FAILED, payload)
        return
    text, code = (LOST_TEXT, LOST_CODE) if lost else (get_unknown_text(step), OUTCOME_UNKNOWN_CODE)
    if comment := step.payload.get("word"):
        text = f"{text} Message from a person: {comment}"
    payload = {**step.payload, "text": text, "code": code}
    await orm(step_store.finish_step, lease, step, Step.State.UNKNOWN, payload)


def _find_audit_row(step: Step) -> AuditRow | None:
    """Return the audit row of a call; None if it was never admitted."""
    return AuditRow.objects.filter(pk=step.call_id).first() if step.call_id else None
