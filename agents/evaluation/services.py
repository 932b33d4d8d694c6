"""Create, claim, complete and delete recordings and replays.

A replay changes nothing outside its row, so one whose runner died is simply run again.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F, Q
from django.utils import timezone

from agents.evaluation.compare_transcripts import (
    RecordedDecision,
    Transcript,
    build_transcript,
    compare_transcripts,
)
from agents.models import ModelEndpoint, Recording, Replay, Session, Step, WorkflowRun
from agents.policies.compare_decisions import POLICY_DENIAL_CODES
from agents.policies.services import PolicySpec
from agents.policies.shadow_mode import build_policy
from agents.sessions.leases import get_heartbeat_deadline
from agents.sessions.services import require_run_permission
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.celery_tasks import enqueue_task_on_commit
from bonobot.core.crypto.organization_secrets import load_masker, mask_organization_secrets
from bonobot.core.db.transactions import lock_row
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput, NotFound, Problem
from bonobot.core.text.canonical_json import to_canonical_json
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.audit.renamed_codes import add_old_codes
from bonobot.ledger.models import AuditRow

REPLAY_TASK = "agents.tasks.run_replay"
# Finished replays per recording, and open replays per organization.
MAX_FINISHED_REPLAYS = 50
MAX_OPEN_REPLAYS = 10
# A replay that was claimed this often without finishing has failed.
MAX_ATTEMPTS = 10
MAX_INSTRUCTIONS_LENGTH = 100_000
# Bytes of a recording as JSON, and recordings per agent.
MAX_RECORDING_BYTES = 1024 * 1024
MAX_RECORDINGS = 200
FINISHED_STATUSES = (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)


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


# Codes of denials by policy, disabled objects or definitions. Other errors (limits, bad arguments)
# are results of allowed calls, and are replayed from the recording.
DECISION_CODES = POLICY_DENIAL_CODES | add_old_codes(
    {
        *(
            "kill_switch_enabled",
            "agent_disabled",
            "server_disabled",
            "not_attached",
            "builtin_disabled",
        ),
        *("unknown_tool", "not_approved", "definition_changed", "definition_rejected", "tool_gone"),
    }
)


def create_recording(principal: Principal, session: Session) -> Recording:
    """Create a recording of a finished session.

    Raises `Forbidden`, `Conflict` (`session_busy`, `workflow_run`, `already_recorded`,
    `too_many_recordings`) or `InvalidInput` (`nothing_to_record`, `recording_too_large`).
    """
    principal.require(Action.MANAGE_AGENTS)
    _check_recordable(session)
    transcript = load_session_transcript(session)
    recording = _build_recording(principal, session, transcript)
    with record_change(
        organization_id=session.organization_id,
        actor=principal.actor,
        action="session_recorded",
        resource_type="recording",
        resource_id=str(recording.pk),
        resource_name=recording.title,
        details={
            "session_id": str(session.pk),
            "agent": session.agent.slug,
            "calls": recording.calls,
        },
        governed=False,
    ):
        lock_row(session.agent)
        _check_recording_limit(session.agent_id)
        try:
            with transaction.atomic():
                recording.save(force_insert=True)
        except IntegrityError:
            raise Conflict(
                "This session is already recorded.",
                code="already_recorded",
                field="session_id",
                remedy="Use that recording, or delete it first.",
            ) from None
    return recording


def delete_recording(principal: Principal, recording: Recording) -> None:
    principal.require(Action.MANAGE_AGENTS)
    with record_change(
        **describe_row("recording", recording, recording.title),
        actor=principal.actor,
        action="recording_deleted",
        details={"session_id": str(recording.session_id)},
        governed=False,
    ):
        recording.delete()


def load_session_transcript(session: Session) -> Transcript:
    """Return a session's transcript with secrets masked (a few queries)."""
    steps = list(session.steps.order_by("seq"))
    transcript = build_transcript(steps, _load_decisions(steps))
    masker = load_masker(session.organization_id)
    return Transcript.from_dict(make_storable(masker.mask_value(transcript.to_dict())))


def _check_recordable(session: Session) -> None:
    if session.status not in FINISHED_STATUSES:
        raise Conflict(
            "The session is still running.",
            code="session_busy",
            field="session_id",
            remedy="Wait until it finishes, or cancel it.",
        )
    if WorkflowRun.objects.filter(session=session).exists():
        raise Conflict(
            "This session runs a workflow, in which no model decides.",
            code="workflow_run",
            field="session_id",
            remedy="Record a session with an agent.",
        )


def _check_recording_limit(agent_id: UUID) -> None:
    if Recording.objects.filter(agent=agent_id).count() >= MAX_RECORDINGS:
        raise Conflict(
            format_message(
                "The agent has {most} recordings, which is the maximum.", most=MAX_RECORDINGS
            ),
            code="too_many_recordings",
            remedy="Delete recordings that are no longer needed.",
        )


def _build_recording(principal: Principal, session: Session, transcript: Transcript) -> Recording:
    if not transcript.turns:
        raise InvalidInput(
            "No model answered in this session.",
            code="nothing_to_record",
            field="session_id",
            remedy="Record a session with at least one answer.",
        )
    document = transcript.to_dict()
    size = len(to_canonical_json(document))
    if size > MAX_RECORDING_BYTES:
        raise InvalidInput(
            format_message(
                "The session has {size:,} bytes. A recording can have at most {longest:,}.",
                size=size,
                longest=MAX_RECORDING_BYTES,
            ),
            code="recording_too_large",
            field="session_id",
            remedy="Record a shorter session.",
        )
    return Recording(
        organization_id=session.organization_id,
        agent=session.agent,
        session_id=session.pk,
        model_endpoint=session.model_endpoint,
        title=session.title,
        conversation=document,
        size=size,
        turns=len(transcript.turns),
        calls=len(transcript.calls),
        tokens=transcript.tokens,
        cost_microusd=transcript.cost_microusd,
        created_by=principal.label,
    )


def _load_decisions(steps: Iterable[Step]) -> dict[str, RecordedDecision]:
    """Return the decisions about calls from the audit log (one query)."""
    ids = [step.call_id for step in steps if step.kind == Step.Kind.CALL and step.call_id]
    rows: Any = AuditRow.objects.filter(pk__in=ids).values_list("pk", "decision", "rule", "code")
    return {str(pk): _build_decision(decision, rule, code) for pk, decision, rule, code in rows}


def _build_decision(decision: str, rule: str, code: str) -> RecordedDecision:
    if code.startswith("approval_"):
        return RecordedDecision("ask", rule)  # regardless of the person's answer
    if decision == AuditRow.Decision.DENY and code not in DECISION_CODES:
        return RecordedDecision("allow", rule)
    return RecordedDecision(decision, rule)
