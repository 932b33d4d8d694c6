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

from agents.evaluation.transcripts import (
    RecordedDecision,
    Transcript,
    build_transcript,
    compare_transcripts,
)
from agents.models import ModelEndpoint, Recording, Replay, Session, Step, WorkflowRun
from agents.policies.compare_decisions import RULED
from agents.policies.services import PolicySpec
from agents.policies.shadow_mode import build_policy
from agents.sessions.leases import get_heartbeat_deadline
from agents.sessions.services import require_run
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.celery_tasks import enqueue_task_on_commit
from bonobot.core.crypto.organization_secrets import mask_organization_secrets, read_masker
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput, NotFound, Problem
from bonobot.core.text.canonical_json import to_canonical_json
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.audit.admin_changes import record_change
from bonobot.ledger.models import AuditRow

PLAY = "agents.tasks.play_recording"
# Finished replays per recording, and open replays per organization.
KEPT = 50
MOST_OPEN = 10
# A replay that was claimed this often without finishing has failed.
TRIES = 10
LONGEST_INSTRUCTIONS = 100_000


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


def replay(principal: Principal, recording: Recording, changed: ReplayOverrides) -> Replay:
    """Create a replay of a recording and enqueue it.

    Raises `Forbidden`, `NotFound` (the endpoint), `InvalidInput` with the field, or `Conflict`
    (`too_many_replays`).
    """
    principal.require(Action.MANAGE_AGENTS)
    agent = recording.agent
    require_run(principal, agent)
    made = _build_replay(principal, recording, changed)
    with record_change(
        organization_id=recording.organization_id,
        actor=principal.actor,
        action="recording_replayed",
        resource_type="recording",
        resource_id=str(recording.pk),
        resource_name=recording.title,
        details={"replay_id": str(made.pk), "agent": agent.slug, "changed": sorted(made.changed)},
        governed=False,
    ):
        made.save(force_insert=True)
    enqueue_task_on_commit(PLAY, str(made.pk))
    return made


def _build_replay(principal: Principal, recording: Recording, changed: ReplayOverrides) -> Replay:
    owner = recording.organization_id
    open_now = Replay.objects.for_organization(owner).filter(
        status__in=(Replay.Status.QUEUED, Replay.Status.RUNNING)
    )
    if open_now.count() >= MOST_OPEN:
        raise Conflict(
            format_message("{most_open} replays are being made already.", most_open=MOST_OPEN),
            code="too_many_replays",
            remedy="Wait until one has ended.",
        )
    endpoint: ModelEndpoint | None = None
    said: dict[str, Any] = {}
    if changed.instructions is not None:
        said["instructions"] = make_storable(_clean_instructions(changed.instructions, owner))
    if changed.endpoint is not None:
        endpoint = _get_endpoint(owner, changed.endpoint)
        said["endpoint"] = changed.endpoint
    rules = None
    if changed.policy is not None:
        rules = build_policy(recording.agent, changed.policy).as_dict()
        said["policy"] = changed.policy.as_dict()
    return Replay(
        organization_id=owner,
        recording=recording,
        changed=said,
        rules=rules,
        endpoint=endpoint,
        started_by_kind=principal.kind,
        started_by_id=principal.id,
        started_by=principal.label,
    )


def _get_endpoint(owner: UUID, slug: str) -> ModelEndpoint:
    found = ModelEndpoint.objects.for_organization(owner).filter(slug=slug).first()
    if found is None:
        raise NotFound(
            format_message("There is no model endpoint {slug!r}.", slug=slug),
            field="endpoint",
            remedy="List them with: bonobot models list",
        )
    return found


def _clean_instructions(text: str, owner: UUID) -> str:
    if len(text) > LONGEST_INSTRUCTIONS:
        raise InvalidInput(
            format_message("The instructions have {count:,} characters.", count=len(text)),
            field="instructions",
            remedy=format_message(
                "Write {longest_instructions:,} at most.", longest_instructions=LONGEST_INSTRUCTIONS
            ),
        )
    return mask_organization_secrets(text, owner)


def claim(replay_id: UUID, runner_id: UUID) -> ReplayLease | None:
    """Claim a queued or abandoned replay; return None if it isn't claimable."""
    mine = Replay.objects.filter(_build_claimable_filter(), pk=replay_id)
    fence = mine.values_list("fence", flat=True).first()
    if fence is None:
        return None
    held = ReplayLease(replay_id, runner_id, fence + 1)
    # The fence in the condition makes two claims of the same state exclude each other.
    taken = mine.filter(fence=fence).update(
        runner_id=runner_id,
        fence=F("fence") + 1,
        status=Replay.Status.RUNNING,
        updated_at=timezone.now(),
    )
    if not taken:
        return None
    if fence >= TRIES:
        fail(held, Problem("Its worker ended each time that it ran.", code="replay_lost"))
        return None
    return held


def list_stalled_replays(queued_before: timedelta = timedelta(seconds=10)) -> list[UUID]:
    """Return the ids of replays that should be running but aren't."""
    waiting = Q(status=Replay.Status.QUEUED, updated_at__lt=timezone.now() - queued_before)
    found = Replay.objects.filter(waiting | _build_abandoned_filter())
    return list(found.values_list("pk", flat=True)[:100])


def release_replay(held: ReplayLease) -> None:
    """Requeue a replay that this process can't finish."""
    now = timezone.now()
    if _filter_leased(held).update(status=Replay.Status.QUEUED, runner=None, updated_at=now):
        enqueue_task_on_commit(PLAY, str(held.replay_id))


def end(held: ReplayLease, played: Transcript) -> None:
    """Save the result of a replay, unless its lease was lost."""
    stored = Replay.objects.select_related("recording").get(pk=held.replay_id)
    found = compare_transcripts(Transcript.read(stored.recording.conversation), played)
    _close(
        held,
        status=Replay.Status.DONE,
        conversation=make_storable(played.as_dict()),
        differences=make_storable([asdict(one) for one in found]),
        differs=bool(found),
        tokens=played.tokens,
        cost_microusd=played.cost_microusd,
    )


def fail(held: ReplayLease, problem: Problem) -> None:
    """Save the error of a replay that ended without a result."""
    detail = f"{problem} {problem.remedy}".strip()
    _close(held, status=Replay.Status.FAILED, error_code=problem.code, error_detail=detail)


def _close(held: ReplayLease, **values: Any) -> None:
    now = timezone.now()
    with transaction.atomic():
        if not _filter_leased(held).update(runner=None, finished_at=now, updated_at=now, **values):
            return
        mine = Replay.objects.filter(recording__replays=held.replay_id)
        ended = mine.exclude(finished_at=None).order_by("-created_at")
        Replay.objects.filter(pk__in=list(ended.values_list("pk", flat=True)[KEPT:])).delete()


def _filter_leased(held: ReplayLease) -> Any:
    return Replay.objects.filter(
        pk=held.replay_id,
        runner_id=held.runner_id,
        fence=held.fence,
        status=Replay.Status.RUNNING,
    )


def _build_claimable_filter() -> Q:
    return Q(status=Replay.Status.QUEUED) | _build_abandoned_filter()


def _build_abandoned_filter() -> Q:
    gone = Q(runner=None) | Q(runner__stopped_at__isnull=False)
    return Q(status=Replay.Status.RUNNING) & (
        gone | Q(runner__beat_at__lt=get_heartbeat_deadline())
    )


# Bytes of a recording as JSON, and recordings per agent.
LONGEST = 1024 * 1024
MOST = 200
RESTING = (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)
# Codes of denials by policy, disabled objects or definitions. Other errors (limits, bad arguments)
# are results of allowed calls, and are replayed from the recording.
DECIDED = RULED | {
    *("organization_halted", "agent_disabled", "server_disabled", "not_bound", "builtin_off"),
    *("unknown_tool", "not_approved", "definition_changed", "definition_refused", "tool_gone"),
}


def record(principal: Principal, session: Session) -> Recording:
    """Create a recording of a finished session.

    Raises `Forbidden`, `Conflict` (`session_busy`, `workflow_run`, `already_recorded`,
    `too_many_recordings`) or `InvalidInput` (`nothing_to_record`, `recording_too_large`).
    """
    principal.require(Action.MANAGE_AGENTS)
    _check_recordable(session)
    said = load_session_transcript(session)
    made = _build_recording(principal, session, said)
    with record_change(
        organization_id=session.organization_id,
        actor=principal.actor,
        action="session_recorded",
        resource_type="recording",
        resource_id=str(made.pk),
        resource_name=made.title,
        details={"session_id": str(session.pk), "agent": session.agent.slug, "calls": made.calls},
        governed=False,
    ):
        try:
            with transaction.atomic():
                made.save(force_insert=True)
        except IntegrityError:
            raise Conflict(
                "This session is recorded already.",
                code="already_recorded",
                field="session_id",
                remedy="Use that recording, or remove it first.",
            ) from None
    return made


def remove(principal: Principal, recording: Recording) -> None:
    """Delete a recording with its replays."""
    principal.require(Action.MANAGE_AGENTS)
    with record_change(
        organization_id=recording.organization_id,
        actor=principal.actor,
        action="recording_removed",
        resource_type="recording",
        resource_id=str(recording.pk),
        resource_name=recording.title,
        details={"session_id": str(recording.session_id)},
        governed=False,
    ):
        recording.delete()


def load_session_transcript(session: Session) -> Transcript:
    """Return a session's transcript with secrets masked (a few queries)."""
    steps = list(session.steps.order_by("seq"))
    found = build_transcript(steps, _load_decisions(steps))
    masker = read_masker(session.organization_id)
    return Transcript.read(make_storable(masker.value(found.as_dict())))


def _check_recordable(session: Session) -> None:
    if session.status not in RESTING:
        raise Conflict(
            "The session hasn't come to rest.",
            code="session_busy",
            field="session_id",
            remedy="Wait until it is done, or cancel it.",
        )
    if WorkflowRun.objects.filter(session=session).exists():
        raise Conflict(
            "This session follows a workflow: no model decides in it.",
            code="workflow_run",
            field="session_id",
            remedy="Record a conversation with an agent.",
        )
    if Recording.objects.filter(agent=session.agent_id).count() >= MOST:
        raise Conflict(
            format_message("The agent has {most} recordings, which is the most.", most=MOST),
            code="too_many_recordings",
            remedy="Remove some that are of no use any more.",
        )


def _build_recording(principal: Principal, session: Session, said: Transcript) -> Recording:
    if not said.turns:
        raise InvalidInput(
            "No model answered in this session.",
            code="nothing_to_record",
            field="session_id",
            remedy="Record a session with at least one answer.",
        )
    content = said.as_dict()
    size = len(to_canonical_json(content))
    if size > LONGEST:
        raise InvalidInput(
            format_message(
                "The session has {size:,} bytes; a recording has {longest:,} at most.",
                size=size,
                longest=LONGEST,
            ),
            code="recording_too_large",
            field="session_id",
            remedy="Record a shorter session.",
        )
    return Recording(
        organization_id=session.organization_id,
        agent=session.agent,
        session_id=session.pk,
        title=session.title,
        conversation=content,
        size=size,
        turns=len(said.turns),
        calls=len(said.calls),
        tokens=said.tokens,
        cost_microusd=said.cost_microusd,
        made_by=principal.label,
    )


def _load_decisions(steps: Iterable[Step]) -> dict[str, RecordedDecision]:
    """Return the decisions about calls from the audit log (one query)."""
    ids = [one.call_id for one in steps if one.kind == Step.Kind.CALL and one.call_id]
    rows: Any = AuditRow.objects.filter(pk__in=ids).values_list("pk", "decision", "rule", "code")
    return {str(pk): _build_decision(decision, rule, code) for pk, decision, rule, code in rows}


def _build_decision(decision: str, rule: str, code: str) -> RecordedDecision:
    if code.startswith("approval_"):
        return RecordedDecision("ask", rule)  # whatever the person answered
    if decision == AuditRow.Decision.DENY and code not in DECIDED:
        return RecordedDecision("allow", rule)
    return RecordedDecision(decision, rule)
