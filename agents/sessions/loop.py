"""The loop: messages in, model turns, calls through the door, until the model has answered.

Everything that the loop needs to go on is in the rows, so another runner can take over at any
point; what becomes of calls that a dead holder had begun, `recovery` says. A process that is told
to stop lets calls that are out come back, and hands the session over then.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from agents import calls
from agents.approvals import withdraw
from agents.endpoint_rules import chain, endpoint_of
from agents.governance.lacking import lack_of
from agents.governance.snapshots import Snapshot, snapshots
from agents.llm import port
from agents.llm.framing import frame_for
from agents.models import Agent, Session, Step
from agents.pictures import keep, pictures_in, shown_to
from agents.sessions import rows
from agents.sessions.bounds import Bound, within_calls, within_turns
from agents.sessions.connected import DISCONNECTED, connected, turnover
from agents.sessions.prompts import instructions
from agents.sessions.recovery import close_all, recover
from agents.sessions.retrying import Next, next_request
from agents.sessions.runners import Hold, Lost, hand_back, still_held
from agents.sessions.turns import Turn
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Role
from mcp_servers.models import Server
from mcp_servers.rereading import rereader

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setting:
    """What a run needs of its rows, read once at its start."""

    session: Session
    agent: Agent
    # The agent's endpoint, and those that are asked after it.
    line: tuple[port.Endpoint, ...]
    principal: Principal
    unavailable: tuple[str, ...]


class Parked(Exception):
    """A call waits for a person: the session lets go of its worker until somebody answers."""


class HandedOver(Exception):
    """This process is told to stop: another one goes on from here."""


async def run(hold: Hold) -> None:
    """Run a held session until it rests; the outcome is in its rows."""
    orm = runtime().orm
    try:
        if await orm(rows.wants_cancel, hold):
            await cancel(hold)
            return
        setting = await orm(_setting, hold)
        found = await recover(hold, setting.agent.pk)
        await _notices(hold, setting)
        async with asyncio.timeout(setting.agent.max_run_s):
            await _call_all(hold, setting, found.calls)
            if found.waits:
                raise Parked
            await _converse(hold, setting)
        await orm(rows.close, hold, Session.Status.DONE)
    except Lost:
        logger.warning("session %s is held by another runner now", hold.session_id)
    except Parked:
        await _park(hold)
    except HandedOver:
        await orm(hand_back, hold)
    except TimeoutError:
        await fail(hold, Bound("The time for one message is over.", code="time_exhausted"))
    except Problem as problem:
        await fail(hold, problem)
    finally:
        await asyncio.shield(calls.release(_holder(hold)))


async def _park(hold: Hold) -> None:
    """Rest until a person has answered; the answer queues the session again."""
    try:
        await runtime().orm(rows.park, hold)
    except Lost:
        logger.warning("session %s was lost before it could wait", hold.session_id)


async def cancel(hold: Hold) -> None:
    """Write that a person cancelled the run, and why; what was begun is closed as unknown."""
    orm = runtime().orm
    try:
        await close_all(hold)
        why = await orm(rows.take_cancels, hold)
        await orm(withdraw, hold.session_id)
        said = {"detail": why} if why else {}
        await orm(rows.append, hold, Step.Kind.END, {"code": "cancelled", **said})
        await orm(rows.close, hold, Session.Status.CANCELLED, code="cancelled", detail=why)
    except Lost:
        logger.warning("session %s was lost before it could be cancelled", hold.session_id)


async def fail(hold: Hold, problem: Problem) -> None:
    """Write why the run ended; what was begun is closed as unknown."""
    orm = runtime().orm
    try:
        await close_all(hold)
        await orm(withdraw, hold.session_id)
        await orm(rows.append, hold, Step.Kind.END, problem.as_dict())
        detail = f"{problem} {problem.remedy}".strip()
        await orm(rows.close, hold, Session.Status.FAILED, code=problem.code, detail=detail)
    except Lost:
        logger.warning("session %s was lost before it could be closed", hold.session_id)


def _setting(hold: Hold) -> Setting:
    session = Session.objects.select_related("agent__model_endpoint").get(pk=hold.session_id)
    agent = session.agent
    return Setting(
        session=session,
        agent=agent,
        line=tuple(endpoint_of(one) for one in chain(agent.model_endpoint)),
        principal=Principal(
            kind="session",
            id=str(session.pk),
            label=session.started_by,
            organization_id=session.organization_id,
            role=Role.MEMBER,
            agent_id=agent.pk,
            token_id=session.token_id,
        ),
        unavailable=tuple(_unavailable(agent)),
    )


def _unavailable(agent: Agent) -> list[str]:
    """Name the agent's servers that don't answer now, and why (FEATURES A7)."""
    troubled = Server.objects.enabled().filter(
        pk__in=agent.bindings.filter(enabled=True).values("server"),
        status__in=(Server.Status.ERROR, Server.Status.NEEDS_REAUTH),
    )
    never = Server.objects.enabled().filter(
        pk__in=agent.bindings.filter(enabled=True).values("server"), discovered_at=None
    )
    return [
        f"{server.name} ({server.status_code or 'not discovered yet'})"
        for server in troubled | never
    ]


async def _notices(hold: Hold, setting: Setting) -> None:
    for name in setting.unavailable:
        logger.warning("session %s: server %s is not reachable", hold.session_id, name)
        await runtime().orm(
            rows.append,
            hold,
            Step.Kind.NOTICE,
            {"code": "server_unreachable", "text": f"The server {name} is not reachable now."},
        )
    snapshot = await runtime().orm(snapshots().current, "agent", setting.agent.pk)
    if not snapshot.offered() and (lack := lack_of(snapshot)):
        text = f"The agent has no tools now. {lack}"
        payload = {"code": "no_tools", "why": lack.code, "text": text}
        await runtime().orm(rows.append, hold, Step.Kind.NOTICE, payload)


async def _converse(hold: Hold, setting: Setting) -> None:
    orm = runtime().orm
    await orm(rows.take_messages, hold)
    while True:
        past = await orm(rows.history, hold.session_id)
        if not past.messages:
            return
        within_turns(setting.agent, past)
        try:
            reply, begun = await _take(hold, setting, past)
        except port.ModelError as problem:
            await _before_next(hold, setting, problem)
            continue
        if reply.calls:
            await _call_all(hold, setting, begun)
        elif not await orm(rows.take_messages, hold):
            await orm(rows.append, hold, Step.Kind.END, {"answer": reply.text})
            return


async def _take(hold: Hold, setting: Setting, past: rows.History) -> tuple[port.Reply, list[Step]]:
    """Take one model turn by the rules of this moment."""
    # What a server told during the last turn counts in this one.
    await rereader().caught_up(_holder(hold))
    snapshot = await runtime().orm(snapshots().current, "agent", setting.agent.pk)
    news = await _turnover(hold, past, snapshot)
    asked = _next(setting, past)
    endpoint = asked.endpoint if asked else setting.line[0]
    turn = Turn(hold, setting.principal, snapshot, endpoint)
    orm, owner = runtime().orm, setting.session.organization_id
    reply, begun = await turn.take(
        port.model_for(endpoint),
        await orm(shown_to, owner, past.messages, sees=endpoint.sees_images),
        number=past.turn + 1,
        instructions=instructions(setting.agent.instructions, snapshot, setting.unavailable, news),
        tools=_specs(snapshot),
        allowed=lambda reply: within_calls(setting.agent, past, len(reply.calls)),
    )
    if reply.finish == "length":
        await orm(rows.append, hold, Step.Kind.NOTICE, _cut(turn.max_tokens))
    return reply, begun


def _next(setting: Setting, past: rows.History) -> Next | None:
    return next_request(
        setting.line,
        past.failures,
        answered_by=past.answered_by,
        share=setting.session.pk.int % 1000 / 1000,
    )


async def _before_next(hold: Hold, setting: Setting, problem: port.ModelError) -> None:
    """Tell who is asked next, and wait for the moment; raises the problem where nobody is."""
    orm = runtime().orm
    asked = _next(setting, await orm(rows.history, hold.session_id))
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
    await orm(rows.append, hold, Step.Kind.NOTICE, payload)
    await asyncio.sleep(asked.wait_s)


async def _turnover(hold: Hold, past: rows.History, snapshot: Snapshot) -> list[str]:
    """Tell people which servers came or went since the last turn; close what went (D3, D9)."""
    found = turnover(past.servers, connected(snapshot))
    for one in found:
        if one.code == DISCONNECTED:
            await calls.disconnect(_holder(hold), one.server_id)
        await runtime().orm(rows.append, hold, Step.Kind.NOTICE, one.as_payload())
    return [one.text for one in found]


def _cut(max_tokens: int | None) -> dict[str, str]:
    """Return what people are told of an answer that isn't whole."""
    where = f"at {max_tokens:,} tokens" if max_tokens else "where the model's own limit is"
    return {
        "code": "answer_cut",
        "text": f"The answer was cut off {where}. The model endpoint says how long answers may be, "
        "and what is left of a budget may allow less.",
    }


def _specs(snapshot: Snapshot) -> list[port.ToolSpec]:
    return [
        port.ToolSpec(tool.name, tool.description[:1024], tool.input_schema)
        for tool in snapshot.offered()
    ]


async def _call_all(hold: Hold, setting: Setting, begun: Sequence[Step]) -> None:
    """Make the calls of one turn beside each other; one that fails doesn't disturb the rest.

    Raises `Parked` where one waits for a person, once the others are done.
    """
    with hold.presence.calling():
        try:
            async with asyncio.TaskGroup() as group:
                made = [group.create_task(_call(hold, setting, step)) for step in begun]
        except BaseExceptionGroup as failures:
            # What isn't a call's own failure ends the run, and all tasks fail for the same reason.
            raise failures.exceptions[0] from failures
    if hold.presence.leaving:
        raise HandedOver
    if not all(task.result() for task in made):
        raise Parked


async def _call(hold: Hold, setting: Setting, step: Step) -> bool:
    """Make one call and write what came of it; False where it waits for a person."""
    request = calls.Request(
        principal=setting.principal,
        tool=step.payload["name"],
        arguments=step.payload["arguments"] or {},
        via="session",
        holder=_holder(hold),
        agent_id=setting.agent.pk,
        session_id=hold.session_id,
        call_id=step.call_id or uuid4(),
        may_send=partial(_still_holds, hold),
    )
    try:
        state, found = await _made(request, step)
    except calls.ApprovalRequired as asked:
        await runtime().orm(rows.show_waiting, hold, step, asked.extra)
        return False
    kept = ("name", "arguments", "earlier")
    shown = {name: step.payload[name] for name in kept if name in step.payload}
    spent = found.get("cost_microusd", 0)
    await runtime().orm(rows.finish, hold, step, state, shown | found, calls=1, cost_microusd=spent)
    return True


async def _made(request: calls.Request, step: Step) -> tuple[str, dict[str, Any]]:
    """Make the call and return how the step ends: refusals and failures are for the model too.

    Raises `ApprovalRequired` where a person must say yes first.
    """
    if step.payload["arguments"] is None:
        text = f"The arguments are not a JSON object: {step.payload['raw'][:200]}"
        return Step.State.FAILED, {"text": text, "code": "invalid_arguments"}
    try:
        outcome = await calls.call(request)
    except calls.ApprovalRequired:
        raise
    except Problem as problem:
        text = f"{problem} {problem.remedy}".strip()
        return Step.State.FAILED, {"text": text, "code": problem.code, "rule": problem.rule}
    states = {"ok": Step.State.DONE, "unknown": Step.State.UNKNOWN}
    return states.get(outcome.outcome, Step.State.FAILED), {
        "text": outcome.text,
        # What is kept beside the text: the model gets it between lines with this mark.
        "frame": frame_for(
            outcome.server_name,
            outcome.own_name,
            flagged=outcome.flagged,
            sanitized=outcome.sanitized,
        ),
        "flagged": dict(outcome.flagged),
        "sanitized": dict(outcome.sanitized),
        **await _kept(request, outcome),
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
    held = await runtime().orm(still_held, hold)
    hold.presence.lapsed = not held
    return held


async def _kept(request: calls.Request, outcome: calls.Outcome) -> dict[str, Any]:
    """Keep the images of a result, and return how the step names them."""
    if not (found := pictures_in(outcome.result)):
        return {}
    return {"images": await runtime().orm(keep, request.principal.organization_id, found)}


def _holder(hold: Hold) -> str:
    return f"session:{hold.session_id}"
