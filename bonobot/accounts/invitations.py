"""Create, resend, revoke and accept invitations.

An invitation belongs to an email address, not to an account: the holder of its link can create an
account or join with an existing one. It can be used once, within `BONOBOT_INVITATION_DAYS`. The
link is mailed, or returned to the inviter.
"""

import secrets
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone, translation

from bonobot.accounts import account_emails
from bonobot.accounts.attempt_limits import INVITE_EMAIL, INVITE_ORGANIZATION, charge_attempt
from bonobot.accounts.email_addresses import parse_email_address
from bonobot.accounts.extension_points import join_hooks
from bonobot.accounts.models import Invitation, Membership, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, Role
from bonobot.accounts.tokens.token_secrets import (
    generate_token_key,
    hash_secret,
    is_matching_secret,
)
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput, NotFound, Problem
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.types import Actor

# The session key for the link of an invitation until it is accepted.
INVITATION_SESSION_KEY = "invitation"
MAX_AGENTS = 100


@dataclass(frozen=True)
class SentInvitation:
    """An invitation; `link` is set if it wasn't mailed, `problem` if mailing failed."""

    invitation: Invitation
    link: str = ""
    problem: Problem | None = None


def create_invitation(
    principal: Principal, email: str, role: Role, *, agent_ids: Iterable[UUID | str] = ()
) -> SentInvitation:
    """Invite someone by email; raises `InvalidInput`, `Conflict` and `TooManyAttempts`.

    Errors reveal only the organization's own members and invitations.
    """
    principal.require(Action.MANAGE_MEMBERS)
    address = parse_email_address(email)
    agents = sorted({str(agent_id) for agent_id in agent_ids})
    if agents and role != Role.MEMBER:
        raise InvalidInput(
            "Agents can be assigned only to people with the member role.",
            field="agents",
            remedy="Remove the agents, or invite the person as a member.",
        )
    if len(agents) > MAX_AGENTS:
        raise InvalidInput(
            format_message("An invitation can include at most {count} agents.", count=MAX_AGENTS),
            field="agents",
            remedy="Remove some agents. You can assign them after the person has joined.",
        )
    _charge_attempts(principal, address)
    members = Membership.objects.for_organization(principal.organization_id)
    if members.filter(user__email__iexact=address).exists():
        raise _build_already_member_error()
    invitation = Invitation(
        organization_id=principal.organization_id,
        email=address,
        role=role,
        agent_ids=agents,
    )
    secret = _rotate_secret(principal, invitation)
    with _record_change(principal.actor, invitation, "member_invited"):
        try:
            with transaction.atomic():
                invitation.save()
        except IntegrityError:
            raise Conflict(
                format_message("{address} has already been invited.", address=address),
                code="invited_already",
                field="email",
                remedy="Resend that invitation, or revoke it first.",
            ) from None
    return _deliver_invitation(principal, invitation, secret)


def resend_invitation(principal: Principal, invitation: Invitation) -> SentInvitation:
    """Send a new link and invalidate the old one; raises `Conflict` (`invitation_ended`)."""
    principal.require(Action.MANAGE_MEMBERS)
    _charge_attempts(principal, invitation.email)
    secret = _rotate_secret(principal, invitation)
    renewed_fields = ("key", "pepper_id", "digest", "invited_by", "expires_at")
    with _record_change(principal.actor, invitation, "invitation_renewed"):
        open_rows = Invitation.objects.open().filter(pk=invitation.pk)
        if not open_rows.update(**{name: getattr(invitation, name) for name in renewed_fields}):
            raise _build_ended_error()
    return _deliver_invitation(principal, invitation, secret)


def revoke_invitation(principal: Principal, invitation: Invitation) -> None:
    """Revoke an open invitation; raises `Conflict` (`invitation_ended`)."""
    principal.require(Action.MANAGE_MEMBERS)
    with _record_change(principal.actor, invitation, "invitation_revoked"):
        open_rows = Invitation.objects.open().filter(pk=invitation.pk)
        if not open_rows.update(revoked_at=timezone.now()):
            raise _build_ended_error()


def get_invitation_by_link(text: str) -> Invitation:
    """Return the usable invitation of a link; raises the same `NotFound` in all other cases."""
    key, _, secret = text.partition("_")
    invitation: Invitation | None = (
        Invitation.objects.usable().select_related("organization").filter(key=key).first()
    )
    if invitation is None or not is_matching_secret(invitation, secret):
        raise NotFound(
            "This invitation is unknown, already used, revoked, or expired.",
            code="invitation_ended",
            remedy="Ask the person who invited you for a new invitation.",
        )
    return invitation


def has_pending_invitation(request: HttpRequest) -> bool:
    """Return whether the session has an invitation that can be accepted."""
    try:
        get_invitation_by_link(str(request.session.get(INVITATION_SESSION_KEY, "")))
    except Problem:
        return False
    return True


def accept_invitation(text: str, user: User) -> Membership:
    """Accept the invitation of a link; raises `NotFound` or `Conflict` without changes.

    Saves `user` if it is new.
    """
    invitation = get_invitation_by_link(text)
    actor = Actor(kind="user", id=str(user.pk), label=user.get_username())
    member = Membership(organization_id=invitation.organization_id, user=user, role=invitation.role)
    with _record_change(actor, invitation, "invitation_accepted", membership=str(member.pk)):
        if user._state.adding:
            user.save()
        acceptance = {"accepted_at": timezone.now(), "accepted_by": user}
        if not Invitation.objects.usable().filter(pk=invitation.pk).update(**acceptance):
            raise _build_ended_error()
        try:
            with transaction.atomic():
                member.save()
        except IntegrityError:
            raise _build_already_member_error() from None
        for hook in join_hooks:
            hook(invitation, user)
    return member


def _charge_attempts(principal: Principal, address: str) -> None:
    charge_attempt(INVITE_ORGANIZATION, str(principal.organization_id))
    charge_attempt(INVITE_EMAIL, str(principal.organization_id), address)


def _rotate_secret(principal: Principal, invitation: Invitation) -> str:
    """Set a new secret and expiry on the invitation; return the secret."""
    secret = secrets.token_urlsafe(32)
    invitation.key = generate_token_key()
    invitation.pepper_id, invitation.digest = hash_secret(secret)
    invitation.invited_by = principal.label
    invitation.expires_at = timezone.now() + timedelta(days=settings.BONOBOT_INVITATION_DAYS)
    return secret


def _deliver_invitation(
    principal: Principal, invitation: Invitation, secret: str
) -> SentInvitation:
    path = reverse("account_invitation", args=[f"{invitation.key}_{secret}"])
    link = account_emails.build_absolute_url(path)
    if not account_emails.can_send():
        return SentInvitation(invitation, link)
    try:
        with translation.override(_choose_language(invitation)):
            content = account_emails.write_invitation_email(invitation, principal.label, link)
            account_emails.send_email(invitation.email, content.subject, content.paragraphs)
    except Problem as problem:
        return SentInvitation(invitation, link, problem)
    invitation.mailed_at = timezone.now()
    Invitation.objects.filter(pk=invitation.pk).update(mailed_at=invitation.mailed_at)
    return SentInvitation(invitation)


def _choose_language(invitation: Invitation) -> str:
    """Return the recipient's language, else the sender's."""
    recipients = User.objects.filter(email__iexact=invitation.email).exclude(language="")
    recipient_language: str | None = recipients.values_list("language", flat=True).first()
    return recipient_language or translation.get_language() or settings.LANGUAGE_CODE


def _record_change(
    actor: Actor, invitation: Invitation, action: str, **details: Any
) -> AbstractContextManager[Any]:
    return record_change(
        **describe_row("invitation", invitation, invitation.email),
        actor=actor,
        action=action,
        details={"role": invitation.role, "agents": invitation.agent_ids} | details,
        governed=False,
    )


def _build_ended_error() -> Conflict:
    return Conflict(
        "The invitation was accepted or revoked in the meantime.",
        code="invitation_ended",
        remedy="Send a new invitation.",
    )


def _build_already_member_error() -> Conflict:
    return Conflict(
        "This person is already a member.",
        code="already_member",
        field="email",
        remedy="Change the role of the existing membership instead.",
    )
