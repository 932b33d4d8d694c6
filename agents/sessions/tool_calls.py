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
from typing import Any
from uuid import UUID, uuid4

from django.utils import timezone

from agents.builtin_tools.toolsets.find_tools import FIND_TOOLS
from agents.calls import pending_calls, pipeline
from agents.calls.root_limits import RootSession
from agents.images import extract_images, keep
from agents.llm.messages import build_frame
from agents.models import Exchange, Session, Step
from agents.sessions import step_store
from agents.sessions.child_sessions import WAITS
from agents.sessions.leases import SessionLease, renew_session_lease
from agents.sessions.mcp_host import SessionHost
from agents.sessions.partial_output import show_progress
from agents.sessions.services import build_principal
from bonobot.accounts.principals import Principal
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.db.transactions import (
    get_transaction_batcher,
    retry_database_work,
    run_orm_with_retry,
)
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import to_canonical_json
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server

logger = logging.getLogger(__name__)

# Minimum pause before polling a task: the interval of the sweep that wakes waiting sessions.
LEAST_REST = timedelta(seconds=10)
# Maximum size of a tool's output that is kept for later steps of a workflow, in bytes.
LARGEST_OUTPUT = 256 * 1024


class SessionSuspended(Exception):
    """A call waits for a person or a task: the session is suspended without a worker."""


class SessionHandedOff(Exception):
    """This process is stopping: another one continues the session."""


async def find_pending_call(step: Step) -> Exchange | None:
    """Return the exchange of a multi-round call; None before its first round ended."""
    if (known := step.payload.get("exchange")) is None:
        return None
    return await get_runtime().orm(pending_calls.open_one, known)


async def prepare_next_round(host: SessionHost, step: Step, exchange: Exchange) -> bool:
    """Prepare a call's next round; False if it waits for a person or for a task's next poll.

    Raises a `Problem` if the call can't continue.
    """
    if exchange.call_id != step.call_id:
        return True  # the next round is already prepared
    if exchange.next_at is not None and exchange.next_at > timezone.now():
        return False
    if not await host.gather(step, exchange):
        return False
    await get_runtime().orm(step_store.replace_call_id, host.hold, step)
    return True


async def finish_round(
    hold: SessionLease, step: Step, outcome: pipeline.CallOutcome, before: Exchange | None
) -> bool:
    """Record the end of a call's round; return whether to pause before polling its task."""
    orm = get_runtime().orm
    assert outcome.exchange_id is not None  # noqa: S101 - it isn't over
    await orm(step_store.keep_exchange, hold, step, outcome.exchange_id, outcome.cost_microusd)
    exchange = await orm(pending_calls.open_one, outcome.exchange_id)
    if exchange is None or before is None or exchange.kind != Exchange.Kind.TASK:
        return False
    if exchange.requests or await orm(_is_stdio_task, exchange):
        return False
    pause = max(LEAST_REST, timedelta(milliseconds=exchange.poll_ms))
    await orm(pending_calls.schedule_check, exchange, timezone.now() + pause)
    return True


async def resume_interrupted_call(hold: SessionLease, step: Step) -> bool:
    """Prepare a call that a dead runner left between two rounds; False if it wasn't there."""
    orm = get_runtime().orm
    exchange = await orm(_find_open_call, step)
    if exchange is None:
        return False
    if exchange.call_id == step.call_id:
        await orm(step_store.keep_exchange, hold, step, exchange.pk, 0)
        return True
    if exchange.kind == Exchange.Kind.TASK and await orm(_is_admitted, step):
        await orm(step_store.replace_call_id, hold, step)
        return True
    return False


async def cancel_pending_call(hold: SessionLease, step: Step) -> bool:
    """Close a call that is between two rounds when its run ends; cancel its task, if any."""
    exchange = await get_runtime().orm(_find_open_call, step)
    if exchange is None:
        return False
    await get_runtime().orm(pending_calls.close, exchange.pk)
    if exchange.kind == Exchange.Kind.TASK:
        await _cancel_task(hold, exchange)
        return True
    return bool(exchange.call_id == step.call_id)


async def _cancel_task(hold: SessionLease, exchange: Exchange) -> None:
    session = await get_runtime().orm(_load_session, hold.session_id)
    host = SessionHost(hold, session)
    request = pipeline.CallRequest(
        principal=build_principal(session),
        tool=exchange.own_name,
        arguments={},
        via="session",
        holder=f"session:{session.pk}",
        agent_id=exchange.agent_id,
        server_id=exchange.server_id,
        session_id=session.pk,
        call_id=uuid4(),
        host=host,
    )
    try:
        await pipeline.cancel_task(request, exchange.task_id)
    except Problem as problem:
        logger.warning("task %s could not be cancelled: %s", exchange.task_id, problem)


def _load_session(session_id: UUID) -> Session:
    return Session.objects.get(pk=session_id)


def _find_open_call(step: Step) -> Exchange | None:
    known = step.payload.get("exchange")
    return pending_calls.open_one(known, step.call_id) if known or step.call_id else None


def _is_admitted(step: Step) -> bool:
    return step.call_id is not None and AuditRow.objects.filter(pk=step.call_id).exists()


def _is_stdio_task(exchange: Exchange) -> bool:
    """Tell whether a stdio server runs the task: its process ends when the session rests."""
    return Server.objects.filter(
        pk=exchange.server_id, transport_type=Server.Transport.STDIO
    ).exists()


@dataclass(frozen=True)
class SessionCaller:
    """The principal of a leased session's calls, and the host that answers servers."""

    hold: SessionLease
    session: Session
    principal: Principal
    host: SessionHost
    # Set if another session started this one.
    root: RootSession | None = None


def build_holder_key(hold: SessionLease) -> str:
    """Return the key that owns the session's server connections."""
    return f"session:{hold.session_id}"


async def make_calls(caller: SessionCaller, begun: Sequence[Step]) -> None:
    """Make the calls of one turn concurrently; a failure doesn't affect the others.

    When all are done, raises `SessionSuspended` if one waits for a person or a task, and
    `SessionHandedOff` if the process is stopping.
    """
    presence = caller.hold.presence
    with presence.calling():
        made = await asyncio.gather(
            *(_make_call(caller, step) for step in begun), return_exceptions=True
        )
    for one in made:
        # An exception that isn't a call's own failure ends the run, after all calls are done.
        if isinstance(one, BaseException):
            raise one
    if presence.leaving:
        raise SessionHandedOff
    if not all(made):
        raise SessionSuspended


async def _make_call(caller: SessionCaller, step: Step) -> bool:
    """Make one call and save its outcome; False if it waits for a person or a task.

    Each further round of a multi-round call has its own id.
    """
    while True:
        exchange = await find_pending_call(step)
        outcome: pipeline.CallOutcome | Problem
        try:
            if exchange and not await prepare_next_round(caller.host, step, exchange):
                return False
            outcome = await _run_call(_build_request(caller, step, exchange), step)
        except pipeline.ApprovalRequired as asked:
            await get_runtime().orm(step_store.show_waiting, caller.hold, step, asked.extra)
            return False
        except Problem as problem:
            outcome = problem
        if outcome.code == WAITS:
            # It is made again, with another id, when its child session rests.
            await get_runtime().orm(step_store.replace_call_id, caller.hold, step)
            return False
        if isinstance(outcome, Problem) or outcome.exchange_id is None:
            await _finish(caller, step, outcome)
            return True
        if await finish_round(caller.hold, step, outcome, exchange):
            return False


def _build_request(
    caller: SessionCaller, step: Step, exchange: Exchange | None
) -> pipeline.CallRequest:
    return pipeline.CallRequest(
        principal=caller.principal,
        tool=step.payload["name"],
        arguments=step.payload["arguments"] or {},
        via="session",
        holder=build_holder_key(caller.hold),
        agent_id=caller.session.agent_id,
        session_id=caller.hold.session_id,
        root=caller.root,
        folder=caller.session.working_dir,
        call_id=step.call_id or generate_uuid7(),
        may_send=partial(_is_lease_held, caller.hold),
        on_progress=partial(show_progress, caller.hold, step, caller.session.organization_id),
        leaving=lambda: caller.hold.presence.leaving,
        host=caller.host,
        continues=pending_calls.build_continuation(exchange) if exchange else None,
    )


async def _run_call(request: pipeline.CallRequest, step: Step) -> pipeline.CallOutcome:
    """Make the call; raises the `Problem` of a refusal."""
    if step.payload["arguments"] is None:
        raise Problem(
            format_message(
                "The arguments are not a JSON object: {raw}", raw=step.payload["raw"][:200]
            ),
            code="invalid_arguments",
        )
    return await pipeline.call(request)


async def _finish(
    caller: SessionCaller, step: Step, outcome: pipeline.CallOutcome | Problem
) -> None:
    """Save a call's outcome; the model sees refusals and failures too."""
    kept = ("name", "arguments", "earlier", "step")
    shown = {name: step.payload[name] for name in kept if name in step.payload}
    state, spent = Step.State.FAILED, 0
    if isinstance(outcome, Problem):
        text = f"{outcome} {outcome.remedy}".strip()
        found: dict[str, Any] = {"text": text, "code": outcome.code, "rule": outcome.rule}
    else:
        states = {"ok": Step.State.DONE, "unknown": Step.State.UNKNOWN}
        state, spent = states.get(outcome.outcome, Step.State.FAILED), outcome.cost_microusd
        found = (
            _build_payload(outcome)
            | await _store_images(caller, outcome)
            | _build_found_tools(step, outcome)
        )
        if "step" in step.payload:  # of a workflow, whose later steps may refer to it
            found["output"] = parse_tool_output(outcome.result, outcome.text)
    finish = partial(step_store.finish, caller.hold, step, state, calls=1, cost_microusd=spent)
    # The call was made, so retry until its answer is saved.
    await retry_database_work(partial(get_transaction_batcher().do, finish, shown | found))


def parse_tool_output(result: Mapping[str, Any], text: str) -> Any:
    """Return a tool's output as JSON values: its structured content, or its text parsed as JSON."""
    found = result.get("structuredContent")
    if found is None:
        try:
            found = json.loads(text)
        except ValueError:
            return None
    try:
        return make_storable(found) if len(to_canonical_json(found)) <= LARGEST_OUTPUT else None
    except ValueError:
        return None  # a number that JSON can't represent


def _build_payload(outcome: pipeline.CallOutcome) -> dict[str, Any]:
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


async def _is_lease_held(hold: SessionLease) -> bool:
    """Tell whether a call may be sent; check the lease in the database if it may have lapsed."""
    if not hold.presence.stale():
        return True
    asked_at = monotonic()
    held = await get_runtime().orm(renew_session_lease, hold)
    if held:
        hold.presence.beaten(asked_at)
    hold.presence.lapsed = not held
    return held


async def _store_images(caller: SessionCaller, outcome: pipeline.CallOutcome) -> dict[str, Any]:
    """Store a result's images; return their references for the step."""
    if not (found := extract_images(outcome.result)):
        return {}
    return {"images": await run_orm_with_retry(keep, caller.session.organization_id, found)}


def _build_found_tools(step: Step, outcome: pipeline.CallOutcome) -> dict[str, Any]:
    """Return the tools that `find_tools` found; the model is shown them from then on."""
    if step.payload["name"] != FIND_TOOLS or outcome.outcome != "ok":
        return {}
    return {"found": outcome.result["structuredContent"]["tools"]}
