"""Playing a recording: its messages to the agent as it would be, its calls answered from it.

The model is really asked, within the agent's budgets; a call is decided and goes nowhere: there is
no way from here to a server, or to a built-in tool.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, cast
from uuid import UUID, uuid4

from agents.attachments import told_to_model
from agents.endpoint_rules import chain, endpoint_of
from agents.evaluation.answering import Answers, under
from agents.evaluation.conversations import Conversation, Exchange, Ruled, conversation
from agents.governance.rules import read_policy
from agents.governance.snapshots import Snapshot, snapshots
from agents.llm import port
from agents.llm.prices import estimate_tokens, with_window
from agents.models import Agent, Replay, Step
from agents.redaction import kept
from agents.sessions.bounds import Bound, within_calls, within_turns
from agents.sessions.past import History
from agents.sessions.past import told as history_of
from agents.sessions.prompts import instructions, specs
from agents.sessions.reserving import Asking, Reserved, opening_of, reserve
from agents.sessions.retrying import next_request
from agents.sessions.settling import settle
from agents.sessions.turns import says_something
from bonobot.ledger.actors import Actor, ActorKind
from bonobot.ledger.entries import Opening
from bonobot.lib.known_secrets import read_masker
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say

ACTION = "agent_evaluation"


@dataclass(frozen=True)
class Stage:
    """What a replay needs of its rows, read once at its start."""

    replay_id: UUID
    agent: Agent
    actor: Actor
    recorded: Conversation
    changed: dict[str, Any]
    rules: dict[str, Any] | None
    line: tuple[port.Endpoint, ...]
    answers: Answers

    @property
    def instructions(self) -> str:
        """The agent's instructions as they would be."""
        return str(self.changed.get("instructions", self.agent.instructions))


def stage_of(replay_id: UUID) -> Stage:
    """Read what a replay needs; raises `NotFound` (`endpoint_gone`)."""
    rows = Replay.objects.select_related("recording__agent__model_endpoint", "endpoint")
    replay = rows.get(pk=replay_id)
    agent = replay.recording.agent
    if replay.changed.get("endpoint") and replay.endpoint is None:
        raise NotFound(
            say(
                "The model endpoint {endpoint!r} was removed.", endpoint=replay.changed["endpoint"]
            ),
            code="endpoint_gone",
            field="endpoint",
            remedy="Replay it with another one.",
        )
    recorded = Conversation.read(replay.recording.conversation)
    first = replay.endpoint or agent.model_endpoint
    masker = read_masker(replay.organization_id)
    return Stage(
        replay_id=replay.pk,
        agent=agent,
        actor=Actor(
            cast(ActorKind, replay.started_by_kind), replay.started_by_id, replay.started_by
        ),
        recorded=recorded,
        changed=replay.changed,
        rules=replay.rules,
        line=tuple(with_window(endpoint_of(one)) for one in chain(first)),
        answers=Answers(recorded, masker.value),
    )


@dataclass
class Script:
    """A replay as it goes: the steps that a session would have written, kept in memory."""

    steps: list[Step] = field(default_factory=list)
    ruled: dict[str, Ruled] = field(default_factory=dict)

    @property
    def past(self) -> History:
        """What the steps say, read as a session's are."""
        return history_of(self.steps)

    @property
    def turn(self) -> int:
        """The number of the last turn."""
        return self.steps[-1].turn if self.steps else 0

    @property
    def conversation(self) -> Conversation:
        """What was said and done so far."""
        return conversation(self.steps, self.ruled)

    def add(self, kind: str, payload: dict[str, Any], **more: Any) -> Step:
        """Append a step."""
        values = {"state": Step.State.DONE, "call_id": uuid4(), **more}
        step = Step(seq=len(self.steps) + 1, kind=kind, payload=payload, **values)
        self.steps.append(step)
        return step


async def play(stage: Stage) -> Conversation:
    """Tell all messages of the recording, one after the other; return what came of them.

    An exchange that comes to one of its bounds, or whose model fails, ends with its code, and the
    replay with it. Raises what `reserving.reserve` raises.
    """
    script = Script()
    for exchange in stage.recorded.exchanges:
        script.add(Step.Kind.MESSAGE, dict(exchange.message))
        try:
            async with asyncio.timeout(stage.agent.max_run_s):
                await _converse(stage, script)
        except TimeoutError:
            script.add(Step.Kind.END, {"code": "time_exhausted"})
            break
        except (Bound, port.ModelError) as problem:
            script.add(Step.Kind.END, {"code": problem.code})
            break
        script.add(Step.Kind.END, {})
    return _whole(stage, script)


def _whole(stage: Stage, script: Script) -> Conversation:
    """Return the conversation with the messages that were not told any more, masked as stored."""
    found = script.conversation
    rest = stage.recorded.exchanges[len(found.exchanges) :]
    untold = tuple(Exchange(one.message, code="not_told") for one in rest)
    whole = Conversation((*found.exchanges, *untold)).as_dict()
    return Conversation.read(kept(whole, stage.agent.organization_id, None))


async def _converse(stage: Stage, script: Script) -> None:
    """Take turns until the model has answered; raises `Bound` or `ModelError`."""
    while True:
        past = script.past
        within_turns(stage.agent, past)
        asked = next_request(stage.line, past.failures, answered_by=past.answered_by)
        if asked is None:
            raise port.ModelError("No model answered.", code=past.failures[-1].code)
        await asyncio.sleep(asked.wait_s)
        snapshot = await runtime().orm(_rules_now, stage)
        try:
            reply = await _take(stage, script, past, snapshot, asked.endpoint)
        except port.ModelError as problem:
            failed = problem.as_dict() | {"retryable": problem.retryable}
            failed["endpoint"] = {"id": asked.endpoint.id}
            script.add(Step.Kind.MODEL, failed, state=Step.State.FAILED, turn=past.turn + 1)
            continue
        for call in reply.calls:
            _answer(stage, script, snapshot, call)
        if not reply.calls:
            return


def _rules_now(stage: Stage) -> Snapshot:
    """Return the rules of this moment, under the policy that is tried."""
    now = snapshots().current("agent", stage.agent.pk)
    return under(now, read_policy(stage.rules) if stage.rules else None)


def _answer(stage: Stage, script: Script, snapshot: Snapshot, call: port.ToolCall) -> None:
    """Write what a call gives; nothing of it leaves this process."""
    found = stage.answers.answer(snapshot, call.name, call.arguments)
    if call.arguments is None and not found.text:
        text = f"The arguments are not a JSON object: {call.raw_arguments[:200]}"
        found = replace(found, text=text, ok=False, code="invalid_arguments")
    step = script.add(
        Step.Kind.CALL,
        {
            "name": call.name,
            "arguments": call.arguments,
            "text": found.text,
            "code": found.code,
            **found.extra,
        },
        state=Step.State.DONE if found.ok else Step.State.FAILED,
        turn=script.turn,
        index=call.index,
    )
    script.ruled[str(step.call_id)] = Ruled(found.verdict, found.rule)


async def _take(
    stage: Stage, script: Script, past: History, snapshot: Snapshot, endpoint: port.Endpoint
) -> port.Reply:
    """Ask the model for one turn, reserved before and settled after."""
    shown = snapshot.shown(past.found)
    prompt, tools = instructions(stage.instructions, snapshot, (), (), shown), specs(shown)
    messages: Sequence[port.Message] = past.messages
    if any("images" in one or "files" in one for one in messages):
        owner = stage.agent.organization_id
        messages = await runtime().orm(told_to_model, owner, messages, sees=endpoint.sees_images)
    call_id = uuid4()
    asking = Asking(
        stage.replay_id,
        endpoint,
        estimate_tokens(messages, prompt, tools),
        partial(_opening, stage, call_id, past.turn + 1, endpoint),
        past.last_turn,
    )
    held = await reserve(asking, snapshot)
    request = partial(
        port.model_for(endpoint).request,
        messages,
        instructions=prompt,
        tools=tools,
        max_tokens=held.max_tokens,
    )
    reply, cost = await _answered(request, call_id, endpoint, held)
    says_something(endpoint, reply)
    within_calls(stage.agent, past, len(reply.calls))
    script.add(Step.Kind.MODEL, _said(reply, endpoint, held, cost), turn=past.turn + 1)
    return reply


async def _answered(
    request: Callable[[], Awaitable[port.Reply]],
    call_id: UUID,
    endpoint: port.Endpoint,
    held: Reserved,
) -> tuple[port.Reply, int]:
    """Return the reply and its cost; what was reserved is settled, whatever happens."""
    owner, began = held.snapshot.organization_id, perf_counter()
    closed = partial(settle, call_id, owner, endpoint, held.reserves, began=began)
    try:
        reply = await request()
    except Problem as problem:
        await closed(outcome="error", usage=None, code=problem.code)
        raise
    except asyncio.CancelledError:
        await asyncio.shield(closed(outcome="cancelled", usage=None, code="cancelled"))
        raise
    return reply, await closed(outcome="ok", usage=reply.usage)


def _said(reply: port.Reply, endpoint: port.Endpoint, held: Reserved, cost: int) -> dict[str, Any]:
    """Return a turn as a session's step says it."""
    return {
        "text": reply.text,
        "message": reply.message,
        "endpoint": {"id": endpoint.id, "name": endpoint.title},
        "usage": asdict(reply.usage or port.Usage(0, 0)),
        "usage_known": reply.usage is not None,
        "estimated_input_tokens": held.estimate,
        "cost_microusd": cost,
    }


def _opening(
    stage: Stage,
    call_id: UUID,
    turn: int,
    endpoint: port.Endpoint,
    snapshot: Snapshot,
    estimate: int,
) -> Opening:
    return opening_of(
        call_id,
        endpoint,
        snapshot,
        estimate,
        details={"replay_id": str(stage.replay_id), "turn": turn},
        action=ACTION,
        actor=stage.actor,
        rule="turn",
    )
