"""What others may ask of a session: start one, send a message, cancel. They write inbox rows."""

from pathlib import Path
from typing import Any

from django.db import transaction
from django.utils import timezone

from agents.governance.policies import agent_stage
from agents.governance.rulings import switches_of
from agents.models import Agent, Inbox, Session
from agents.sessions.nudges import nudge
from bonobot.ledger.changes import change
from bonobot.lib.known_secrets import without_secrets
from bonobot.lib.problems import Conflict, Forbidden, Invalid, NotFound
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action, Role

MESSAGE_LENGTH = 100_000
TITLE_LENGTH = 80


def start(principal: Principal, agent: Agent, text: str, *, working_dir: str = "") -> Session:
    """Start a session with a first message; a worker takes it from here.

    Raises `Forbidden`, `NotFound` (an agent that isn't the principal's), `Invalid` (empty text),
    `Conflict` (codes `organization_halted`, `agent_disabled`).
    """
    _may_start(principal, agent)
    _checked(text)
    text = without_secrets(text, agent.organization_id)
    session = Session(
        organization_id=agent.organization_id,
        agent=agent,
        title=" ".join(text.split())[:TITLE_LENGTH],
        started_by_kind=principal.kind,
        started_by_id=principal.id,
        started_by=principal.label,
        token_id=principal.token_id,
        working_dir=_working_dir(principal, working_dir),
    )
    with change(
        organization_id=agent.organization_id,
        actor=principal.actor,
        action="session_started",
        resource_type="session",
        resource_id=str(session.pk),
        resource_name=session.title,
        details={"agent_id": str(agent.pk), "agent": agent.slug},
        governed=False,
    ):
        session.save()
        _leave(principal, session, Inbox.Kind.MESSAGE, {"text": text})
    nudge(session.pk)
    return session


def send(principal: Principal, session: Session, text: str) -> None:
    """Add a message to a session; a resting one is queued again."""
    _may_start(principal, session.agent)
    _checked(text)
    text = without_secrets(text, session.organization_id)
    with transaction.atomic():
        # The session's row is locked first, as by the holder that brings it to rest: one of the
        # two comes second and sees what the other did, so that no message is left lying.
        Session.objects.filter(pk=session.pk).update(updated_at=timezone.now())
        _leave(principal, session, Inbox.Kind.MESSAGE, {"text": text})
        resting = (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)
        Session.objects.filter(pk=session.pk, status__in=resting).update(
            status=Session.Status.QUEUED,
            error_code="",
            error_detail="",
            finished_at=None,
            updated_at=timezone.now(),
        )
    nudge(session.pk)


def cancel(principal: Principal, session: Session) -> bool:
    """Ask for a session to be cancelled; tell whether there was anything to cancel."""
    require_run(principal, session.agent)
    return end(principal, session)


def end(principal: Principal, session: Session, why: str = "") -> bool:
    """Have a session cancelled, whoever may do so having been asked; `why` is told to people."""
    now = timezone.now()
    with transaction.atomic():
        mine = Session.objects.filter(pk=session.pk)
        # One that nobody ever held has begun nothing; what others began, a holder has to close.
        untouched = mine.filter(status=Session.Status.QUEUED, fence=0)
        ended = {"status": Session.Status.CANCELLED, "error_detail": why}
        if untouched.update(**ended, finished_at=now, updated_at=now):
            Inbox.objects.filter(session=session, taken_at=None).update(taken_at=now)
            return True
        mine.filter(status=Session.Status.WAITING).update(
            status=Session.Status.QUEUED, updated_at=now
        )
        if not mine.unfinished().exists():
            return False
        _leave(principal, session, Inbox.Kind.CANCEL, {"why": why} if why else {})
        nudge(session.pk)
        return True


def may_run(principal: Principal, agent: Agent) -> bool:
    """Tell whether the principal may run this agent: members need it given to them."""
    if agent.organization_id != principal.organization_id:
        return False
    if principal.agent_id not in (None, agent.pk) or not principal.may(Action.RUN_AGENTS):
        return False
    if principal.platform_admin or principal.role != Role.MEMBER:
        return True
    if principal.kind == "token":
        return principal.agent_id == agent.pk
    return agent.members.filter(pk=principal.id).exists()


def require_run(principal: Principal, agent: Agent) -> None:
    """Raise `NotFound` or `Forbidden` unless the principal may run this agent."""
    if agent.organization_id != principal.organization_id:
        raise NotFound(f"There is no agent {str(agent.pk)!r} here.", field="agent")
    if not may_run(principal, agent):
        raise Forbidden(
            f"You may not run the agent `{agent.slug}`.",
            rule="role:run_agents",
            remedy="An operator or owner can give it to you.",
        )


def _may_start(principal: Principal, agent: Agent) -> None:
    require_run(principal, agent)
    found = agent_stage(switches_of(agent))
    if not found.allows:
        raise Conflict(found.reason, code=found.code, rule=found.rule, remedy=found.remedy)


def _checked(text: str) -> None:
    if not text.strip():
        raise Invalid(
            "The message is empty.", field="message", remedy="Write what the agent is to do."
        )
    if len(text) > MESSAGE_LENGTH:
        raise Invalid(
            f"The message has {len(text)} characters.",
            field="message",
            remedy=f"At most {MESSAGE_LENGTH} are taken.",
        )


def _working_dir(principal: Principal, path: str) -> str:
    """Return the absolute folder; only a platform administrator attaches one."""
    if not path:
        return ""
    if not principal.platform_admin:
        raise Forbidden(
            "Only a platform administrator may attach a folder of this host.",
            rule="platform_admin",
            remedy="Leave `working_dir` out.",
        )
    folder = Path(path).expanduser().resolve()
    if not folder.is_dir():
        raise Invalid(
            f"There is no folder {str(folder)!r}.",
            field="working_dir",
            remedy="Name an existing folder.",
        )
    return str(folder)


def _leave(principal: Principal, session: Session, kind: str, payload: dict[str, Any]) -> None:
    Inbox.objects.create(
        session=session,
        kind=kind,
        payload=payload,
        actor_kind=principal.kind,
        actor_id=principal.id,
        actor=principal.label,
    )
