"""The loop: messages in, model turns, calls through the door, until the model has answered.

Everything that the loop needs to go on is in the rows, so another runner can take over at any
point; what becomes of calls that a dead holder had begun, `recovery` says. A process that is told
to stop lets calls that are out come back, and hands the session over then.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from agents import asking, calls
from agents.approvals import withdraw
from agents.attachments import told_to_model
from agents.governance.snapshots import Snapshot, snapshots
from agents.llm import port
from agents.models import Session, Step
from agents.sessions import rows
from agents.sessions.bounds import Bound, within_calls, within_turns
from agents.sessions.calling import Caller, call, holder_of
from agents.sessions.children import end_children
from agents.sessions.connected import DISCONNECTED, connected, turnover
from agents.sessions.context import after_overflow, within_window
from agents.sessions.past import History, history
from agents.sessions.prompts import instructions, specs
from agents.sessions.recovery import close_all, recover
from agents.sessions.runners import Hold, Lost, hand_back
from agents.sessions.setting import Setting, setting_of
from agents.sessions.turns import Turn
from agents.workflows.driving import drive
from bonobot.ledger.refusals import AuditUnavailable
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.together import together
from mcp_servers.rereading import rereader

logger = logging.getLogger(__name__)


class Parked(Exception):
    """A call waits for a person: the session lets go of its worker until somebody answers."""


class HandedOver(Exception):
    """This process is told to stop: another one goes on from here."""


async def run(hold: Hold) -> None:
    """Run a held session until it rests; the outcome is in its rows."""
    orm = runtime().orm
    try:
        setting = await together().do(setting_of, hold)
        if setting is None:
            await cancel(hold)
            return
        found = await recover(hold, setting.agent.pk)
        await _notices(hold, setting)
        async with asyncio.timeout(setting.max_run_s):
            await _call_all(hold, setting, found.calls)
            if found.waits:
                raise Parked
            answer = await _carried_out(hold, setting)
        end = None if answer is None else {"answer": answer}
        await together().do(rows.close, hold, Session.Status.DONE, end=end)
    except Lost:
        logger.warning("session %s is held by another runner now", hold.session_id)
    except Parked:
        await _park(hold)
    except HandedOver:
        await orm(hand_back, hold)
    except TimeoutError:
        await fail(hold, Bound("The time for one message is over.", code="time_exhausted"))
    except AuditUnavailable:
        raise  # it comes back, as a database does
    except Problem as problem:
        await fail(hold, problem)
    finally:
        await asyncio.shield(calls.release(holder_of(hold)))


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
        await orm(end_children, hold.session_id, why or "The session that began it was cancelled.")
        await orm(withdraw, hold.session_id)
        await orm(asking.withdraw, hold.session_id)
        said = {"detail": why} if why else {}
        end = {"code": "cancelled", **said}
        await orm(rows.close, hold, Session.Status.CANCELLED, end=end, code="cancelled", detail=why)
    except Lost:
        logger.warning("session %s was lost before it could be cancelled", hold.session_id)


async def fail(hold: Hold, problem: Problem) -> None:
    """Write why the run ended; what was begun is closed as unknown."""
    orm = runtime().orm
    try:
        await close_all(hold)
        await orm(end_children, hold.session_id, "The session that began it failed.")
        await orm(withdraw, hold.session_id)
        await orm(asking.withdraw, hold.session_id)
        detail = f"{problem} {problem.remedy}".strip()
        close = partial(rows.close, end=problem.as_dict(), code=problem.code, detail=detail)
        await orm(close, hold, Session.Status.FAILED)
    except Lost:
        logger.warning("session %s was lost before it could be closed", hold.session_id)


async def _notices(hold: Hold, setting: Setting) -> None:
    for name in setting.unavailable:
        logger.warning("session %s: server %s is not reachable", hold.session_id, name)
        await runtime().orm(
            rows.append,
            hold,
            Step.Kind.NOTICE,
            {"code": "server_unreachable", "text": f"The server {name} is not reachable now."},
        )
    if setting.lack:
        text = f"The agent has no tools now. {setting.lack}"
        payload = {"code": "no_tools", "why": setting.lack.code, "text": text}
        await runtime().orm(rows.append, hold, Step.Kind.NOTICE, payload)


async def _carried_out(hold: Hold, setting: Setting) -> str | None:
    """Follow the workflow, or converse; return the answer."""
    if setting.follows:
        return await drive(hold, partial(_call_all, hold, setting))
    return await _converse(hold, setting)


async def _converse(hold: Hold, setting: Setting) -> str | None:
    """Take turns until the model has answered; None where nobody has said anything."""
    do = together().do
    past, snapshot = await do(_taken_up, hold, setting)
    while past.messages:
        within_turns(setting.agent, past)
        past = await within_window(hold, setting, past, snapshot)
        try:
            reply, begun = await _take(hold, setting, past, snapshot)
        except port.ModelError as problem:
            past, snapshot = await do(_looked, hold, setting, past)
            if await after_overflow(hold, setting, past, snapshot):
                past, snapshot = await do(_looked, hold, setting, past)
            else:
                await _before_next(hold, setting, problem, past)
        else:
            if reply.calls:
                await _call_all(hold, setting, begun)
            elif not await do(rows.take_messages, hold):
                return reply.text
            # What a server told during the turn counts in the next one.
            await rereader().caught_up(holder_of(hold))
            past, snapshot = await do(_looked, hold, setting, past)
    return None


def _taken_up(hold: Hold, setting: Setting) -> tuple[History, Snapshot]:
    rows.take_messages(hold)
    return _looked(hold, setting)


def _looked(hold: Hold, setting: Setting, past: History | None = None) -> tuple[History, Snapshot]:
    """Read what has come since `past`, and the rules of this moment."""
    known = past.settled if past else ()
    return history(hold.session_id, known), snapshots().current("agent", setting.agent.pk)


async def _take(
    hold: Hold, setting: Setting, past: History, snapshot: Snapshot
) -> tuple[port.Reply, list[Step]]:
    """Take one model turn by the rules of this moment."""
    news = await _turnover(hold, past, snapshot)
    endpoint = setting.endpoint(past)
    turn = Turn(hold, setting.principal, snapshot, endpoint, last=past.last_turn, root=setting.root)
    orm, owner = runtime().orm, setting.session.organization_id
    messages: Sequence[port.Message] = past.messages
    if any("images" in one or "files" in one for one in messages):
        messages = await orm(told_to_model, owner, messages, sees=endpoint.sees_images)
    tools = snapshot.shown(past.found)
    reply, begun = await turn.take(
        port.model_for(endpoint),
        messages,
        number=past.turn + 1,
        instructions=instructions(
            setting.agent.instructions, snapshot, setting.unavailable, news, tools
        ),
        tools=specs(tools),
        allowed=lambda reply: within_calls(setting.agent, past, len(reply.calls)),
    )
    if reply.finish == "length":
        await orm(rows.append, hold, Step.Kind.NOTICE, _cut(turn.max_tokens))
    return reply, begun


async def _before_next(
    hold: Hold, setting: Setting, problem: port.ModelError, past: History
) -> None:
    """Tell who is asked next, and wait for the moment; raises the problem where nobody is."""
    orm = runtime().orm
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
    await orm(rows.append, hold, Step.Kind.NOTICE, payload)
    await asyncio.sleep(asked.wait_s)


async def _turnover(hold: Hold, past: History, snapshot: Snapshot) -> list[str]:
    """Tell people which servers came or went since the last turn; close what went (D3, D9)."""
    found = turnover(past.servers, connected(snapshot))
    for one in found:
        if one.code == DISCONNECTED:
            await calls.disconnect(holder_of(hold), one.server_id)
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


async def _call_all(hold: Hold, setting: Setting, begun: Sequence[Step]) -> None:
    """Make the calls of one turn beside each other; one that fails doesn't disturb the rest.

    Raises `Parked` where one waits for a person, once the others are done.
    """
    caller = Caller(hold, setting.session, setting.principal, setting.host, setting.root)
    with hold.presence.calling():
        made = await asyncio.gather(*(call(caller, step) for step in begun), return_exceptions=True)
    for one in made:
        # What isn't a call's own failure ends the run, once the other calls have come back.
        if isinstance(one, BaseException):
            raise one
    if hold.presence.leaving:
        raise HandedOver
    if not all(made):
        raise Parked
