"""Make a session's tool calls, including multi-round ones.

Between two rounds, a call's state is in its `Exchange`, so the session can be suspended there. A
dead runner's call that was between two rounds is resumed, and so is the polling of a task.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, Literal
from uuid import UUID, uuid4

from django.utils import timezone

from agents.approvals.services import build_requester_fields, create_approval
from agents.builtin_tools.toolsets.find_tools import FIND_TOOLS
from agents.calls import pending_calls, pipeline
from agents.calls.pending_calls import close_pending_call
from agents.calls.pipeline import CallOutcome
from agents.calls.redaction import ensure_masker_loaded
from agents.calls.require_approval import ApprovalRequired, build_target_fields
from agents.calls.root_limits import RootSession
from agents.calls.settle_call import (
    OUTCOME_UNKNOWN_CODE,
    OUTCOME_UNKNOWN_REMEDY,
    PROCESS_ENDED,
    describe_unknown_outcome,
)
from agents.calls.snapshots import SnapshotTool, get_snapshot_cache
from agents.flow_labels.error_labels import label_session_with_error
from agents.images import extract_images, store_images
from agents.llm.result_frames import build_frame
from agents.models import Approval, PendingCall, Session, Step
from agents.models.approvals import INTERRUPTED_CODE
from agents.sessions import step_store
from agents.sessions.child_sessions import CHILD_WAITING_CODE, PARENT_STOPPING_CODE
from agents.sessions.leases import SessionLease, renew_session_lease
from agents.sessions.mcp_host import SessionHost
from agents.sessions.partial_output import show_progress
from agents.sessions.services import build_principal
from bonobot.accounts.principals import Principal
from bonobot.core.crypto.signatures import compute_fingerprint
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.db.transactions import (
    get_transaction_batcher,
    retry_database_work,
    run_orm_with_retry,
)
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server

logger = logging.getLogger(__name__)

# Minimum pause before polling a task: the interval of the sweep that wakes waiting sessions.
MIN_POLL_INTERVAL = timedelta(seconds=10)
# Maximum size of a tool's output that is kept for later steps of a workflow, in bytes.
MAX_OUTPUT_SIZE = 256 * 1024


class SessionSuspended(Exception):
    """A call waits for a person or a task: the session is suspended without a worker."""


class SessionHandedOff(Exception):
    """This process is stopping: another one continues the session."""


async def find_pending_call(step: Step) -> PendingCall | None:
    """Return the pending call of a multi-round call; None before its first round ended."""
    if (pending_call_id := step.payload.get("exchange")) is None:
        return None
    return await get_runtime().run_orm(pending_calls.find_open_call, pending_call_id)


async def prepare_next_round(host: SessionHost, step: Step, pending_call: PendingCall) -> bool:
    """Prepare a call's next round; False if it waits for a person or for a task's next poll.

    Raises a `Problem` if the call can't continue.
    """
    if pending_call.call_id != step.call_id:
        return True  # the next round is already prepared
    if pending_call.next_at is not None and pending_call.next_at > timezone.now():
        return False
    if not await host.collect_responses(step, pending_call):
        return False
    await get_runtime().run_orm(step_store.replace_call_id, host.lease, step)
    return True


async def finish_round(
    lease: SessionLease,
    step: Step,
    outcome: pipeline.CallOutcome,
    previous_call: PendingCall | None,
) -> bool:
    """Record the end of a call's round; return whether to pause before polling its task."""
    orm = get_runtime().run_orm
    assert outcome.pending_call_id is not None  # noqa: S101 - it isn't over
    await orm(
        step_store.save_pending_call_id, lease, step, outcome.pending_call_id, outcome.cost_microusd
    )
    pending_call = await orm(pending_calls.find_open_call, outcome.pending_call_id)
    if pending_call is None or previous_call is None or pending_call.kind != PendingCall.Kind.TASK:
        return False
    if pending_call.requests or await orm(_is_stdio_task, pending_call):
        return False
    pause = max(MIN_POLL_INTERVAL, timedelta(milliseconds=pending_call.poll_ms))
    await orm(pending_calls.schedule_check, pending_call, timezone.now() + pause)
    return True


async def resume_interrupted_call(lease: SessionLease, step: Step) -> bool:
    """Prepare a call that a dead runner left between two rounds; False if it wasn't there."""
    orm = get_runtime().run_orm
    pending_call = await orm(_find_open_call, step)
    if pending_call is None:
        return False
    if pending_call.call_id == step.call_id:
        await orm(step_store.save_pending_call_id, lease, step, pending_call.pk, 0)
        return True
    if pending_call.kind == PendingCall.Kind.TASK and await orm(_is_admitted, step):
        await orm(step_store.replace_call_id, lease, step)
        return True
    return False


async def cancel_pending_call(lease: SessionLease, step: Step) -> bool:
    """Close a call that is between two rounds when its run ends; cancel its task, if any."""
    pending_call = await get_runtime().run_orm(_find_open_call, step)
    if pending_call is None:
        return False
    await get_runtime().run_orm(pending_calls.close_pending_call, pending_call.pk)
    if pending_call.kind == PendingCall.Kind.TASK:
        await _cancel_task(lease, pending_call)
        return True
    return bool(pending_call.call_id == step.call_id)


async def _cancel_task(lease: SessionLease, pending_call: PendingCall) -> None:
    session = await get_runtime().run_orm(_load_session, lease.session_id)
    host = SessionHost(lease, session)
    request = pipeline.CallRequest(
        principal=build_principal(session),
        tool=pending_call.own_name,
        arguments={},
        via="session",
        holder=f"session:{session.pk}",
        agent_id=pending_call.agent_id,
        server_id=pending_call.server_id,
        session_id=session.pk,
        call_id=uuid4(),
        host=host,
    )
    try:
        await pipeline.cancel_task(request, pending_call.task_id)
    except Problem as problem:
        logger.warning("task %s could not be cancelled: %s", pending_call.task_id, problem)


def _load_session(session_id: UUID) -> Session:
    return Session.objects.get(pk=session_id)


def _find_open_call(step: Step) -> PendingCall | None:
    pending_call_id = step.payload.get("exchange")
    return (
        pending_calls.find_open_call(pending_call_id, step.call_id)
        if pending_call_id or step.call_id
        else None
    )


def _is_admitted(step: Step) -> bool:
    return step.call_id is not None and AuditRow.objects.filter(pk=step.call_id).exists()


def _is_stdio_task(pending_call: PendingCall) -> bool:
    """Tell whether a stdio server runs the task: its process ends when the session rests."""
    return Server.objects.filter(
        pk=pending_call.server_id, transport_type=Server.Transport.STDIO
    ).exists()


@dataclass(frozen=True)
class SessionCaller:
    """The principal of a leased session's calls, and the host that answers servers."""

    lease: SessionLease
    session: Session
    principal: Principal
    host: SessionHost
    # Set if another session started this one.
    root: RootSession | None = None


def build_holder_key(lease: SessionLease) -> str:
    """Return the key that owns the session's server connections."""
    return f"session:{lease.session_id}"


async def make_calls(caller: SessionCaller, steps: Sequence[Step]) -> None:
    """Make the calls of one turn concurrently; a failure doesn't affect the others.

    When all are done, raises `SessionSuspended` if one waits for a person or a task, otherwise
    `SessionHandedOff` if the process is stopping. The caller has checked whether a person asked to
    cancel the run.
    """
    lease_state = caller.lease.state
    with lease_state.track_calls():
        results = await asyncio.gather(
            *(_make_call(caller, step) for step in steps), return_exceptions=True
        )
    for result in results:
        # An exception that isn't a call's own failure ends the run, after all calls are done.
        if isinstance(result, BaseException):
            raise result
    if not all(results):
        raise SessionSuspended
    if lease_state.is_stopping:
        raise SessionHandedOff


async def _make_call(caller: SessionCaller, step: Step) -> bool:
    """Make one call and save its outcome; False if it waits for a person or a task.

    Each further round of a multi-round call has its own id.
    """
    while True:
        pending_call = await find_pending_call(step)
        outcome: pipeline.CallOutcome | Problem
        try:
            if pending_call and not await prepare_next_round(caller.host, step, pending_call):
                return False
            outcome = await _run_call(_build_request(caller, step, pending_call), step)
        except pipeline.ApprovalRequired as approval_required:
            await get_runtime().run_orm(
                step_store.show_pending_approval, caller.lease, step, approval_required.extra
            )
            return False
        except Problem as problem:
            outcome = problem
        if outcome.code == CHILD_WAITING_CODE:
            # It is made again, with another id, when its child session rests.
            await get_runtime().run_orm(step_store.replace_call_id, caller.lease, step)
            return False
        if outcome.code == PARENT_STOPPING_CODE:
            await get_runtime().run_orm(step_store.replace_call_id, caller.lease, step)
            raise SessionHandedOff
        if (
            isinstance(outcome, pipeline.CallOutcome)
            and outcome.code == OUTCOME_UNKNOWN_CODE
            and await ask_about_call(caller.lease, caller.session.agent_id, step, outcome)
        ):
            return False
        if isinstance(outcome, Problem) or outcome.pending_call_id is None:
            await _finish_call(caller, step, outcome)
            return True
        if await finish_round(caller.lease, step, outcome, pending_call):
            return False


def _build_request(
    caller: SessionCaller, step: Step, pending_call: PendingCall | None
) -> pipeline.CallRequest:
    return pipeline.CallRequest(
        principal=caller.principal,
        tool=step.payload["name"],
        arguments=step.payload["arguments"] or {},
        via="session",
        is_by_model=True,
        holder=build_holder_key(caller.lease),
        agent_id=caller.session.agent_id,
        session_id=caller.lease.session_id,
        root=caller.root,
        turn_id=UUID(turn_id) if (turn_id := step.payload.get("turn_id")) else None,
        folder=caller.session.working_dir,
        call_id=step.call_id or generate_uuid7(),
        repeats=frozenset(map(UUID, step.payload.get("earlier", ()))),
        may_send=partial(_is_lease_held, caller.lease),
        on_progress=partial(show_progress, caller.lease, step, caller.session.organization_id),
        stopping=caller.lease.state.stopping,
        host=caller.host,
        continuation=pending_calls.build_continuation(pending_call) if pending_call else None,
    )


async def _run_call(request: pipeline.CallRequest, step: Step) -> pipeline.CallOutcome:
    """Make the call; raises the `Problem` of a refusal."""
    if step.payload["arguments"] is None:
        raise Problem(
            format_message(
                "The arguments aren't a JSON object: {raw}", raw=step.payload["raw"][:200]
            ),
            code="invalid_arguments",
        )
    return await pipeline.make_call(request)


async def _finish_call(
    caller: SessionCaller, step: Step, outcome: pipeline.CallOutcome | Problem
) -> None:
    """Save a call's outcome; the model sees refusals and failures too."""
    kept_names = ("name", "arguments", "earlier", "step", "turn_id")
    kept_fields = {name: step.payload[name] for name in kept_names if name in step.payload}
    state, cost_microusd = Step.State.FAILED, 0
    if isinstance(outcome, Problem):
        actor, session = caller.principal.actor, caller.session
        await get_runtime().run_orm(label_session_with_error, actor, session, outcome)
        text = f"{outcome} {outcome.remedy}".strip()
        rule = outcome.rule or outcome.code  # as in the audit log: every problem is a refusal
        result_fields: dict[str, Any] = {"text": text, "code": outcome.code, "rule": rule}
    else:
        states = {"ok": Step.State.DONE, "unknown": Step.State.UNKNOWN}
        state, cost_microusd = states.get(outcome.outcome, Step.State.FAILED), outcome.cost_microusd
        result_fields = (
            _build_result_payload(outcome)
            | await _store_images(caller, outcome)
            | _build_found_tools(step, outcome)
        )
        if "step" in step.payload:  # of a workflow, whose later steps may refer to it
            result_fields["output"] = parse_tool_output(outcome.result, outcome.text)
    finish = partial(
        step_store.finish_step, caller.lease, step, state, calls=1, cost_microusd=cost_microusd
    )
    # The call was made, so retry until its answer is saved.
    await retry_database_work(
        partial(get_transaction_batcher().run, finish, kept_fields | result_fields)
    )


def parse_tool_output(result: Mapping[str, Any], text: str) -> Any:
    """Return a tool's output as JSON values: its structured content, or its text parsed as JSON."""
    output = result.get("structuredContent")
    if output is None:
        try:
            output = json.loads(text)
        except (ValueError, RecursionError):
            return None
    try:
        return make_storable(output) if len(to_canonical_json(output)) <= MAX_OUTPUT_SIZE else None
    except (ValueError, RecursionError):
        return None  # a number that JSON can't represent, or too many levels


def _build_result_payload(outcome: pipeline.CallOutcome) -> dict[str, Any]:
    return {
        "text": outcome.text,
        # The model gets the text between lines with the frame's mark.
        "frame": None
        if outcome.instructs
        else build_frame(
            outcome.server_name,
            outcome.own_name,
            flagged=outcome.flagged,
            sanitized=outcome.sanitized,
        ),
        "flagged": dict(outcome.flagged),
        "sanitized": dict(outcome.sanitized),
        "code": outcome.code,
        "server": outcome.server_name,
        "tool": outcome.own_name,
        "duration_ms": outcome.duration_ms,
        "cost_microusd": outcome.cost_microusd,
    }


async def _is_lease_held(lease: SessionLease) -> bool:
    """Tell whether a call may be sent; check the lease in the database if it may have lapsed."""
    if not lease.state.is_stale():
        return True
    renewed_at = monotonic()
    is_held = await get_runtime().run_orm(renew_session_lease, lease)
    if is_held:
        lease.state.mark_renewed(renewed_at)
    lease.state.has_lapsed = not is_held
    return is_held


async def _store_images(caller: SessionCaller, outcome: pipeline.CallOutcome) -> dict[str, Any]:
    """Store a result's images; return their references for the step."""
    if not (images := extract_images(outcome.result)):
        return {}
    return {
        "images": await run_orm_with_retry(store_images, caller.session.organization_id, images)
    }


def _build_found_tools(step: Step, outcome: pipeline.CallOutcome) -> dict[str, Any]:
    """Return the tools that `find_tools` found; the model is shown them from then on."""
    if step.payload["name"] != FIND_TOOLS or outcome.outcome != "ok":
        return {}
    return {"found": outcome.result["structuredContent"]["tools"]}


async def ask_about_call(
    lease: SessionLease, agent_id: UUID, step: Step, outcome: CallOutcome
) -> bool:
    """Ask whether to make a call again that was just lost; False if its tool is gone."""
    orm = get_runtime().run_orm
    snapshot = await orm(get_snapshot_cache().load_current, "agent", agent_id)
    tool = snapshot.find_tool(step.payload["name"])
    if tool is None:
        return False
    await ensure_masker_loaded(snapshot)
    payload = {**step.payload, "cause": outcome.cause}
    # A task whose outcome is unknown is given up: made again, the call starts another one.
    if (pending_call_id := payload.pop("exchange", None)) is not None:
        await orm(close_pending_call, pending_call_id)
    step.payload = payload
    await orm(step_store.count_call, lease, outcome.cost_microusd)
    await orm(ask_person, lease, step, tool)
    return True


def get_unknown_text(step: Step) -> str:
    """Return the text for the model about a call that may have run."""
    text = describe_unknown_outcome(step.payload.get("cause", PROCESS_ENDED))
    return f"{text} {OUTCOME_UNKNOWN_REMEDY}"


def ask_person(
    lease: SessionLease, step: Step, tool: SnapshotTool
) -> Literal["again", "ask", "unknown"]:
    """Return a person's decision on a call that may have run; ask if not asked yet."""
    call_id = step.call_id or uuid4()
    approval = (
        Approval.objects.filter(call_id=call_id, code=INTERRUPTED_CODE)
        .order_by("-created_at")
        .first()
    )
    if approval is None:
        approval = _create_approval(lease, step, call_id, tool)
    if approval.is_answerable(timezone.now()):
        step_store.show_pending_approval(lease, step, ApprovalRequired(approval).extra)
        return "ask"
    if approval.state == Approval.State.APPROVED:
        return "again"
    step.payload = {**step.payload, "word": approval.message}
    return "unknown"


def _create_approval(
    lease: SessionLease, step: Step, call_id: UUID, tool: SnapshotTool
) -> Approval:
    """Create the approval; a later runner finds it by the call's id."""
    session = Session.objects.get(pk=lease.session_id)
    arguments = step.payload["arguments"] or {}
    approval = Approval(
        organization_id=session.organization_id,
        agent_id=session.agent_id,
        session_id=session.pk,
        call_id=call_id,
        **build_target_fields(tool, arguments, session.organization_id, None),
        arguments_digest=compute_fingerprint(session.organization_id, to_canonical_json(arguments)),
        rules_digest=compute_digest(INTERRUPTED_CODE),
        digest=compute_digest(to_canonical_json([INTERRUPTED_CODE, str(call_id)])),
        rule="session:interrupted",
        code=INTERRUPTED_CODE,
        reason=format_message(
            "{cause} It is unknown whether this call ran. Approve to make the call again, or deny "
            "to report an unknown outcome to the model.",
            cause=step.payload.get("cause", PROCESS_ENDED),
        ),
        **build_requester_fields(session),
    )
    return create_approval(approval)
