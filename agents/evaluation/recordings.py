"""Recordings: made of sessions that rest, kept for an agent, removed (FEATURES X7)."""

from collections.abc import Iterable
from typing import Any

from django.db import IntegrityError, transaction

from agents.evaluation.conversations import Conversation, Ruled, conversation
from agents.governance.replaying import RULED
from agents.models import Recording, Session, Step, WorkflowRun
from bonobot.ledger.changes import change
from bonobot.ledger.models import AuditRow
from bonobot.lib.canonical import canonical
from bonobot.lib.known_secrets import read_masker
from bonobot.lib.problems import Conflict, Invalid
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import storable
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action

# Of one conversation as JSON, in bytes; of one agent, in recordings.
LONGEST = 1024 * 1024
MOST = 200
RESTING = (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)
# Refusals that follow from rules, switches or definitions. Any other (a limit, arguments that don't
# fit) is what came of an allowed call, and comes again from the recording.
DECIDED = RULED | {
    *("organization_halted", "agent_disabled", "server_disabled", "not_bound", "builtin_off"),
    *("unknown_tool", "not_approved", "definition_changed", "definition_refused", "tool_gone"),
}


def record(principal: Principal, session: Session) -> Recording:
    """Keep a session that rests as a recording of its agent.

    Raises `Forbidden`, `Conflict` (`session_busy`, `workflow_run`, `already_recorded`,
    `too_many_recordings`) or `Invalid` (`nothing_to_record`, `recording_too_large`).
    """
    principal.require(Action.MANAGE_AGENTS)
    _recordable(session)
    said = told(session)
    made = _row(principal, session, said)
    with change(
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
    """Remove a recording with its replays."""
    principal.require(Action.MANAGE_AGENTS)
    with change(
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


def told(session: Session) -> Conversation:
    """Return a session as it is recorded, its secrets masked (a few queries)."""
    steps = list(session.steps.order_by("seq"))
    found = conversation(steps, _ruled(steps))
    masker = read_masker(session.organization_id)
    return Conversation.read(storable(masker.value(found.as_dict())))


def _recordable(session: Session) -> None:
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
            say("The agent has {most} recordings, which is the most.", most=MOST),
            code="too_many_recordings",
            remedy="Remove some that are of no use any more.",
        )


def _row(principal: Principal, session: Session, said: Conversation) -> Recording:
    if not said.turns:
        raise Invalid(
            "No model answered in this session.",
            code="nothing_to_record",
            field="session_id",
            remedy="Record a session with at least one answer.",
        )
    content = said.as_dict()
    size = len(canonical(content))
    if size > LONGEST:
        raise Invalid(
            say(
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


def _ruled(steps: Iterable[Step]) -> dict[str, Ruled]:
    """Return how the audit says that calls were decided (one query)."""
    ids = [one.call_id for one in steps if one.kind == Step.Kind.CALL and one.call_id]
    rows: Any = AuditRow.objects.filter(pk__in=ids).values_list("pk", "decision", "rule", "code")
    return {str(pk): _verdict(decision, rule, code) for pk, decision, rule, code in rows}


def _verdict(decision: str, rule: str, code: str) -> Ruled:
    if code.startswith("approval_"):
        return Ruled("ask", rule)  # a person was asked, whatever they said
    if decision == AuditRow.Decision.DENY and code not in DECIDED:
        return Ruled("allow", rule)
    return Ruled(decision, rule)
