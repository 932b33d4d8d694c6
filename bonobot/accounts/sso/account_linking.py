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

from bonobot.accounts import services as accounts
from bonobot.accounts.external_issuers.jwt_validation import find_claimed_role
from bonobot.accounts.models import Identity, Membership, Provider, User
from bonobot.accounts.roles import Role
from bonobot.accounts.sso.oidc_client import ProviderUser
from bonobot.core.problems import Conflict, Forbidden
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.audit.admin_changes import CHANGE, ChangeEvent, record, record_change
from bonobot.ledger.types import Actor

LONGEST_USERNAME = 150
TRIES = 5
STRANGE = re.compile(r"[^\w.@+-]")  # in usernames


class SignInRefused(Forbidden):
    """A user of the provider may not sign in; `code` says why."""

    def __init__(self, code: str, detail: str, remedy: str) -> None:
        super().__init__(detail, code=code, rule="single_sign_on", remedy=remedy)


@dataclass(frozen=True, slots=True)
class _ProviderSignIn:
    provider: Provider
    arrival: ProviderUser

    @property
    def organization_id(self) -> UUID:
        return self.provider.organization_id

    @property
    def actor(self) -> Actor:
        """The actor before an account is known: the provider and its user."""
        label = f"{self.arrival.email or self.arrival.subject} ({self.provider.name})"
        return Actor(kind="system", id=str(self.provider.pk), label=make_visible(label, 200))


def resolve_user(provider: Provider, arrival: ProviderUser) -> User:
    """Return the user who signs in; raises `SignInRefused` without changes."""
    case = _ProviderSignIn(provider, arrival)
    try:
        with transaction.atomic():
            user = _find_or_create_user(case)
            _require_member(case, user)
            _update_role(case, user)
            _update_last_use(case, user)
    except IntegrityError:
        raise SignInRefused(
            "sso_twice", "This sign-in met another one of yours.", "Try again."
        ) from None
    except SignInRefused as problem:
        _record(case, None, "sign_in_refused", ChangeEvent("change", "refused", problem.code))
        raise
    _record(case, user, "signed_in", CHANGE)
    return user


def link(provider: Provider, arrival: ProviderUser, user: User) -> Identity:
    """Link a subject to the account of the signed-in user; raises `SignInRefused`."""
    case = _ProviderSignIn(provider, arrival)
    _require_domain(case)
    _require_member(case, user)
    others = Identity.objects.filter(provider=provider, subject=arrival.subject)
    if others.exclude(user=user).exists():
        raise SignInRefused(
            "sso_taken",
            "The provider's account belongs to another account here.",
            "Sign in by the provider, or ask an owner.",
        )
    return _create_identity(case, user)


def unlink(user: User, identity: Identity) -> None:
    """Unlink an identity; raises `Conflict` if it is the user's only way to sign in."""
    if not user.has_usable_password():
        raise Conflict(
            "You would have no way to sign in.",
            code="last_way_in",
            remedy="Ask an owner for a link to choose a password first.",
        )
    case = _ProviderSignIn(identity.provider, _build_provider_user(identity))
    with _record_change(case, user, "identity_unlinked"):
        identity.delete()


def _build_provider_user(identity: Identity) -> ProviderUser:
    return ProviderUser(identity.subject, identity.email, None, "", "", {})


def _find_or_create_user(case: _ProviderSignIn) -> User:
    """Return the user of a subject: linked, a member with this email, or a new one."""
    known = Identity.objects.filter(provider=case.provider, subject=case.arrival.subject)
    if (found := known.select_related("user").first()) is not None:
        _require_domain(case)
        user: User = found.user
        return user
    _require_email(case)
    _require_domain(case)
    by_address = _find_member_by_email(case)
    if by_address is not None:
        _create_identity(case, by_address)
        return by_address
    if not case.provider.creates:
        raise SignInRefused(
            "sso_unknown",
            "Nobody here is known by this account of the provider.",
            "Ask an owner for an invitation; or sign in as before, and link it in your profile.",
        )
    return _create_user(case)


def _find_member_by_email(case: _ProviderSignIn) -> User | None:
    """Return the one member with this email whose account can be linked; may raise."""
    here = Membership.objects.filter(
        organization=case.organization_id, user__email__iexact=case.arrival.email
    )
    found = [one.user for one in here.select_related("user")[:2]]
    if not found:
        return None
    if found[0].is_superuser:
        return found[0]  # refused by `_require_member`
    elsewhere = Membership.objects.filter(user=found[0]).exclude(organization=case.organization_id)
    known = Identity.objects.filter(provider=case.provider, user=found[0])
    if len(found) > 1 or elsewhere.exists() or known.exists():
        raise SignInRefused(
            "sso_link_first",
            "There is an account with this address that the provider may not open by itself.",
            "Sign in as before, then link the provider in your profile.",
        )
    return found[0]


def _create_user(case: _ProviderSignIn) -> User:
    """Create an account without a password, and its membership."""
    role = _resolve_role(case)
    for suffix in ("", *(f"-{token_hex(2)}" for _ in range(TRIES))):
        user = User(
            username=_build_username(case.arrival.email, suffix),
            email=case.arrival.email,
            first_name=case.arrival.first_name,
            last_name=case.arrival.last_name,
        )
        user.set_unusable_password()
        member = Membership(organization_id=case.organization_id, user=user, role=role)
        with _record_change(case, user, "member_joined_by_provider", role=role):
            try:
                with transaction.atomic():
                    user.save()
            except IntegrityError:
                continue  # the username is taken
            member.save()
        _create_identity(case, user)
        return user
    raise SignInRefused("sso_no_name", "No free name was found for a new account.", "Try again.")


def _build_username(email: str, suffix: str) -> str:
    plain = STRANGE.sub("", email) or "person"
    return plain[: LONGEST_USERNAME - len(suffix)] + suffix


def _create_identity(case: _ProviderSignIn, user: User) -> Identity:
    found = Identity(
        organization_id=case.organization_id,
        provider=case.provider,
        user=user,
        subject=case.arrival.subject,
        email=case.arrival.email,
    )
    with _record_change(case, user, "identity_linked"):
        Identity.objects.filter(provider=case.provider, user=user).delete()
        found.save()
    return found


def _require_email(case: _ProviderSignIn) -> None:
    """Raise unless the email is verified, or the provider is trusted without a claim."""
    proved = case.arrival.verified
    trusted = proved is None and case.provider.trusts_email
    if not case.arrival.email or not (proved or trusted):
        raise SignInRefused(
            "sso_email_unverified",
            "The provider doesn't say that it has verified the e-mail address.",
            "Verify it there; whoever runs the provider can have it tell so.",
        )


def _require_domain(case: _ProviderSignIn) -> None:
    domains = case.provider.domains
    if domains and case.arrival.email.rpartition("@")[2] not in domains:
        raise SignInRefused(
            "sso_domain",
            "People with addresses of this domain don't sign in here.",
            "Use the account of your organization.",
        )


def _require_member(case: _ProviderSignIn, user: User) -> None:
    if user.is_superuser:
        raise SignInRefused(
            "sso_platform_administrator",
            "Platform administrators sign in by password and second factor alone.",
            "Sign in as before: no organization's provider decides on the platform.",
        )
    here = Membership.objects.filter(user=user, organization=case.organization_id)
    if not user.is_active or not here.exists():
        raise SignInRefused(
            "sso_not_a_member",
            "You are no member of this organization, or your account is switched off.",
            "Ask an owner.",
        )


def _resolve_role(case: _ProviderSignIn) -> Role:
    found = find_claimed_role(case.provider, case.arrival.claims)
    if found is None:
        raise SignInRefused(
            "sso_no_role",
            "Nothing that the provider says gives you a role.",
            "Ask whoever runs the provider to put you into the right group.",
        )
    return found


def _update_role(case: _ProviderSignIn, user: User) -> None:
    """Set the role from the claim; the last owner isn't demoted."""
    if not case.provider.role_claim:
        return
    role = _resolve_role(case)
    member = Membership.objects.get(user=user, organization=case.organization_id)
    if member.role == role:
        return
    if member.role == Role.OWNER and not accounts.has_other_owner(member):
        return
    with _record_change(case, user, "member_changed", role=role):
        member.role = role
        member.save()


def _update_last_use(case: _ProviderSignIn, user: User) -> None:
    rows = Identity.objects.filter(provider=case.provider, user=user)
    rows.update(used_at=timezone.now(), email=case.arrival.email)


def _record_change(case: _ProviderSignIn, user: User, action: str, **details: Any) -> Any:
    return record_change(**_build_audit_fields(case, user, action, details), governed=False)


def _record(case: _ProviderSignIn, user: User | None, action: str, event: ChangeEvent) -> None:
    record(**_build_audit_fields(case, user, action, {}), governed=False, event=event)


def _build_audit_fields(
    case: _ProviderSignIn, user: User | None, action: str, details: dict[str, Any]
) -> dict[str, Any]:
    own = Actor(kind="user", id=str(user.pk), label=user.get_username()) if user else None
    return {
        "organization_id": case.organization_id,
        "actor": own or case.actor,
        "action": action,
        "resource_type": "provider",
        "resource_id": str(case.provider.pk),
        "resource_name": case.provider.name,
        "details": details | {"subject": make_visible(case.arrival.subject, 255)},
    }
