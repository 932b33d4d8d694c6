"""Link users of identity providers to accounts.

An email address alone never gives access to an account: an unknown subject is linked to a member's
account only if the account belongs to no other organization, or by the user when signed in. All
sign-ins are audited, refused ones too.
"""

import re
from dataclasses import dataclass
from secrets import token_hex
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from bonobot.accounts import members
from bonobot.accounts.account_emails import announce_change
from bonobot.accounts.models import Identity, Membership, Provider, User
from bonobot.accounts.roles import Role, find_claimed_role
from bonobot.accounts.sso.claims import ProviderUser
from bonobot.core.db.transactions import lock_row
from bonobot.core.problems import Conflict, Forbidden
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.audit.admin_changes import (
    CHANGE_EVENT,
    ChangeEvent,
    record_change,
    record_finished_change,
)
from bonobot.ledger.types import Actor

MAX_USERNAME_LENGTH = 150
MAX_USERNAME_TRIES = 5
INVALID_USERNAME_CHARS = re.compile(r"[^\w.@+-]")  # in usernames


class SignInRefused(Forbidden):
    """A user of the provider may not sign in; `code` says why."""

    def __init__(self, code: str, detail: str, remedy: str) -> None:
        super().__init__(detail, code=code, rule="single_sign_on", remedy=remedy)


@dataclass(frozen=True, slots=True)
class _ProviderSignIn:
    provider: Provider
    provider_user: ProviderUser

    @property
    def organization_id(self) -> UUID:
        return self.provider.organization_id

    @property
    def actor(self) -> Actor:
        """The actor before an account is known: the provider and its user."""
        label = f"{self.provider_user.email or self.provider_user.subject} ({self.provider.name})"
        return Actor(kind="system", id=str(self.provider.pk), label=make_visible(label, 200))


def resolve_user(provider: Provider, provider_user: ProviderUser) -> User:
    """Return the user who signs in; raises `SignInRefused` without changes."""
    sign_in = _ProviderSignIn(provider, provider_user)
    try:
        with transaction.atomic():
            user = _find_or_create_user(sign_in)
            _require_member(sign_in, user)
            _update_role(sign_in, user)
            _update_last_use(sign_in, user)
    except IntegrityError:
        raise SignInRefused(
            "sso_twice", "Another sign-in with this account was in progress.", "Try again."
        ) from None
    except SignInRefused as problem:
        _record_event(
            sign_in, None, "sign_in_rejected", ChangeEvent("change", "refused", problem.code)
        )
        raise
    _record_event(sign_in, user, "signed_in", CHANGE_EVENT)
    return user


def link_identity(provider: Provider, provider_user: ProviderUser, user: User) -> Identity:
    """Link a subject to the account of the signed-in user; raises `SignInRefused`."""
    sign_in = _ProviderSignIn(provider, provider_user)
    _require_domain(sign_in)
    _require_member(sign_in, user)
    other_identities = Identity.objects.filter(provider=provider, subject=provider_user.subject)
    if other_identities.exclude(user=user).exists():
        raise SignInRefused(
            "sso_taken",
            "This account of the identity provider is already linked to another user.",
            "Sign in with the identity provider, or contact an owner.",
        )
    return _create_identity(sign_in, user)


def unlink_identity(user: User, identity: Identity) -> None:
    """Unlink an identity; raises `Conflict` if it is the user's only way to sign in."""
    if not user.has_usable_password():
        raise Conflict(
            "This would leave you with no way to sign in.",
            code="last_sign_in_method",
            remedy="Ask an owner for a link to set a password first.",
        )
    sign_in = _ProviderSignIn(identity.provider, _build_provider_user(identity))
    with _record_change(sign_in, user, "identity_unlinked"):
        identity.delete()
        announce_change(user, "identity_unlinked", method=identity.provider.name)


def _build_provider_user(identity: Identity) -> ProviderUser:
    return ProviderUser(
        identity.subject,
        email=identity.email,
        email_verified=None,
        first_name="",
        last_name="",
        claims={},
    )


def _find_or_create_user(sign_in: _ProviderSignIn) -> User:
    """Return the user of a subject: linked, a member with this email, or a new one."""
    identities = Identity.objects.filter(
        provider=sign_in.provider, subject=sign_in.provider_user.subject
    )
    if (identity := identities.select_related("user").first()) is not None:
        _require_domain(sign_in)
        user: User = identity.user
        return user
    _require_verified_email(sign_in)
    _require_domain(sign_in)
    member = _find_member_by_email(sign_in)
    if member is not None:
        _create_identity(sign_in, member)
        return member
    if not sign_in.provider.creates:
        raise SignInRefused(
            "sso_unknown",
            "No user is linked to this account of the identity provider.",
            "Ask an owner for an invitation. If you already have an account, "
            "sign in to it and link the identity provider in your profile.",
        )
    return _create_user(sign_in)


def _find_member_by_email(sign_in: _ProviderSignIn) -> User | None:
    """Return the one member with this email whose account can be linked; may raise."""
    memberships = Membership.objects.filter(
        organization=sign_in.organization_id, user__email__iexact=sign_in.provider_user.email
    )
    users = [membership.user for membership in memberships.select_related("user")[:2]]
    if not users:
        return None
    if users[0].is_superuser:
        return users[0]  # refused by `_require_member`
    other_memberships = Membership.objects.filter(user=users[0]).exclude(
        organization=sign_in.organization_id
    )
    identities = Identity.objects.filter(provider=sign_in.provider, user=users[0])
    if len(users) > 1 or other_memberships.exists() or identities.exists():
        raise SignInRefused(
            "sso_link_first",
            "A user with this email address already exists but isn't linked to "
            "the identity provider.",
            "Sign in with your password, then link the identity provider in your profile.",
        )
    return users[0]


def _create_user(sign_in: _ProviderSignIn) -> User:
    """Create an account without a password, and its membership."""
    role = _resolve_role(sign_in)
    for suffix in ("", *(f"-{token_hex(2)}" for _ in range(MAX_USERNAME_TRIES))):
        user = User(
            username=_build_username(sign_in.provider_user.email, suffix),
            email=sign_in.provider_user.email,
            first_name=sign_in.provider_user.first_name,
            last_name=sign_in.provider_user.last_name,
        )
        user.set_unusable_password()
        member = Membership(organization_id=sign_in.organization_id, user=user, role=role)
        with _record_change(sign_in, user, "member_joined_by_provider", role=role):
            try:
                with transaction.atomic():
                    user.save()
            except IntegrityError:
                continue  # the username is taken
            member.save()
        _create_identity(sign_in, user, is_new_user=True)
        return user
    raise SignInRefused(
        "sso_no_name", "No username is available for the new account.", "Try again."
    )


def _build_username(email: str, suffix: str) -> str:
    cleaned = INVALID_USERNAME_CHARS.sub("", email) or "person"
    return cleaned[: MAX_USERNAME_LENGTH - len(suffix)] + suffix


def _create_identity(
    sign_in: _ProviderSignIn, user: User, *, is_new_user: bool = False
) -> Identity:
    identity = Identity(
        organization_id=sign_in.organization_id,
        provider=sign_in.provider,
        user=user,
        subject=sign_in.provider_user.subject,
        email=sign_in.provider_user.email,
    )
    with _record_change(sign_in, user, "identity_linked"):
        Identity.objects.filter(provider=sign_in.provider, user=user).delete()
        identity.save()
        if not is_new_user:
            announce_change(user, "identity_linked", method=sign_in.provider.name)
    return identity


def _require_verified_email(sign_in: _ProviderSignIn) -> None:
    """Raise unless the email is verified, or the provider is trusted without a claim."""
    is_verified = sign_in.provider_user.email_verified
    is_trusted = is_verified is None and sign_in.provider.trusts_email
    if not sign_in.provider_user.email or not (is_verified or is_trusted):
        raise SignInRefused(
            "sso_email_unverified",
            "The identity provider doesn't report your email address as verified.",
            "Verify the email address with the identity provider, or ask its "
            "administrator to send the claim `email_verified`.",
        )


def _require_domain(sign_in: _ProviderSignIn) -> None:
    domains = sign_in.provider.domains
    if domains and sign_in.provider_user.email.rpartition("@")[2] not in domains:
        raise SignInRefused(
            "sso_domain",
            "Email addresses in this domain can't be used to sign in here.",
            "Use your organization's account.",
        )


def _require_member(sign_in: _ProviderSignIn, user: User) -> None:
    if user.is_superuser:
        raise SignInRefused(
            "sso_platform_administrator",
            "Platform administrators can sign in only with a password and a second factor.",
            "Sign in with your password. An organization's identity provider "
            "can't grant platform access.",
        )
    memberships = Membership.objects.filter(user=user, organization=sign_in.organization_id)
    if not user.is_active or not memberships.exists():
        raise SignInRefused(
            "sso_not_a_member",
            "You aren't a member of this organization, or your account is disabled.",
            "Contact an owner.",
        )


def _resolve_role(sign_in: _ProviderSignIn) -> Role:
    role = find_claimed_role(sign_in.provider, sign_in.provider_user.claims)
    if role is None:
        raise SignInRefused(
            "sso_no_role",
            "The identity provider doesn't assign you a role.",
            "Ask the administrator of the identity provider to add you to a group with a role.",
        )
    return role


def _update_role(sign_in: _ProviderSignIn, user: User) -> None:
    """Set the role from the claim; the last owner isn't demoted."""
    if not sign_in.provider.role_claim:
        return
    role = _resolve_role(sign_in)
    member = Membership.objects.get(user=user, organization=sign_in.organization_id)
    if member.role == role:
        return
    with transaction.atomic():
        lock_row(member.organization)
        member.refresh_from_db(fields=["role"])  # perhaps the last owner since it was read
        if member.role == Role.OWNER and not members.has_owner_besides([member]):
            return
        with _record_change(sign_in, user, "member_updated", role=role):
            member.role = role
            member.save()


def _update_last_use(sign_in: _ProviderSignIn, user: User) -> None:
    rows = Identity.objects.filter(provider=sign_in.provider, user=user)
    rows.update(used_at=timezone.now(), email=sign_in.provider_user.email)


def _record_change(sign_in: _ProviderSignIn, user: User, action: str, **details: Any) -> Any:
    return record_change(**_build_audit_fields(sign_in, user, action, details), governed=False)


def _record_event(
    sign_in: _ProviderSignIn, user: User | None, action: str, event: ChangeEvent
) -> None:
    record_finished_change(
        **_build_audit_fields(sign_in, user, action, {}), governed=False, event=event
    )


def _build_audit_fields(
    sign_in: _ProviderSignIn, user: User | None, action: str, details: dict[str, Any]
) -> dict[str, Any]:
    user_actor = Actor(kind="user", id=str(user.pk), label=user.get_username()) if user else None
    return {
        "organization_id": sign_in.organization_id,
        "actor": user_actor or sign_in.actor,
        "action": action,
        "resource_type": "provider",
        "resource_id": str(sign_in.provider.pk),
        "resource_name": sign_in.provider.name,
        "details": details | {"subject": make_visible(sign_in.provider_user.subject, 255)},
    }
