"""Run replays against recorded results.

The model is really called, within the agent's budgets. Tool calls are only decided: no server or
built-in tool is called.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, cast
from uuid import UUID, uuid4

from agents.attachments import build_model_messages
from agents.calls.redaction import redact_value
from agents.calls.snapshots import CallSnapshot, get_snapshot_cache
from agents.evaluation import services as evaluation
from agents.evaluation.services import ReplayLease
from agents.evaluation.transcripts import (
    RecordedDecision,
    RecordedResults,
    Transcript,
    TranscriptEntry,
    apply_policy,
    build_transcript,
)
from agents.llm import interface as llm_interface
from agents.llm.pricing import estimate_tokens, with_window
from agents.model_endpoints.request_budget import (
    ModelReservation,
    ReservationRequest,
    build_opening,
    reserve,
    settle,
)
from agents.model_endpoints.services import build_endpoint, build_fallback_chain
from agents.models import Agent, Replay, Step
from agents.policies.rules import read_policy
from agents.sessions.history import SessionHistory
from agents.sessions.history import build_history as history_of
from agents.sessions.loop import RunLimitExceeded, check_call_limit, check_turn_limit
from agents.sessions.model_fallback import find_next_request
from agents.sessions.system_prompt import build_instructions, build_tool_specs
from agents.sessions.turns import check_reply_not_empty
from agents.sessions.worker import get_session_runner
from bonobot.core.crypto.organization_secrets import read_masker
from bonobot.core.db.transactions import AWAY, run_orm_with_retry
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InternalError, NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.refusals import AuditUnavailable
from bonobot.ledger.types import Actor, ActorKind, Opening

ACTION = "agent_evaluation"


@dataclass(frozen=True)
class ReplayContext:
    """The data of a replay, loaded once when it starts."""

    replay_id: UUID
    agent: Agent
    actor: Actor
    recorded: Transcript
    changed: dict[str, Any]
    rules: dict[str, Any] | None
    line: tuple[llm_interface.ModelEndpointConfig, ...]
    answers: RecordedResults

    @property
    def instructions(self) -> str:
        """The agent's instructions, or their override."""
        return str(self.changed.get("instructions", self.agent.instructions))


def load_replay_context(replay_id: UUID) -> ReplayContext:
    """Load the data of a replay; raises `NotFound` (`endpoint_gone`)."""
    rows = Replay.objects.select_related("recording__agent__model_endpoint", "endpoint")
    replay = rows.get(pk=replay_id)
    agent = replay.recording.agent
    if replay.changed.get("endpoint") and replay.endpoint is None:
        raise NotFound(
            format_message(
                "The model endpoint {endpoint!r} was removed.", endpoint=replay.changed["endpoint"]
            ),
            code="endpoint_gone",
            field="endpoint",
            remedy="Replay it with another one.",
        )
    recorded = Transcript.read(replay.recording.conversation)
    first = replay.endpoint or agent.model_endpoint
    masker = read_masker(replay.organization_id)
    return ReplayContext(
        replay_id=replay.pk,
        agent=agent,
        actor=Actor(
            cast(ActorKind, replay.started_by_kind), replay.started_by_id, replay.started_by
        ),
        recorded=recorded,
        changed=replay.changed,
        rules=replay.rules,
        line=tuple(with_window(build_endpoint(one)) for one in build_fallback_chain(first)),
        answers=RecordedResults(recorded, masker.value),
    )


@dataclass
class ReplaySteps:
    """The steps of a running replay, in memory."""

    steps: list[Step] = field(default_factory=list)
    ruled: dict[str, RecordedDecision] = field(default_factory=dict)

    @property
    def past(self) -> SessionHistory:
        """The history that the steps make up."""
        return history_of(self.steps)

    @property
    def turn(self) -> int:
        """The number of the last turn."""
        return self.steps[-1].turn if self.steps else 0

    @property
    def conversation(self) -> Transcript:
        """The transcript so far."""
        return build_transcript(self.steps, self.ruled)

    def add(self, kind: str, payload: dict[str, Any], **more: Any) -> Step:
        """Append a step."""
        values = {"state": Step.State.DONE, "call_id": uuid4(), **more}
        step = Step(seq=len(self.steps) + 1, kind=kind, payload=payload, **values)
        self.steps.append(step)
        return step


async def replay_messages(stage: ReplayContext) -> Transcript:
    """Send the recorded messages in order and return the transcript.

    The replay ends with the first message that reaches a limit or whose model fails; the entry has
    the code. Raises what `request_budget.reserve` raises.
    """
    script = ReplaySteps()
    for exchange in stage.recorded.exchanges:
        script.add(Step.Kind.MESSAGE, dict(exchange.message))
        try:
            async with asyncio.timeout(stage.agent.max_run_s):
                await _run_turns(stage, script)
        except TimeoutError:
            script.add(Step.Kind.END, {"code": "time_exhausted"})
            break
        except (RunLimitExceeded, llm_interface.ModelError) as problem:
            script.add(Step.Kind.END, {"code": problem.code})
            break
        script.add(Step.Kind.END, {})
    return _complete_transcript(stage, script)


def _complete_transcript(stage: ReplayContext, script: ReplaySteps) -> Transcript:
    """Return the transcript with the messages that were not sent, masked for storage."""
    found = script.conversation
    rest = stage.recorded.exchanges[len(found.exchanges) :]
    untold = tuple(TranscriptEntry(one.message, code="not_told") for one in rest)
    whole = Transcript((*found.exchanges, *untold)).as_dict()
    return Transcript.read(redact_value(whole, stage.agent.organization_id, None))


async def _run_turns(stage: ReplayContext, script: ReplaySteps) -> None:
    """Request turns until the model answers; raises `RunLimitExceeded` or `ModelError`."""
    while True:
        past = script.past
        check_turn_limit(stage.agent, past)
        asked = find_next_request(stage.line, past.failures, answered_by=past.answered_by)
        if asked is None:
            raise llm_interface.ModelError("No model answered.", code=past.failures[-1].code)
        await asyncio.sleep(asked.wait_s)
        snapshot = await get_runtime().orm(_load_snapshot, stage)
        try:
            reply = await _take(stage, script, past, snapshot, asked.endpoint)
        except llm_interface.ModelError as problem:
            failed = problem.as_dict() | {"retryable": problem.retryable}
            failed["endpoint"] = {"id": asked.endpoint.id}
            script.add(Step.Kind.MODEL, failed, state=Step.State.FAILED, turn=past.turn + 1)
            continue
        for call in reply.calls:
            _answer(stage, script, snapshot, call)
        if not reply.calls:
            return


def _load_snapshot(stage: ReplayContext) -> CallSnapshot:
    """Return the current snapshot, with the policy of the replay applied."""
    now = get_snapshot_cache().current("agent", stage.agent.pk)
    return apply_policy(now, read_policy(stage.rules) if stage.rules else None)


def _answer(
    stage: ReplayContext, script: ReplaySteps, snapshot: CallSnapshot, call: llm_interface.ToolCall
) -> None:
    """Add the step of a call with its recorded result; nothing is called."""
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
    script.ruled[str(step.call_id)] = RecordedDecision(found.verdict, found.rule)


async def _take(
    stage: ReplayContext,
    script: ReplaySteps,
    past: SessionHistory,
    snapshot: CallSnapshot,
    endpoint: llm_interface.ModelEndpointConfig,
) -> llm_interface.ModelReply:
    """Request one turn from the model, reserving its cost before and settling it after."""
    shown = snapshot.shown(past.found)
    prompt, tools = (
        build_instructions(stage.instructions, snapshot, (), (), shown),
        build_tool_specs(shown),
    )
    messages: Sequence[llm_interface.Message] = past.messages
    if any("images" in one or "files" in one for one in messages):
        owner = stage.agent.organization_id
        messages = await get_runtime().orm(
            build_model_messages, owner, messages, sees=endpoint.sees_images
        )
    call_id = uuid4()
    asking = ReservationRequest(
        stage.replay_id,
        endpoint,
        estimate_tokens(messages, prompt, tools),
        partial(_build_opening, stage, call_id, past.turn + 1, endpoint),
        past.last_turn,
    )
    held = await reserve(asking, snapshot)
    request = partial(
        llm_interface.build_model(endpoint).request,
        messages,
        instructions=prompt,
        tools=tools,
        max_tokens=held.max_tokens,
    )
    reply, cost = await _fetch_reply(request, call_id, endpoint, held)
    check_reply_not_empty(endpoint, reply)
    check_call_limit(stage.agent, past, len(reply.calls))
    script.add(
        Step.Kind.MODEL, _build_turn_payload(reply, endpoint, held, cost), turn=past.turn + 1
    )
    return reply


async def _fetch_reply(
    request: Callable[[], Awaitable[llm_interface.ModelReply]],
    call_id: UUID,
    endpoint: llm_interface.ModelEndpointConfig,
    held: ModelReservation,
) -> tuple[llm_interface.ModelReply, int]:
    """Return the reply and its cost; the reservation is always settled."""
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


def _build_turn_payload(
    reply: llm_interface.ModelReply,
    endpoint: llm_interface.ModelEndpointConfig,
    held: ModelReservation,
    cost: int,
) -> dict[str, Any]:
    """Return the payload of a turn's step."""
    return {
        "text": reply.text,
        "message": reply.message,
        "endpoint": {"id": endpoint.id, "name": endpoint.title},
        "usage": asdict(reply.usage or llm_interface.TokenUsage(0, 0)),
        "usage_known": reply.usage is not None,
        "estimated_input_tokens": held.estimate,
        "cost_microusd": cost,
    }


def _build_opening(
    stage: ReplayContext,
    call_id: UUID,
    turn: int,
    endpoint: llm_interface.ModelEndpointConfig,
    snapshot: CallSnapshot,
    estimate: int,
) -> Opening:
    return build_opening(
        call_id,
        endpoint,
        snapshot,
        estimate,
        details={"replay_id": str(stage.replay_id), "turn": turn},
        action=ACTION,
        actor=stage.actor,
        rule="turn",
    )


logger = logging.getLogger(__name__)


async def take(replay_id: UUID) -> None:
    """Claim a replay and run it; the result is saved in its row."""
    await get_session_runner().begin()
    runner_id = get_session_runner().runner_id
    if runner_id is None:
        return
    held = await get_runtime().orm(evaluation.claim, replay_id, runner_id)
    if held is not None:
        await _run_replay(held)


async def _run_replay(held: ReplayLease) -> None:
    orm = get_runtime().orm
    try:
        stage = await orm(load_replay_context, held.replay_id)
        played = await replay_messages(stage)
    except asyncio.CancelledError:
        await asyncio.shield(orm(evaluation.release_replay, held))
        raise
    except (*AWAY, AuditUnavailable) as away:
        logger.warning("replay %s stands still: %s", held.replay_id, away)
        await run_orm_with_retry(evaluation.release_replay, held)
    except Problem as problem:
        await run_orm_with_retry(evaluation.fail, held, problem)
    except Exception:
        # The top of a worker's task: no caller could report the error.
        logger.exception("replay %s ended by a fault", held.replay_id)
        remedy = "Replay it again; if it stays so, tell the administrator."
        await run_orm_with_retry(evaluation.fail, held, InternalError(remedy=remedy))
    else:
        await run_orm_with_retry(evaluation.end, held, played)
