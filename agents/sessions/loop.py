"""The agent loop and its limits.

All state of the loop is in the database, so another runner can take over at any point; `recovery`
handles calls that a dead runner had started. A process that is stopping waits for running calls
and then hands the session over.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import CharField, DateTimeField, TextField
from django.utils import timezone

from agents.approvals.ended_requests import Cancellation
from agents.approvals.services import SESSION_CANCELED, SYSTEM, withdraw_approvals
from agents.attachments import build_model_messages
from agents.calls import pending_calls, pipeline
from agents.calls.snapshots import CallSnapshot, get_snapshot_cache
from agents.elicitations import services as elicitations
from agents.llm import interface as llm_interface
from agents.models import Agent, Approval, Session, Step
from agents.sessions import step_store
from agents.sessions.answer_notices import build_answer_notice
from agents.sessions.child_sessions import cancel_children
from agents.sessions.compaction import compact_after_overflow, compact_history
from agents.sessions.connect_servers import (
    DISCONNECTED,
    NO_RESPONSE,
    RunConnections,
    UnavailableServer,
    compare_servers,
    list_connected_servers,
)
from agents.sessions.extension_points import workflow_executor
from agents.sessions.history import SessionHistory, load_history
from agents.sessions.leases import (
    LeaseLost,
    SessionLease,
    release_session,
    select_fenced_session,
)
from agents.sessions.output_schemas import check_final_answer
from agents.sessions.recovery import close_pending_steps, recover_calls
from agents.sessions.run_context import RunContext, load_run_context
from agents.sessions.step_store import build_step, insert_steps, update_leased_session
from agents.sessions.system_prompt import build_instructions, build_tool_specs
from agents.sessions.tool_calls import (
    SessionCaller,
    SessionHandedOff,
    SessionSuspended,
    build_holder_key,
    make_calls,
)
from agents.sessions.turns import CompletedTurn, SessionTurn
from agents.wakeups import wake_parent
from bonobot.core.db.prepared_queries import PreparedUpdate, QueryParameter
from bonobot.core.db.transactions import get_transaction_batcher
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.admission import AuditUnavailable
from mcp_servers.refresh_definitions import get_refresher

logger = logging.getLogger(__name__)


class RunLimitExceeded(Problem):
    """A run reached one of its limits: turns, calls or time per message."""

    code = "turns_exhausted"
    status = 422


def check_turn_limit(agent: Agent, history: SessionHistory) -> None:
    """Raise `RunLimitExceeded` if the model has no turns left."""
    if history.turns_since_message >= agent.max_turns:
        raise RunLimitExceeded(
            format_message(
                "The model took {turns} turns without an answer.",
                turns=history.turns_since_message,
            ),
            code="turns_exhausted",
            remedy="Ask for less at once, or raise the agent's turns per message.",
        )


def check_call_limit(agent: Agent, history: SessionHistory, new_calls: int) -> None:
    """Raise `RunLimitExceeded` if the model requests more calls than it has left."""
    if history.calls_since_message + new_calls > agent.max_calls:
        raise RunLimitExceeded(
            format_message(
                "The model requested more than {max_calls} calls.", max_calls=agent.max_calls
            ),
            code="calls_exhausted",
            remedy="Ask for less at once, or raise the agent's calls per message.",
        )


async def run_session(lease: SessionLease) -> None:
    """Run a leased session until it ends, is suspended or is handed off.

    The outcome is in the database. Raises `SessionStopped` if a person asked to cancel the run.
    """
    orm, in_transaction = get_runtime().run_orm, get_transaction_batcher().run
    time_limit = asyncio.timeout(None)
    connections, keep_sessions = RunConnections(lease), False
    try:
        context = await in_transaction(load_run_context, lease)
        if context is None:
            lease.state.is_canceled = True  # a signal must not interrupt the recording
            await cancel_run(lease)
            return
        recovered = await recover_calls(lease, context.agent.pk)
        context = await connections.open(context)
        await _append_notices(lease, context)
        time_limit = asyncio.timeout(context.max_run_s)
        async with time_limit:
            await _make_recovered_calls(lease, context, recovered.calls)
            if recovered.waits_for_person:
                raise SessionSuspended
            end = await _execute_session(lease, context)
        await in_transaction(close_session, lease, Session.Status.DONE, end=end)
        keep_sessions = True
    except LeaseLost:
        logger.warning("session %s is held by another runner now", lease.session_id)
    except SessionSuspended:
        await _suspend_run(lease)
        keep_sessions = True
    except SessionHandedOff:
        await orm(release_session, lease)
    except asyncio.CancelledError:
        await _release_if_stopping(lease)
        raise
    except TimeoutError as error:
        await _fail_overdue_run(lease, time_limit, error)
    except AuditUnavailable:
        raise  # temporary, like an unavailable database
    except Problem as problem:
        await fail_run(lease, problem)
    finally:
        await asyncio.shield(connections.close(keep_sessions=keep_sessions))


async def _make_recovered_calls(
    lease: SessionLease, context: RunContext, calls: Sequence[Step]
) -> None:
    """Make the calls of an earlier run, unless a person asked to cancel the session."""
    if calls:
        await get_transaction_batcher().run(step_store.check_not_stopped, lease)
    await make_calls(_build_caller(lease, context), calls)


async def _release_if_stopping(lease: SessionLease) -> None:
    """Release the session before its connections close, which may take seconds.

    A run that a person canceled isn't released: its end is still to be recorded.
    """
    if lease.state.is_stopping and not lease.state.is_canceled:
        await get_runtime().run_orm(release_session, lease)


async def _fail_overdue_run(
    lease: SessionLease, time_limit: asyncio.Timeout, error: TimeoutError
) -> None:
    """Record that the run exceeded its time limit; raise the error of a database or a socket."""
    if not time_limit.expired():
        raise error
    await fail_run(
        lease,
        RunLimitExceeded("The time limit for one message was exceeded.", code="time_exhausted"),
    )


async def _suspend_run(lease: SessionLease) -> None:
    """Suspend the session until a person answers, which queues it again."""
    try:
        await get_runtime().run_orm(suspend_session, lease)
    except LeaseLost:
        logger.warning("session %s was lost before it could wait", lease.session_id)


async def cancel_run(lease: SessionLease) -> None:
    """Record that the run was canceled, and why; close pending steps."""
    orm = get_runtime().run_orm
    try:
        await close_pending_steps(lease)
        reason = await orm(step_store.take_cancel_requests, lease)
        await orm(
            cancel_children, lease.session_id, reason or "The session that started it was canceled."
        )
        cancellation = Cancellation(SYSTEM, reason or SESSION_CANCELED)
        await orm(withdraw_approvals, lease.session_id, cancellation=cancellation)
        await orm(elicitations.withdraw_requests, lease.session_id)
        details = {"detail": reason} if reason else {}
        end = {"code": "cancelled", **details}
        await orm(
            close_session,
            lease,
            Session.Status.CANCELLED,
            end=end,
            code="cancelled",
            detail=reason,
        )
    except LeaseLost:
        logger.warning("session %s was lost before it could be cancelled", lease.session_id)


async def fail_run(lease: SessionLease, problem: Problem) -> None:
    """Record why the run failed; close pending steps."""
    orm = get_runtime().run_orm
    try:
        await close_pending_steps(lease)
        await orm(cancel_children, lease.session_id, "The session that started it failed.")
        await orm(
            withdraw_approvals,
            lease.session_id,
            cancellation=Cancellation(SYSTEM, "The session failed."),
        )
        await orm(elicitations.withdraw_requests, lease.session_id)
        detail = f"{problem} {problem.remedy}".strip()
        close = partial(close_session, end=problem.as_dict(), code=problem.code, detail=detail)
        await orm(close, lease, Session.Status.FAILED)
    except LeaseLost:
        logger.warning("session %s was lost before it could be closed", lease.session_id)


def _describe_unavailable_server(server: UnavailableServer) -> str:
    if server.reason == NO_RESPONSE:
        return format_message(
            "The server {name} didn't respond within {seconds} s. Calls to it may fail.",
            name=server.name,
            seconds=settings.BONOBOT_SESSION_CONNECT_S,
        )
    return format_message("The server {name} is not reachable now.", name=server.name)


async def _append_notices(lease: SessionLease, context: RunContext) -> None:
    for server in context.unavailable_servers:
        logger.warning("session %s: server %s is not reachable", lease.session_id, server)
        payload = {
            "code": "server_unreachable",
            "why": server.reason,
            "text": _describe_unavailable_server(server),
        }
        await get_runtime().run_orm(step_store.append_step, lease, Step.Kind.NOTICE, payload)
    if context.no_tools_reason:
        reason = context.no_tools_reason
        text = f"{format_message('The agent has no tools now.')} {reason}"
        no_tools = {"code": "no_tools", "why": reason.code, "text": text}
        await get_runtime().run_orm(step_store.append_notice_once, lease, no_tools)


async def _execute_session(lease: SessionLease, context: RunContext) -> dict[str, Any] | None:
    """Execute the workflow, or run model turns; return the payload of the end step."""
    if context.follows_workflow:
        execute = workflow_executor.get()
        answer = await execute(lease, partial(make_calls, _build_caller(lease, context)))
        return None if answer is None else {"answer": answer}
    return await _run_turns(lease, context)


async def _run_turns(lease: SessionLease, context: RunContext) -> dict[str, Any] | None:
    """Run turns until the model answers without calls; return the payload of the end step.

    None if there are no messages. Raises `OutputSchemaViolation`.
    """
    in_transaction = get_transaction_batcher().run
    history, snapshot = await in_transaction(_load_state_with_messages, lease, context)
    while history.messages:
        check_turn_limit(context.agent, history)
        history = await compact_history(lease, context, history, snapshot)
        try:
            turn = await _take_turn(lease, context, history, snapshot)
        except llm_interface.ModelError as problem:
            history, snapshot = await in_transaction(_load_state, lease, context, history)
            if not await compact_after_overflow(lease, context, history, snapshot):
                await _wait_for_next_request(lease, context, problem, history)
        else:
            if turn.reply.calls:
                await make_calls(_build_caller(lease, context), turn.call_steps)
            elif not turn.has_new_messages:
                # For later messages, the session is queued again when it is closed.
                output, correction = await check_final_answer(
                    context.get_output_schema(history), turn.reply.text, history.rejected_count
                )
                if correction is None:
                    return {"answer": turn.reply.text, **output}
                await in_transaction(step_store.append_step, lease, Step.Kind.NOTICE, correction)
            # Apply servers' change notifications before the next turn.
            await get_refresher().wait_until_refreshed(build_holder_key(lease))
        # A person's new messages are part of the next turn.
        history, snapshot = await in_transaction(_load_state_with_messages, lease, context, history)
    return None


def _load_state_with_messages(
    lease: SessionLease, context: RunContext, history: SessionHistory | None = None
) -> tuple[SessionHistory, CallSnapshot]:
    """Move new messages into the history, then load it. Raises `SessionStopped`."""
    step_store.take_messages(lease)
    return _load_state(lease, context, history)


def _load_state(
    lease: SessionLease, context: RunContext, history: SessionHistory | None = None
) -> tuple[SessionHistory, CallSnapshot]:
    """Load the history since `history`, and the current snapshot."""
    settled_steps = history.settled_steps if history else ()
    return load_history(lease.session_id, settled_steps), get_snapshot_cache().load_current(
        "agent", context.agent.pk
    )


async def _take_turn(
    lease: SessionLease, context: RunContext, history: SessionHistory, snapshot: CallSnapshot
) -> CompletedTurn:
    """Run one model turn with the current snapshot."""
    server_changes = await _report_server_changes(lease, history, snapshot)
    endpoint = context.choose_endpoint(history)
    turn = SessionTurn(
        lease, context.principal, snapshot, endpoint, last_turn=history.last_turn, root=context.root
    )
    orm, organization_id = get_runtime().run_orm, context.session.organization_id
    messages: Sequence[llm_interface.Message] = history.messages
    if any("images" in message or "files" in message for message in messages):
        messages = await orm(
            build_model_messages,
            organization_id,
            messages,
            image_input=endpoint.image_input,
            pdf_input=endpoint.pdf_input,
        )
    tools = snapshot.list_shown_tools(history.found_tools)
    output_schema = context.get_output_schema(history)
    completed_turn = await turn.run(
        llm_interface.build_model(endpoint),
        messages,
        turn_number=history.turn + 1,
        instructions=build_instructions(
            context.agent.instructions,
            snapshot,
            context.unavailable_servers,
            server_changes,
            tools,
            native_tools=endpoint.native_tools,
            output_schema=output_schema,
        ),
        tools=build_tool_specs(tools),
        output_schema=output_schema,
        check_reply=lambda reply: check_call_limit(context.agent, history, len(reply.calls)),
    )
    if notice := build_answer_notice(completed_turn.reply, turn.max_tokens):
        await orm(step_store.append_step, lease, Step.Kind.NOTICE, notice)
    return completed_turn


async def _wait_for_next_request(
    lease: SessionLease,
    context: RunContext,
    problem: llm_interface.ModelError,
    history: SessionHistory,
) -> None:
    """Append a notice on the next request and wait for it; raise `problem` if none is left."""
    orm = get_runtime().run_orm
    next_request = context.find_next_request(history)
    if next_request is None:
        raise problem
    if next_request.is_fallback:
        code = "model_fallback"
        next_step = format_message(
            "Trying the fallback model {title!r} instead.", title=next_request.endpoint.title
        )
    else:
        code = "model_retry"
        next_step = format_message(
            "Retrying in {wait_s:.1f} s (attempt {attempt}).",
            wait_s=next_request.wait_s,
            attempt=next_request.attempt,
        )
    text = f"{problem} {next_step}"
    payload = {"code": code, "text": text, "wait_s": round(next_request.wait_s, 3)}
    await orm(step_store.append_step, lease, Step.Kind.NOTICE, payload)
    await asyncio.sleep(next_request.wait_s)


async def _report_server_changes(
    lease: SessionLease, history: SessionHistory, snapshot: CallSnapshot
) -> list[str]:
    """Append notices on servers that were connected or disconnected; return their texts."""
    changes = compare_servers(history.servers, list_connected_servers(snapshot))
    for change in changes:
        if change.code == DISCONNECTED:
            await pipeline.release_server_connections(build_holder_key(lease), change.server_id)
        await get_runtime().run_orm(
            step_store.append_step, lease, Step.Kind.NOTICE, change.to_payload()
        )
    return [change.text for change in changes]


def _build_caller(lease: SessionLease, context: RunContext) -> SessionCaller:
    return SessionCaller(
        lease,
        session=context.session,
        principal=context.principal,
        host=context.host,
        root=context.root,
    )


def suspend_session(lease: SessionLease) -> None:
    """Suspend the session, or queue it again if nothing is pending anymore."""
    with transaction.atomic():
        update_leased_session(lease)  # lock the session's row before checking what is pending
        approvals = Approval.objects.filter(session_id=lease.session_id)
        must_wait = approvals.filter(state=Approval.State.WAITING).exists()
        # A running child will wake this session when it ends.
        children = Session.objects.filter(parent_id=lease.session_id)
        must_wait = must_wait or children.filter(status=Session.Status.WAITING).exists()
        this_session = Session.objects.filter(pk=lease.session_id)
        must_wait = must_wait or pending_calls.filter_waiting_sessions(this_session).exists()
        Session.objects.filter(pk=lease.session_id, fence=lease.fence).update(
            status=Session.Status.WAITING if must_wait else Session.Status.QUEUED,
            runner=None,
            updated_at=timezone.now(),
        )


_SESSION_END = PreparedUpdate(
    select_fenced_session,
    lambda: {
        "status": QueryParameter("status", output_field=CharField()),
        "error_code": QueryParameter("code", output_field=CharField()),
        "error_detail": QueryParameter("detail", output_field=TextField()),
        "runner": None,
        "finished_at": QueryParameter("now", output_field=DateTimeField()),
        "updated_at": QueryParameter("now", output_field=DateTimeField()),
    },
)


def close_session(
    lease: SessionLease,
    status: str,
    *,
    end: Mapping[str, Any] | None = None,
    code: str = "",
    detail: str = "",
) -> None:
    """End the run, with an end step if `end` is given; raises `LeaseLost`.

    The session gets `status`, or is queued again if a new message arrived meanwhile.
    """
    end_steps = [build_step(Step.Kind.END, dict(end))] if end is not None else []
    with transaction.atomic():
        update_leased_session(lease)  # lock the session's row before reading the inbox
        insert_steps(lease, end_steps)
        has_new_messages = step_store.has_new_messages(lease)
        must_requeue = has_new_messages and status != Session.Status.CANCELLED
        # Set before the commit: a later message queues the session and wakes its worker.
        lease.state.may_be_queued = must_requeue
        _SESSION_END.execute(
            session=lease.session_id,
            fence=lease.fence,
            status=Session.Status.QUEUED if must_requeue else status,
            code=code,
            detail=detail,
            now=timezone.now(),
        )
        if not must_requeue:
            wake_parent(lease.session_id)
