"""Answer calls that wait for a person: yes once, yes for this session, or no (FEATURES X4)."""

from typing import Literal
from uuid import UUID

from django.utils import timezone

from agents.models import Approval, SessionGrant
from agents.sessions.nudges import wake
from bonobot.ledger.actors import Actor
from bonobot.ledger.changes import Event, change
from bonobot.ledger.models import PermitRow
from bonobot.lib.problems import Conflict, Forbidden, Invalid
from bonobot.lib.sayings import say
from bonobot.tenancy.models import Organization, Token
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action

Answer = Literal["approve", "approve_session", "deny"]
ANSWERS: tuple[Answer, ...] = ("approve", "approve_session", "deny")
WORD_LENGTH = 2_000
MICROSECONDS = 1_000_000
ANSWER = Event("approval")
SYSTEM = Actor(kind="system", id="approvals", label="approvals")


def answer(principal: Principal, approval: Approval, said: str, word: str = "") -> Approval:
    """Answer a question; `word` is told to the model with a no. The session goes on by itself.

    Raises `Forbidden` (the role; or one's own call, where the organization says so: `own_call`),
    `Conflict` (`already_answered`, `approval_expired`) or `Invalid`.
    """
    principal.require(Action.APPROVE_CALLS)
    _checked(principal, approval, said, word)
    yes = said != "deny"
    with change(
        event=ANSWER,
        organization_id=approval.organization_id,
        actor=principal.actor,
        action="call_approved" if yes else "call_denied",
        resource_type="approval",
        resource_id=str(approval.pk),
        resource_name=approval.label,
        details={
            "call_id": str(approval.call_id),
            "digest": approval.digest,
            "for_session": said == "approve_session",
            "word": word,
        },
        governed=said == "approve_session",
    ):
        _decide(principal, approval, yes=yes, word=word)
        if yes:
            _permit(approval)
        if said == "approve_session":
            _grant(principal, approval)
        _resume(approval)
    return Approval.objects.get(pk=approval.pk)


def revoke(principal: Principal, grant: SessionGrant) -> None:
    """Take back a yes for a session; it is asked again on the very next call."""
    principal.require(Action.APPROVE_CALLS)
    with change(
        event=ANSWER,
        organization_id=grant.organization_id,
        actor=principal.actor,
        action="session_grant_revoked",
        resource_type="session",
        resource_id=str(grant.session_id),
        resource_name=grant.label,
    ):
        grant.delete()


def take_back(principal: Principal, approval: Approval) -> None:
    """Take back a question that its asker has no more use for; its yes or no stays."""
    waiting = Approval.objects.filter(pk=approval.pk, state=Approval.State.WAITING)
    with change(
        event=ANSWER,
        organization_id=approval.organization_id,
        actor=principal.actor,
        action="call_taken_back",
        resource_type="approval",
        resource_id=str(approval.pk),
        resource_name=approval.label,
        details={"call_id": str(approval.call_id)},
        governed=False,
    ):
        waiting.update(state=Approval.State.WITHDRAWN, decided_at=timezone.now())


def withdraw(session_id: UUID) -> int:
    """Take back what a session asked, because it ended; return how many."""
    waiting = Approval.objects.filter(session_id=session_id, state=Approval.State.WAITING)
    return waiting.update(state=Approval.State.WITHDRAWN, decided_at=timezone.now())


def expire_overdue() -> int:
    """Turn questions that nobody answered in time into a no; their sessions go on."""
    overdue = list(Approval.objects.overdue()[:500])
    for approval in overdue:
        with change(
            event=ANSWER,
            organization_id=approval.organization_id,
            actor=SYSTEM,
            action="call_approval_expired",
            resource_type="approval",
            resource_id=str(approval.pk),
            resource_name=approval.label,
            details={"call_id": str(approval.call_id)},
            governed=False,
        ):
            Approval.objects.filter(pk=approval.pk, state=Approval.State.WAITING).update(
                state=Approval.State.EXPIRED, decided_at=timezone.now()
            )
            _resume(approval)
    return len(overdue)


def _checked(principal: Principal, approval: Approval, said: str, word: str) -> None:
    if said not in ANSWERS:
        raise Invalid(
            say("There is no answer {said!r}.", said=said),
            field="answer",
            remedy=say("Use one of: {answers}.", answers=", ".join(ANSWERS)),
        )
    if said == "approve_session" and not approval.may_be_granted:
        raise Invalid(
            "This can't be allowed for a session.", field="answer", remedy="Approve it once."
        )
    if len(word) > WORD_LENGTH:
        raise Invalid(
            say("The word has {count} characters.", count=len(word)),
            field="word",
            remedy=say("At most {word_length} are taken.", word_length=WORD_LENGTH),
        )
    if said != "deny" and is_own(principal, approval):
        raise Forbidden(
            "You asked for this call yourself.",
            code="own_call",
            rule="organization:four_eyes",
            remedy="Somebody else who may approve calls has to answer.",
        )


def is_own(principal: Principal, approval: Approval) -> bool:
    """Tell whether somebody else must approve this, because the principal asked for it."""
    by = (approval.requested_by_kind, approval.requested_by_id)
    mine = by == (principal.kind, principal.id) or _through_a_program(principal, *by)
    organization = Organization.objects.filter(pk=approval.organization_id, four_eyes=True)
    return mine and organization.exists()


def _through_a_program(principal: Principal, kind: str, number: str) -> bool:
    """Tell whether a program asked that the person has let in."""
    if kind != "token" or principal.kind != "user":
        return False
    return Token.objects.filter(pk=number, user_id=principal.id).exists()


def _decide(principal: Principal, approval: Approval, *, yes: bool, word: str) -> None:
    now = timezone.now()
    # The condition makes two answers at once exclude each other.
    mine = Approval.objects.filter(
        pk=approval.pk, state=Approval.State.WAITING, expires_at__gt=now
    ).update(
        state=Approval.State.APPROVED if yes else Approval.State.DENIED,
        decided_at=now,
        decided_by=principal.label,
        word=word,
        updated_at=now,
    )
    if mine:
        return
    approval.refresh_from_db()
    if approval.state in (Approval.State.WAITING, Approval.State.EXPIRED):
        raise Conflict("This question has expired, and that is a no.", code="approval_expired")
    raise Conflict(
        say(
            "This question was answered already: {state} by {decided_by}.",
            state=approval.state,
            decided_by=approval.decided_by or "–",
        ),
        code="already_answered",
    )


def _permit(approval: Approval) -> None:
    PermitRow.objects.create(
        id=approval.pk,
        organization_id=approval.organization_id,
        digest=approval.digest,
        expires=int(approval.expires_at.timestamp() * MICROSECONDS),
    )


def _grant(principal: Principal, approval: Approval) -> None:
    SessionGrant.objects.get_or_create(
        organization_id=approval.organization_id,
        agent=approval.agent,
        session=approval.session,
        server_id=approval.server_id,
        own_name=approval.own_name,
        definition_digest=approval.definition_digest,
        rules_digest=approval.rules_digest,
        defaults={"label": approval.label, "granted_by": principal.label},
    )


def _resume(approval: Approval) -> None:
    """Let the session go on that waits for the answer, where there is one."""
    if approval.session_id is not None:
        wake(approval.session_id)
