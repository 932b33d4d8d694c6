"""Replays of recordings: create, claim, run and complete them.

The model is really called, within the agent's budgets. Tool calls are only decided: no server or
built-in tool is called.

A replay changes nothing outside its row, so one whose runner died is simply run again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from time import perf_counter
from typing import Any, cast
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from agents.attachments import build_model_messages
from agents.calls.redaction import redact_value
from agents.calls.snapshots import CallSnapshot, decide_tool, get_snapshot_cache
from agents.evaluation.compare_transcripts import (
    RecordedDecision,
    Transcript,
    TranscriptEntry,
    build_transcript,
    compare_transcripts,
)
from agents.evaluation.recordings import RecordedResults
from agents.llm import interface as llm_interface
from agents.llm.token_estimates import estimate_tokens
from agents.model_endpoints.request_budget import (
    ModelReservation,
    ReservationRequest,
    build_opening,
    reserve_model_request,
    settle_model_request,
)
from agents.model_endpoints.services import (
    build_endpoint,
    build_fallback_chain,
    fill_context_window,
)
from agents.models import Agent, ModelEndpoint, Recording, Replay, Step
from agents.policies.rules import Policy, read_policy
from agents.policies.services import PolicySpec
from agents.policies.shadow_mode import build_policy
from agents.sessions.history import SessionHistory
from agents.sessions.history import build_history as history_of
from agents.sessions.leases import get_heartbeat_deadline
from agents.sessions.loop import RunLimitExceeded, check_call_limit, check_turn_limit
from agents.sessions.model_retries_and_fallback import find_next_request
from agents.sessions.output_schemas import OutputSchemaViolation, check_final_answer
from agents.sessions.services import require_run_permission
from agents.sessions.system_prompt import build_instructions, build_tool_specs
from agents.sessions.turns import check_reply_not_empty
from agents.sessions.worker import get_session_runner
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.celery_tasks import enqueue_task_on_commit
from bonobot.core.crypto.organization_secrets import load_masker, mask_organization_secrets
from bonobot.core.db.transactions import UNAVAILABLE_ERRORS, lock_row, run_orm_with_retry
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InternalError, InvalidInput, NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.admission import AuditUnavailable
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.types import Actor, ActorKind

AUDIT_ACTION = "agent_evaluation"

logger = logging.getLogger(__name__)

REPLAY_TASK = "agents.tasks.run_replay"
# Finished replays per recording, and open replays per organization.
MAX_FINISHED_REPLAYS = 50
MAX_OPEN_REPLAYS = 10
# A replay that was claimed this often without finishing has failed.
MAX_ATTEMPTS = 10
MAX_INSTRUCTIONS_LENGTH = 100_000


@dataclass(frozen=True)
class ReplayContext:
    """The data of a replay, loaded once when it starts."""

    replay_id: UUID
    agent: Agent
    actor: Actor
    recorded_transcript: Transcript
    overrides: dict[str, Any]
    policy_rules: dict[str, Any] | None
    endpoints: tuple[llm_interface.ModelEndpointConfig, ...]
    recorded_results: RecordedResults

    @property
    def instructions(self) -> str:
        """The agent's instructions, or their override."""
        return str(self.overrides.get("instructions", self.agent.instructions))

    def get_output_schema(self, history: SessionHistory) -> dict[str, Any] | None:
        """Return the schema of the answer to the message in progress; None if it has none."""
        return history.output_schema or self.agent.output_schema or None


@dataclass
class ReplaySteps:
    """The steps of a running replay, in memory."""

    steps: list[Step] = field(default_factory=list)
    decisions: dict[str, RecordedDecision] = field(default_factory=dict)

    @property
    def history(self) -> SessionHistory:
        """The history that the steps make up."""
        return history_of(self.steps)

    @property
    def last_turn(self) -> int:
        return self.steps[-1].turn if self.steps else 0

    @property
    def transcript(self) -> Transcript:
        """The transcript so far."""
        return build_transcript(self.steps, self.decisions)

    def add_step(self, kind: str, payload: dict[str, Any], **fields: Any) -> Step:
        values = {"state": Step.State.DONE, "call_id": uuid4(), **fields}
        step = Step(seq=len(self.steps) + 1, kind=kind, payload=payload, **values)
        self.steps.append(step)
        return step


@dataclass(frozen=True)
class ReplayOverrides:
    """What a replay changes; None keeps the current value."""

    instructions: str | None = None
    endpoint: str | None = None
    policy: PolicySpec | None = None


@dataclass(frozen=True)
class ReplayLease:
    """A runner's right to write a replay."""

    replay_id: UUID
    runner_id: UUID
    fence: int


def create_replay(principal: Principal, recording: Recording, overrides: ReplayOverrides) -> Replay:
    """Create a replay of a recording and enqueue it.

    Raises `Forbidden`, `NotFound` (the endpoint), `InvalidInput` with the field, or `Conflict`
    (`too_many_replays`).
    """
    principal.require(Action.MANAGE_AGENTS)
    agent = recording.agent
    require_run_permission(principal, agent)
    new_replay = _build_replay(principal, recording, overrides)
    organization = Organization(pk=recording.organization_id)
    with record_change(
        **describe_row("recording", recording, recording.title),
        actor=principal.actor,
        action="recording_replayed",
        details={
            "replay_id": str(new_replay.pk),
            "agent": agent.slug,
            "changed": sorted(new_replay.changed),
        },
        governed=False,
    ):
        lock_row(organization)
        _check_open_replays(organization)
        new_replay.save(force_insert=True)
    enqueue_task_on_commit(REPLAY_TASK, str(new_replay.pk))
    return new_replay


def _check_open_replays(organization: Organization) -> None:
    open_replays = Replay.objects.for_organization(organization.pk).filter(
        status__in=(Replay.Status.QUEUED, Replay.Status.RUNNING)
    )
    if open_replays.count() >= MAX_OPEN_REPLAYS:
        raise Conflict(
            format_message("{count} replays are already running.", count=MAX_OPEN_REPLAYS),
            code="too_many_replays",
            remedy="Wait until one finishes.",
        )


def _build_replay(principal: Principal, recording: Recording, overrides: ReplayOverrides) -> Replay:
    organization_id = recording.organization_id
    endpoint: ModelEndpoint | None = None
    changes: dict[str, Any] = {}
    if overrides.instructions is not None:
        changes["instructions"] = make_storable(
            _clean_instructions(overrides.instructions, organization_id)
        )
    if overrides.endpoint is not None:
        endpoint = _get_endpoint(organization_id, overrides.endpoint)
        changes["endpoint"] = overrides.endpoint
    rules = None
    if overrides.policy is not None:
        rules = build_policy(recording.agent, overrides.policy).as_dict()
        changes["policy"] = overrides.policy.as_dict()
    return Replay(
        organization_id=organization_id,
        recording=recording,
        changed=changes,
        rules=rules,
        endpoint=endpoint,
        started_by_kind=principal.kind,
        started_by_id=principal.id,
        started_by=principal.label,
    )


def _get_endpoint(organization_id: UUID, slug: str) -> ModelEndpoint:
    endpoint = ModelEndpoint.objects.for_organization(organization_id).filter(slug=slug).first()
    if endpoint is None:
        raise NotFound(
            format_message("The model endpoint {slug!r} doesn't exist.", slug=slug),
            field="endpoint",
            remedy="List them with: bonobot models list",
        )
    return endpoint


def _clean_instructions(text: str, organization_id: UUID) -> str:
    if len(text) > MAX_INSTRUCTIONS_LENGTH:
        raise InvalidInput(
            format_message("The instructions have {count:,} characters.", count=len(text)),
            field="instructions",
            remedy=format_message(
                "Use at most {longest_instructions:,} characters.",
                longest_instructions=MAX_INSTRUCTIONS_LENGTH,
            ),
        )
    return mask_organization_secrets(text, organization_id)


def claim_replay(replay_id: UUID, runner_id: UUID) -> ReplayLease | None:
    """Claim a queued or abandoned replay; return None if it isn't claimable."""
    claimable = Replay.objects.filter(_build_claimable_filter(), pk=replay_id)
    fence = claimable.values_list("fence", flat=True).first()
    if fence is None:
        return None
    lease = ReplayLease(replay_id, runner_id, fence + 1)
    # The fence in the condition makes two claims of the same state exclude each other.
    is_claimed = claimable.filter(fence=fence).update(
        runner_id=runner_id,
        fence=F("fence") + 1,
        status=Replay.Status.RUNNING,
        updated_at=timezone.now(),
    )
    if not is_claimed:
        return None
    if fence >= MAX_ATTEMPTS:
        fail_replay(lease, Problem("Its worker stopped on every attempt.", code="replay_lost"))
        return None
    return lease


def list_stalled_replays(min_queued_time: timedelta = timedelta(seconds=10)) -> list[UUID]:
    """Return the ids of replays that should be running but aren't."""
    long_queued = Q(status=Replay.Status.QUEUED, updated_at__lt=timezone.now() - min_queued_time)
    stalled = Replay.objects.filter(long_queued | _build_abandoned_filter())
    return list(stalled.values_list("pk", flat=True)[:100])


def release_replay(lease: ReplayLease) -> None:
    """Requeue a replay that this process can't finish."""
    now = timezone.now()
    if _filter_leased(lease).update(status=Replay.Status.QUEUED, runner=None, updated_at=now):
        enqueue_task_on_commit(REPLAY_TASK, str(lease.replay_id))


def complete_replay(lease: ReplayLease, transcript: Transcript) -> None:
    """Save the result of a replay, unless its lease was lost."""
    replay_row = Replay.objects.select_related("recording").get(pk=lease.replay_id)
    differences = compare_transcripts(
        Transcript.from_dict(replay_row.recording.conversation), transcript
    )
    _finish_replay(
        lease,
        status=Replay.Status.DONE,
        conversation=make_storable(transcript.to_dict()),
        differences=make_storable([asdict(difference) for difference in differences]),
        differs=bool(differences),
        tokens=transcript.tokens,
        cost_microusd=transcript.cost_microusd,
    )


def fail_replay(lease: ReplayLease, problem: Problem) -> None:
    """Save the error of a replay that ended without a result."""
    detail = f"{problem} {problem.remedy}".strip()
    _finish_replay(lease, status=Replay.Status.FAILED, error_code=problem.code, error_detail=detail)


def _finish_replay(lease: ReplayLease, **values: Any) -> None:
    now = timezone.now()
    with transaction.atomic():
        if not _filter_leased(lease).update(runner=None, finished_at=now, updated_at=now, **values):
            return
        same_recording = Replay.objects.filter(recording__replays=lease.replay_id)
        finished_replays = same_recording.exclude(finished_at=None).order_by("-created_at")
        Replay.objects.filter(
            pk__in=list(finished_replays.values_list("pk", flat=True)[MAX_FINISHED_REPLAYS:])
        ).delete()


def _filter_leased(lease: ReplayLease) -> Any:
    return Replay.objects.filter(
        pk=lease.replay_id,
        runner_id=lease.runner_id,
        fence=lease.fence,
        status=Replay.Status.RUNNING,
    )


def _build_claimable_filter() -> Q:
    return Q(status=Replay.Status.QUEUED) | _build_abandoned_filter()


def _build_abandoned_filter() -> Q:
    without_runner = Q(runner=None) | Q(runner__stopped_at__isnull=False)
    return Q(status=Replay.Status.RUNNING) & (
        without_runner | Q(runner__heartbeat_at__lt=get_heartbeat_deadline())
    )


def load_replay_context(replay_id: UUID) -> ReplayContext:
    """Load the data of a replay; raises `NotFound` (`endpoint_gone`)."""
    rows = Replay.objects.select_related(
        "recording__agent__model_endpoint", "recording__model_endpoint", "endpoint"
    )
    replay = rows.get(pk=replay_id)
    agent = replay.recording.agent
    if replay.changed.get("endpoint") and replay.endpoint is None:
        raise NotFound(
            format_message(
                "The model endpoint {endpoint!r} was deleted.", endpoint=replay.changed["endpoint"]
            ),
            code="endpoint_gone",
            field="endpoint",
            remedy="Replay it with another model endpoint.",
        )
    transcript = Transcript.from_dict(replay.recording.conversation)
    first_endpoint = replay.endpoint or replay.recording.effective_endpoint
    masker = load_masker(replay.organization_id)
    return ReplayContext(
        replay_id=replay.pk,
        agent=agent,
        actor=Actor(
            cast(ActorKind, replay.started_by_kind), replay.started_by_id, replay.started_by
        ),
        recorded_transcript=transcript,
        overrides=replay.changed,
        policy_rules=replay.rules,
        endpoints=tuple(
            fill_context_window(build_endpoint(endpoint))
            for endpoint in build_fallback_chain(first_endpoint)
        ),
        recorded_results=RecordedResults(transcript, masker.mask_value),
    )


async def replay_messages(context: ReplayContext) -> Transcript:
    """Send the recorded messages in order and return the transcript.

    The replay ends with the first message that reaches a limit or whose model fails; the entry has
    the code. Raises what `request_budget.reserve` raises.
    """
    replay_steps = ReplaySteps()
    for entry in context.recorded_transcript.exchanges:
        replay_steps.add_step(Step.Kind.MESSAGE, dict(entry.message))
        try:
            async with asyncio.timeout(context.agent.max_run_s):
                await _run_turns(context, replay_steps)
        except TimeoutError:
            replay_steps.add_step(Step.Kind.END, {"code": "time_exhausted"})
            break
        except (RunLimitExceeded, OutputSchemaViolation, llm_interface.ModelError) as problem:
            replay_steps.add_step(Step.Kind.END, {"code": problem.code})
            break
        replay_steps.add_step(Step.Kind.END, {})
    return _complete_transcript(context, replay_steps)


def _complete_transcript(context: ReplayContext, replay_steps: ReplaySteps) -> Transcript:
    """Return the transcript with the messages that were not sent, masked for storage."""
    transcript = replay_steps.transcript
    remaining = context.recorded_transcript.exchanges[len(transcript.exchanges) :]
    unsent_entries = tuple(TranscriptEntry(entry.message, code="not_told") for entry in remaining)
    document = Transcript((*transcript.exchanges, *unsent_entries)).to_dict()
    return Transcript.from_dict(redact_value(document, context.agent.organization_id, None))


async def _run_turns(context: ReplayContext, replay_steps: ReplaySteps) -> None:
    """Request turns until the model answers.

    Raises `RunLimitExceeded`, `OutputSchemaViolation` or `ModelError`.
    """
    while True:
        history = replay_steps.history
        check_turn_limit(context.agent, history)
        next_request = find_next_request(
            context.endpoints, history.failures, answered_by=history.answered_by
        )
        if next_request is None:
            raise llm_interface.ModelError("No model answered.", code=history.failures[-1].code)
        await asyncio.sleep(next_request.wait_s)
        snapshot = await get_runtime().run_orm(_load_snapshot, context)
        try:
            reply = await _request_turn(
                context, replay_steps, history, snapshot, next_request.endpoint
            )
        except llm_interface.ModelError as problem:
            failure = problem.as_dict() | {"retryable": problem.retryable}
            failure["endpoint"] = {"id": next_request.endpoint.id}
            replay_steps.add_step(
                Step.Kind.MODEL, failure, state=Step.State.FAILED, turn=history.turn + 1
            )
            continue
        for call in reply.calls:
            _add_call_step(context, replay_steps, snapshot, call)
        if not reply.calls:
            _, correction = await check_final_answer(
                context.get_output_schema(history), reply.text, history.rejected_count
            )
            if correction is None:
                return
            replay_steps.add_step(Step.Kind.NOTICE, dict(correction), turn=history.turn + 1)


def _load_snapshot(context: ReplayContext) -> CallSnapshot:
    """Return the current snapshot, with the policy of the replay applied."""
    snapshot = get_snapshot_cache().load_current("agent", context.agent.pk)
    return apply_policy(
        snapshot, read_policy(context.policy_rules) if context.policy_rules else None
    )


def _add_call_step(
    context: ReplayContext,
    replay_steps: ReplaySteps,
    snapshot: CallSnapshot,
    call: llm_interface.ToolCall,
) -> None:
    """Add the step of a call with its recorded result; nothing is called."""
    result = context.recorded_results.resolve_call(snapshot, call.name, call.arguments)
    if call.arguments is None and not result.text:
        text = f"The arguments are not a JSON object: {call.raw_arguments[:200]}"
        result = replace(result, text=text, ok=False, code="invalid_arguments")
    step = replay_steps.add_step(
        Step.Kind.CALL,
        {
            "name": call.name,
            "arguments": call.arguments,
            "text": result.text,
            "code": result.code,
            # As in sessions: what is denied names the rule.
            **({"rule": result.rule} if result.verdict == "deny" else {}),
            **result.extra,
        },
        state=Step.State.DONE if result.ok else Step.State.FAILED,
        turn=replay_steps.last_turn,
        index=call.index,
    )
    replay_steps.decisions[str(step.call_id)] = RecordedDecision(result.verdict, result.rule)


async def _request_turn(
    context: ReplayContext,
    replay_steps: ReplaySteps,
    history: SessionHistory,
    snapshot: CallSnapshot,
    endpoint: llm_interface.ModelEndpointConfig,
) -> llm_interface.ModelReply:
    """Request one turn from the model, reserving its cost before and settling it after."""
    request = await _build_request(context, history, snapshot, endpoint)
    call_id = uuid4()
    reservation_request = ReservationRequest(
        context.replay_id,
        endpoint=endpoint,
        estimate=estimate_tokens(request.messages, request.instructions, request.tools),
        build_opening=partial(
            build_opening,
            call_id,
            endpoint,
            details={"replay_id": str(context.replay_id), "turn": history.turn + 1},
            action=AUDIT_ACTION,
            actor=context.actor,
            rule="turn",
        ),
        last_turn=history.last_turn,
    )
    reservation = await reserve_model_request(reservation_request, snapshot)
    request = replace(request, max_tokens=reservation.max_tokens)
    send_request = partial(llm_interface.build_model(endpoint).request, request)
    reply, cost = await _fetch_reply(send_request, call_id, endpoint, reservation)
    check_reply_not_empty(endpoint, reply)
    check_call_limit(context.agent, history, len(reply.calls))
    replay_steps.add_step(
        Step.Kind.MODEL,
        _build_turn_payload(reply, endpoint, reservation, cost),
        turn=history.turn + 1,
    )
    return reply


async def _build_request(
    context: ReplayContext,
    history: SessionHistory,
    snapshot: CallSnapshot,
    endpoint: llm_interface.ModelEndpointConfig,
) -> llm_interface.LanguageModelRequest:
    shown_tools = snapshot.list_shown_tools(history.found_tools)
    output_schema = context.get_output_schema(history)
    instructions = build_instructions(
        context.instructions,
        snapshot,
        (),
        shown_tools=shown_tools,
        native_tools=endpoint.native_tools,
        output_schema=output_schema,
    )
    return llm_interface.LanguageModelRequest(
        await _load_attachments(context, history, endpoint),
        instructions,
        build_tool_specs(shown_tools),
        output_schema=output_schema,
    )


async def _load_attachments(
    context: ReplayContext,
    history: SessionHistory,
    endpoint: llm_interface.ModelEndpointConfig,
) -> Sequence[llm_interface.Message]:
    """Return the messages with the images and files that the model sees."""
    messages: Sequence[llm_interface.Message] = history.messages
    if not any("images" in message or "files" in message for message in messages):
        return messages
    return await get_runtime().run_orm(
        build_model_messages,
        context.agent.organization_id,
        messages,
        image_input=endpoint.image_input,
        pdf_input=endpoint.pdf_input,
    )


async def _fetch_reply(
    request: Callable[[], Awaitable[llm_interface.ModelReply]],
    call_id: UUID,
    endpoint: llm_interface.ModelEndpointConfig,
    reservation: ModelReservation,
) -> tuple[llm_interface.ModelReply, int]:
    """Return the reply and its cost; the reservation is always settled."""
    organization_id, started_at = reservation.snapshot.organization_id, perf_counter()
    settle_call = partial(
        settle_model_request,
        call_id,
        organization_id,
        endpoint,
        reservation.reservations,
        started_at=started_at,
    )
    try:
        reply = await request()
    except Problem as problem:
        await settle_call(outcome="error", usage=None, code=problem.code)
        raise
    except asyncio.CancelledError:
        await asyncio.shield(settle_call(outcome="cancelled", usage=None, code="cancelled"))
        raise
    return reply, await settle_call(outcome="ok", usage=reply.usage)


def _build_turn_payload(
    reply: llm_interface.ModelReply,
    endpoint: llm_interface.ModelEndpointConfig,
    reservation: ModelReservation,
    cost: int,
) -> dict[str, Any]:
    return {
        "text": reply.text,
        "message": reply.message,
        "endpoint": {"id": endpoint.id, "name": endpoint.title},
        "usage": asdict(reply.usage or llm_interface.TokenUsage(0, 0)),
        "usage_known": reply.usage is not None,
        "estimated_input_tokens": reservation.estimate,
        "cost_microusd": cost,
    }


async def run_replay(replay_id: UUID) -> None:
    """Claim a replay and run it; the result is saved in its row."""
    await get_session_runner().start()
    runner_id = get_session_runner().runner_id
    if runner_id is None:
        return
    lease = await get_runtime().run_orm(claim_replay, replay_id, runner_id)
    if lease is not None:
        await _run_claimed_replay(lease)


async def _run_claimed_replay(lease: ReplayLease) -> None:
    orm = get_runtime().run_orm
    try:
        context = await orm(load_replay_context, lease.replay_id)
        transcript = await replay_messages(context)
    except asyncio.CancelledError:
        await asyncio.shield(orm(release_replay, lease))
        raise
    except (*UNAVAILABLE_ERRORS, AuditUnavailable) as error:
        logger.warning("replay %s stands still: %s", lease.replay_id, error)
        await run_orm_with_retry(release_replay, lease)
    except Problem as problem:
        await run_orm_with_retry(fail_replay, lease, problem)
    except Exception:
        # The top of a worker's task: no caller could report the error.
        logger.exception("replay %s ended by a fault", lease.replay_id)
        remedy = "Replay it again. If it fails again, contact the administrator."
        await run_orm_with_retry(fail_replay, lease, InternalError(remedy=remedy))
    else:
        await run_orm_with_retry(complete_replay, lease, transcript)


def apply_policy(snapshot: CallSnapshot, policy: Policy | None) -> CallSnapshot:
    """Return an agent's snapshot under another tool policy; None keeps the current one."""
    if policy is None:
        return snapshot
    effective_policy = replace(snapshot.effective_policy, policy=policy)
    tools = {name: decide_tool(tool, effective_policy) for name, tool in snapshot.tools.items()}
    return replace(snapshot, tools=tools, effective_policy=effective_policy)
