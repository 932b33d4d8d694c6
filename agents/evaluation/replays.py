"""Replays as rows: asked for, taken by a runner, begun anew where that one is gone, ended.

A replay changes nothing outside its row, so what a dead runner had begun is simply done again.
"""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from agents.drafts import written_policy
from agents.evaluation.conversations import Conversation
from agents.evaluation.differences import differences
from agents.models import ModelEndpoint, Recording, Replay
from agents.sessions.requests import require_run
from agents.sessions.runners import deadline
from agents.tool_policies import PolicyText
from bonobot.ledger.changes import change
from bonobot.lib.known_secrets import without_secrets
from bonobot.lib.nudges import nudge
from bonobot.lib.problems import Conflict, Invalid, NotFound, Problem
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import storable
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action

PLAY = "agents.tasks.play_recording"
# Of one recording, in replays that ended; of one organization, in such that didn't.
KEPT = 50
MOST_OPEN = 10
# A replay that was begun so often without an end isn't begun again.
TRIES = 10
LONGEST_INSTRUCTIONS = 100_000


@dataclass(frozen=True)
class Change:
    """What is otherwise in a replay; None: as it is now."""

    instructions: str | None = None
    endpoint: str | None = None
    policy: PolicyText | None = None


@dataclass(frozen=True)
class Held:
    """A runner's right to write a replay."""

    replay_id: UUID
    runner_id: UUID
    fence: int


def replay(principal: Principal, recording: Recording, changed: Change) -> Replay:
    """Have a recording replayed; a worker takes it from here.

    Raises `Forbidden`, `NotFound` (the endpoint), `Invalid` naming what can't be tried, or
    `Conflict` (`too_many_replays`).
    """
    principal.require(Action.MANAGE_AGENTS)
    agent = recording.agent
    require_run(principal, agent)
    made = _row(principal, recording, changed)
    with change(
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
    nudge(PLAY, str(made.pk))
    return made


def _row(principal: Principal, recording: Recording, changed: Change) -> Replay:
    owner = recording.organization_id
    open_now = Replay.objects.for_organization(owner).filter(
        status__in=(Replay.Status.QUEUED, Replay.Status.RUNNING)
    )
    if open_now.count() >= MOST_OPEN:
        raise Conflict(
            say("{most_open} replays are being made already.", most_open=MOST_OPEN),
            code="too_many_replays",
            remedy="Wait until one has ended.",
        )
    endpoint: ModelEndpoint | None = None
    said: dict[str, Any] = {}
    if changed.instructions is not None:
        said["instructions"] = storable(_checked(changed.instructions, owner))
    if changed.endpoint is not None:
        endpoint = _endpoint(owner, changed.endpoint)
        said["endpoint"] = changed.endpoint
    rules = None
    if changed.policy is not None:
        rules = written_policy(recording.agent, changed.policy).as_dict()
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


def _endpoint(owner: UUID, slug: str) -> ModelEndpoint:
    found = ModelEndpoint.objects.for_organization(owner).filter(slug=slug).first()
    if found is None:
        raise NotFound(
            say("There is no model endpoint {slug!r}.", slug=slug),
            field="endpoint",
            remedy="List them with: bonobot models list",
        )
    return found


def _checked(text: str, owner: UUID) -> str:
    if len(text) > LONGEST_INSTRUCTIONS:
        raise Invalid(
            say("The instructions have {count:,} characters.", count=len(text)),
            field="instructions",
            remedy=say(
                "Write {longest_instructions:,} at most.", longest_instructions=LONGEST_INSTRUCTIONS
            ),
        )
    return without_secrets(text, owner)


def claim(replay_id: UUID, runner_id: UUID) -> Held | None:
    """Take a replay that waits, or whose runner is gone; None: it needs nobody."""
    mine = Replay.objects.filter(_free(), pk=replay_id)
    fence = mine.values_list("fence", flat=True).first()
    if fence is None:
        return None
    held = Held(replay_id, runner_id, fence + 1)
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


def forgotten(queued_before: timedelta = timedelta(seconds=10)) -> list[UUID]:
    """Return replays that nobody makes although someone should."""
    waiting = Q(status=Replay.Status.QUEUED, updated_at__lt=timezone.now() - queued_before)
    found = Replay.objects.filter(waiting | _abandoned())
    return list(found.values_list("pk", flat=True)[:100])


def hand_back(held: Held) -> None:
    """Queue a replay again that this process can't end, since it is told to stop."""
    now = timezone.now()
    if _mine(held).update(status=Replay.Status.QUEUED, runner=None, updated_at=now):
        nudge(PLAY, str(held.replay_id))


def end(held: Held, played: Conversation) -> None:
    """Write what came of a replay; nothing, where somebody else makes it by now."""
    stored = Replay.objects.select_related("recording").get(pk=held.replay_id)
    found = differences(Conversation.read(stored.recording.conversation), played)
    _close(
        held,
        status=Replay.Status.DONE,
        conversation=storable(played.as_dict()),
        differences=storable([asdict(one) for one in found]),
        differs=bool(found),
        tokens=played.tokens,
        cost_microusd=played.cost_microusd,
    )


def fail(held: Held, problem: Problem) -> None:
    """Write why a replay ended without a result."""
    detail = f"{problem} {problem.remedy}".strip()
    _close(held, status=Replay.Status.FAILED, error_code=problem.code, error_detail=detail)


def _close(held: Held, **values: Any) -> None:
    now = timezone.now()
    with transaction.atomic():
        if not _mine(held).update(runner=None, finished_at=now, updated_at=now, **values):
            return
        mine = Replay.objects.filter(recording__replays=held.replay_id)
        ended = mine.exclude(finished_at=None).order_by("-created_at")
        Replay.objects.filter(pk__in=list(ended.values_list("pk", flat=True)[KEPT:])).delete()


def _mine(held: Held) -> Any:
    return Replay.objects.filter(
        pk=held.replay_id,
        runner_id=held.runner_id,
        fence=held.fence,
        status=Replay.Status.RUNNING,
    )


def _free() -> Q:
    return Q(status=Replay.Status.QUEUED) | _abandoned()


def _abandoned() -> Q:
    gone = Q(runner=None) | Q(runner__stopped_at__isnull=False)
    return Q(status=Replay.Status.RUNNING) & (gone | Q(runner__beat_at__lt=deadline()))
