"""The agent loop and its limits.

All state of the loop is in the database, so another runner can take over at any point; `recovery`
handles calls that a dead runner had started. A process that is stopping waits for running calls
and then hands the session over.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from agents.approvals.services import withdraw_approvals
from agents.attachments import build_model_messages
from agents.calls import pipeline
from agents.calls.snapshots import CallSnapshot, get_snapshot_cache
from agents.elicitations import services as elicitations
from agents.llm import interface as llm_interface
from agents.models import Agent, Session, Step
from agents.sessions import step_store
from agents.sessions.child_sessions import end_children
from agents.sessions.context_window import compact_after_overflow, compact_history
from agents.sessions.history import SessionHistory, load_history
from agents.sessions.leases import LeaseLost, SessionLease, release_session
from agents.sessions.recovery import close_all, recover
from agents.sessions.run_context import (
    DISCONNECTED,
    RunContext,
    compare_servers,
    list_connected_servers,
    load_run_context,
)
from agents.sessions.system_prompt import build_instructions, build_tool_specs
from agents.sessions.tool_calls import (
    SessionCaller,
    SessionHandedOff,
    SessionSuspended,
    build_holder_key,
    make_calls,
)
from agents.sessions.turns import SessionTurn
from bonobot.core.db.transactions import get_transaction_batcher
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.refusals import AuditUnavailable
from mcp_servers.refresh_definitions import get_refresher


class RunLimitExceeded(Problem):
    """A run reached one of its limits: turns, calls or time per message."""

    code = "turns_exhausted"
    status = 422


def check_turn_limit(agent: Agent, past: SessionHistory) -> None:
    """Raise `RunLimitExceeded` if the model has no turns left."""
    if past.turns_since_message >= agent.max_turns:
        raise RunLimitExceeded(
            format_message(
                "The model took {turns_since_message} turns without an answer.",
                turns_since_message=past.turns_since_message,
            ),
            code="turns_exhausted",
            remedy="Ask for less at once, or raise the agent's turns per message.",
        )


def check_call_limit(agent: Agent, past: SessionHistory, more: int) -> None:
    """Raise `RunLimitExceeded` if the model requests more calls than it has left."""
    if past.calls_since_message + more > agent.max_calls:
        raise RunLimitExceeded(
            format_message(
                "The model asked for more than {max_calls} calls.", max_calls=agent.max_calls
            ),
            code="calls_exhausted",
            remedy="Ask for less at once, or raise the agent's calls per message.",
        )


logger = logging.getLogger(__name__)

MakeCalls = Callable[[Sequence[Step]], Awaitable[None]]
WorkflowExecutor = Callable[[SessionLease, MakeCalls], Awaitable[str]]
_WORKFLOW_EXECUTORS: list[WorkflowExecutor] = []


def register_workflow_executor(execute: WorkflowExecutor) -> None:
    """Register the function that executes a session's workflow, replacing an earlier one."""
    _WORKFLOW_EXECUTORS[:] = [execute]


async def run(hold: SessionLease) -> None:
    """Run a leased session until it rests; the outcome is in the database."""
    orm = get_runtime().orm
    try:
        setting = await get_transaction_batcher().do(load_run_context, hold)
        if setting is None:
            await cancel(hold)
            return
        found = await recover(hold, setting.agent.pk)
        await _append_notices(hold, setting)
        async with asyncio.timeout(setting.max_run_s):
            await make_calls(_build_caller(hold, setting), found.calls)
            if found.waits:
                raise SessionSuspended
            answer = await _execute_session(hold, setting)
        end = None if answer is None else {"answer": answer}
        await get_transaction_batcher().do(step_store.close, hold, Session.Status.DONE, end=end)
    except LeaseLost:
        logger.warning("session %s is held by another runner now", hold.session_id)
    except SessionSuspended:
        await _suspend_session(hold)
    except SessionHandedOff:
        await orm(release_session, hold)
    except TimeoutError:
        await fail(
            hold, RunLimitExceeded("The time for one message is over.", code="time_exhausted")
        )
    except AuditUnavailable:
        raise  # temporary, like an unavailable database
    except Problem as problem:
        await fail(hold, problem)
    finally:
        await asyncio.shield(pipeline.release(build_holder_key(hold)))


async def _suspend_session(hold: SessionLease) -> None:
    """Suspend the session until a person answers, which queues it again."""
    try:
        await get_runtime().orm(step_store.suspend_session, hold)
    except LeaseLost:
        logger.warning("session %s was lost before it could wait", hold.session_id)


async def cancel(hold: SessionLease) -> None:
    """Record that the run was canceled, and why; close pending steps."""
    orm = get_runtime().orm
    try:
        await close_all(hold)
        why = await orm(step_store.take_cancels, hold)
        await orm(end_children, hold.session_id, why or "The session that began it was cancelled.")
        await orm(withdraw_approvals, hold.session_id)
        await orm(elicitations.withdraw_requests, hold.session_id)
        said = {"detail": why} if why else {}
        end = {"code": "cancelled", **said}
        await orm(
            step_store.close, hold, Session.Status.CANCELLED, end=end, code="cancelled", detail=why
        )
    except LeaseLost:
        logger.warning("session %s was lost before it could be cancelled", hold.session_id)


async def fail(hold: SessionLease, problem: Problem) -> None:
    """Record why the run failed; close pending steps."""
    orm = get_runtime().orm
    try:
        await close_all(hold)
        await orm(end_children, hold.session_id, "The session that began it failed.")
        await orm(withdraw_approvals, hold.session_id)
        await orm(elicitations.withdraw_requests, hold.session_id)
        detail = f"{problem} {problem.remedy}".strip()
        close = partial(step_store.close, end=problem.as_dict(), code=problem.code, detail=detail)
        await orm(close, hold, Session.Status.FAILED)
    except LeaseLost:
        logger.warning("session %s was lost before it could be closed", hold.session_id)


async def _append_notices(hold: SessionLease, setting: RunContext) -> None:
    for name in setting.unavailable:
        logger.warning("session %s: server %s is not reachable", hold.session_id, name)
        await get_runtime().orm(
            step_store.append,
            hold,
            Step.Kind.NOTICE,
            {"code": "server_unreachable", "text": f"The server {name} is not reachable now."},
        )
    if setting.lack:
        text = f"The agent has no tools now. {setting.lack}"
        payload = {"code": "no_tools", "why": setting.lack.code, "text": text}
        await get_runtime().orm(step_store.append, hold, Step.Kind.NOTICE, payload)


async def _execute_session(hold: SessionLease, setting: RunContext) -> str | None:
    """Execute the workflow, or run model turns; return the answer."""
    if setting.follows:
        (execute,) = _WORKFLOW_EXECUTORS
        return await execute(hold, partial(make_calls, _build_caller(hold, setting)))
    return await _run_turns(hold, setting)


async def _run_turns(hold: SessionLease, setting: RunContext) -> str | None:
    """Run turns until the model answers without calls; None if there are no messages."""
    do = get_transaction_batcher().do
    past, snapshot = await do(_load_state_with_messages, hold, setting)
    while past.messages:
        check_turn_limit(setting.agent, past)
        past = await compact_history(hold, setting, past, snapshot)
        try:
            reply, begun = await _take(hold, setting, past, snapshot)
        except llm_interface.ModelError as problem:
            past, snapshot = await do(_load_state, hold, setting, past)
            if await compact_after_overflow(hold, setting, past, snapshot):
                past, snapshot = await do(_load_state, hold, setting, past)
            else:
                await _wait_for_next_request(hold, setting, problem, past)
        else:
            if reply.calls:
                await make_calls(_build_caller(hold, setting), begun)
            elif not await do(step_store.take_messages, hold):
                return reply.text
            # Apply servers' change notifications before the next turn.
            await get_refresher().caught_up(build_holder_key(hold))
            past, snapshot = await do(_load_state, hold, setting, past)
    return None


def _load_state_with_messages(
    hold: SessionLease, setting: RunContext
) -> tuple[SessionHistory, CallSnapshot]:
    step_store.take_messages(hold)
    return _load_state(hold, setting)


def _load_state(
    hold: SessionLease, setting: RunContext, past: SessionHistory | None = None
) -> tuple[SessionHistory, CallSnapshot]:
    """Load the history since `history`, and the current snapshot."""
    known = past.settled if past else ()
    return load_history(hold.session_id, known), get_snapshot_cache().current(
        "agent", setting.agent.pk
    )


async def _take(
    hold: SessionLease, setting: RunContext, past: SessionHistory, snapshot: CallSnapshot
) -> tuple[llm_interface.ModelReply, list[Step]]:
    """Run one model turn with the current snapshot."""
    news = await _report_server_changes(hold, past, snapshot)
    endpoint = setting.endpoint(past)
    turn = SessionTurn(
        hold, setting.principal, snapshot, endpoint, last=past.last_turn, root=setting.root
    )
    orm, owner = get_runtime().orm, setting.session.organization_id
    messages: Sequence[llm_interface.Message] = past.messages
    if any("images" in one or "files" in one for one in messages):
        messages = await orm(build_model_messages, owner, messages, sees=endpoint.sees_images)
    tools = snapshot.shown(past.found)
    reply, begun = await turn.take(
        llm_interface.build_model(endpoint),
        messages,
        number=past.turn + 1,
        instructions=build_instructions(
            setting.agent.instructions, snapshot, setting.unavailable, news, tools
        ),
        tools=build_tool_specs(tools),
        allowed=lambda reply: check_call_limit(setting.agent, past, len(reply.calls)),
    )
    if reply.finish == "length":
        await orm(step_store.append, hold, Step.Kind.NOTICE, _cut(turn.max_tokens))
    return reply, begun


async def _wait_for_next_request(
    hold: SessionLease, setting: RunContext, problem: llm_interface.ModelError, past: SessionHistory
) -> None:
    """Append a notice on the next request and wait for it; raise `problem` if none is left."""
    orm = get_runtime().orm
    asked = setting.next(past)
    if asked is None:
        raise problem
    said = str(problem)
    if asked.fell_over:
        code = "model_fallback"
        text = f"{said} The model {asked.endpoint.title!r} is asked instead."
    else:
        code = "model_retry"
        text = f"{said} It is asked again in {asked.wait_s:.1f} s (try {asked.attempt})."
    payload = {"code": code, "text": text, "wait_s": round(asked.wait_s, 3)}
    await orm(step_store.append, hold, Step.Kind.NOTICE, payload)
    await asyncio.sleep(asked.wait_s)


async def _report_server_changes(
    hold: SessionLease, past: SessionHistory, snapshot: CallSnapshot
) -> list[str]:
    """Append notices on servers that were connected or disconnected; return their texts."""
    found = compare_servers(past.servers, list_connected_servers(snapshot))
    for one in found:
        if one.code == DISCONNECTED:
            await pipeline.disconnect(build_holder_key(hold), one.server_id)
        await get_runtime().orm(step_store.append, hold, Step.Kind.NOTICE, one.as_payload())
    return [one.text for one in found]


def _cut(max_tokens: int | None) -> dict[str, str]:
    """Return the notice on an answer that was cut off."""
    where = f"at {max_tokens:,} tokens" if max_tokens else "where the model's own limit is"
    return {
        "code": "answer_cut",
        "text": f"The answer was cut off {where}. The model endpoint says how long answers may be, "
        "and what is left of a budget may allow less.",
    }


def _build_caller(hold: SessionLease, setting: RunContext) -> SessionCaller:
    return SessionCaller(hold, setting.session, setting.principal, setting.host, setting.root)
