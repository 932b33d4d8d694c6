"""Calling: one call of a session through the door, part by part, and what is written of it."""

from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from agents import calls, exchanges
from agents.builtin_tools.finding import FIND_TOOLS
from agents.governance.roots import Root
from agents.llm.framing import frame_for
from agents.models import Exchange, Session, Step
from agents.pictures import keep, pictures_in
from agents.sessions import rows
from agents.sessions.children import WAITS
from agents.sessions.going_on import exchange_of, next_part, rests
from agents.sessions.host import SessionHost
from agents.sessions.live import show_progress
from agents.sessions.runners import Hold, still_held
from agents.workflows.driving import output_of
from bonobot.lib.ordered_ids import ordered_id
from bonobot.lib.patience import patiently, written
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.lib.together import together
from bonobot.tenancy.principals import Principal


@dataclass(frozen=True)
class Caller:
    """Who makes the calls of a held session, and who answers what servers ask back."""

    hold: Hold
    session: Session
    principal: Principal
    host: SessionHost
    # The session that began this one's, where another one did.
    root: Root | None = None


def holder_of(hold: Hold) -> str:
    """Return who owns what the session opens at servers."""
    return f"session:{hold.session_id}"


async def call(caller: Caller, step: Step) -> bool:
    """Make one call and write what came of it; False where it waits for a person, or a task.

    A call whose server asks for something first goes on by further parts, each with its own id.
    """
    while True:
        exchange = await exchange_of(step)
        outcome: calls.Outcome | Problem
        try:
            if exchange and not await next_part(caller.host, step, exchange):
                return False
            outcome = await _made(_request(caller, step, exchange), step)
        except calls.ApprovalRequired as asked:
            await runtime().orm(rows.show_waiting, caller.hold, step, asked.extra)
            return False
        except Problem as problem:
            outcome = problem
        if outcome.code == WAITS:
            # It is asked for again, by another id, once what it began rests.
            await runtime().orm(rows.renew, caller.hold, step)
            return False
        if isinstance(outcome, Problem) or outcome.exchange_id is None:
            await _finish(caller, step, outcome)
            return True
        if await rests(caller.hold, step, outcome, exchange):
            return False


def _request(caller: Caller, step: Step, exchange: Exchange | None) -> calls.Request:
    return calls.Request(
        principal=caller.principal,
        tool=step.payload["name"],
        arguments=step.payload["arguments"] or {},
        via="session",
        holder=holder_of(caller.hold),
        agent_id=caller.session.agent_id,
        session_id=caller.hold.session_id,
        root=caller.root,
        folder=caller.session.working_dir,
        call_id=step.call_id or ordered_id(),
        may_send=partial(_still_holds, caller.hold),
        on_progress=partial(show_progress, caller.hold, step, caller.session.organization_id),
        leaving=lambda: caller.hold.presence.leaving,
        host=caller.host,
        continues=exchanges.continuation(exchange) if exchange else None,
    )


async def _made(request: calls.Request, step: Step) -> calls.Outcome:
    """Make the call; raises the `Problem` of a refusal, which is for the model too."""
    if step.payload["arguments"] is None:
        raise Problem(
            say("The arguments are not a JSON object: {raw}", raw=step.payload["raw"][:200]),
            code="invalid_arguments",
        )
    return await calls.call(request)


async def _finish(caller: Caller, step: Step, outcome: calls.Outcome | Problem) -> None:
    """Write how a call ended: refusals and failures are for the model too."""
    kept = ("name", "arguments", "earlier", "step")
    shown = {name: step.payload[name] for name in kept if name in step.payload}
    state, spent = Step.State.FAILED, 0
    if isinstance(outcome, Problem):
        text = f"{outcome} {outcome.remedy}".strip()
        found: dict[str, Any] = {"text": text, "code": outcome.code, "rule": outcome.rule}
    else:
        states = {"ok": Step.State.DONE, "unknown": Step.State.UNKNOWN}
        state, spent = states.get(outcome.outcome, Step.State.FAILED), outcome.cost_microusd
        found = _told(outcome) | await _kept(caller, outcome) | _found(step, outcome)
        if "step" in step.payload:  # of a workflow, whose later steps may refer to it
            found["output"] = output_of(outcome.result, outcome.text)
    finish = partial(rows.finish, caller.hold, step, state, calls=1, cost_microusd=spent)
    # The call was made: its answer is kept here until the database takes it.
    await patiently(partial(together().do, finish, shown | found))


def _told(outcome: calls.Outcome) -> dict[str, Any]:
    return {
        "text": outcome.text,
        # What is kept beside the text: the model gets it between lines with this mark.
        "frame": None
        if outcome.instructs
        else frame_for(
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


async def _still_holds(hold: Hold) -> bool:
    """Tell whether a call may leave: a process that stood still learns here that it lost it."""
    if not hold.presence.stale():
        return True
    asked_at = monotonic()
    held = await runtime().orm(still_held, hold)
    if held:
        hold.presence.beaten(asked_at)
    hold.presence.lapsed = not held
    return held


async def _kept(caller: Caller, outcome: calls.Outcome) -> dict[str, Any]:
    """Keep the images of a result, and return how the step names them."""
    if not (found := pictures_in(outcome.result)):
        return {}
    return {"images": await written(keep, caller.session.organization_id, found)}


def _found(step: Step, outcome: calls.Outcome) -> dict[str, Any]:
    """Return the tools that a search found: the model is shown them from then on (X11)."""
    if step.payload["name"] != FIND_TOOLS or outcome.outcome != "ok":
        return {}
    return {"found": outcome.result["structuredContent"]["tools"]}
