"""Arriving: whom somebody is here who signed in at an identity provider, or why nobody.

An address alone never opens an account: a subject that is not known yet is joined to the account
of a member only where the organization's owners decide on that account anyway (it is in no other
organization), or by the person themselves, signed in. Everything is audited, refusals too.
"""

import re
from dataclasses import dataclass
from secrets import token_hex
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from bonobot.ledger.actors import Actor
from bonobot.ledger.changes import CHANGE, Event, change, record
from bonobot.lib.problems import Conflict, Forbidden
from bonobot.lib.untrusted import visible
from bonobot.tenancy import members
from bonobot.tenancy.bearers import role_of
from bonobot.tenancy.models import Identity, Membership, Provider, User
from bonobot.tenancy.openid import Arrival
from bonobot.tenancy.roles import Role

LONGEST_USERNAME = 150
TRIES = 5
STRANGE = re.compile(r"[^\w.@+-]")  # in names that people sign in with


class NotLetIn(Forbidden):
    """The provider knows somebody who may not come in; `code` says why."""

    def __init__(self, code: str, detail: str, remedy: str) -> None:
        super().__init__(detail, code=code, rule="single_sign_on", remedy=remedy)


@dataclass(frozen=True, slots=True)
class _Case:
    provider: Provider
    arrival: Arrival

    @property
    def organization_id(self) -> UUID:
        return self.provider.organization_id

    @property
    def actor(self) -> Actor:
        """Who acts before anybody is known here: the provider, and whom it names."""
        label = f"{self.arrival.email or self.arrival.subject} ({self.provider.name})"
        return Actor(kind="system", id=str(self.provider.pk), label=visible(label, 200))


def arrive(provider: Provider, arrival: Arrival) -> User:
    """Return the person who signs in; raises `NotLetIn`, and then nothing is changed."""
    case = _Case(provider, arrival)
    try:
        with transaction.atomic():
            user = _person(case)
            _require_member(case, user)
            _follow_role(case, user)
            _used(case, user)
    except IntegrityError:
        raise NotLetIn(
            "sso_twice", "This sign-in met another one of yours.", "Try again."
        ) from None
    except NotLetIn as problem:
        _record(case, None, "sign_in_refused", Event("change", "refused", problem.code))
        raise
    _record(case, user, "signed_in", CHANGE)
    return user


def link(provider: Provider, arrival: Arrival, user: User) -> Identity:
    """Join a subject to the account that is signed in, by its person's own wish."""
    case = _Case(provider, arrival)
    _require_domain(case)
    _require_member(case, user)
    others = Identity.objects.filter(provider=provider, subject=arrival.subject)
    if others.exclude(user=user).exists():
        raise NotLetIn(
            "sso_taken",
            "The provider's account belongs to another account here.",
            "Sign in by the provider, or ask an owner.",
        )
    return _joined(case, user)


def unlink(user: User, identity: Identity) -> None:
    """Take a provider's account away from one's own; raises `Conflict` for the last way in."""
    if not user.has_usable_password():
        raise Conflict(
            "You would have no way to sign in.",
            code="last_way_in",
            remedy="Ask an owner for a link to choose a password first.",
        )
    case = _Case(identity.provider, _known(identity))
    with _recorded(case, user, "identity_unlinked"):
        identity.delete()


def _known(identity: Identity) -> Arrival:
    return Arrival(identity.subject, identity.email, None, "", "", {})


def _person(case: _Case) -> User:
    """Return the person of a subject: known, a member with this address, or a new one."""
    known = Identity.objects.filter(provider=case.provider, subject=case.arrival.subject)
    if (found := known.select_related("user").first()) is not None:
        _require_domain(case)
        user: User = found.user
        return user
    _require_email(case)
    _require_domain(case)
    by_address = _by_address(case)
    if by_address is not None:
        _joined(case, by_address)
        return by_address
    if not case.provider.creates:
        raise NotLetIn(
            "sso_unknown",
            "Nobody here is known by this account of the provider.",
            "Ask an owner for an invitation; or sign in as before, and link it in your profile.",
        )
    return _created(case)


def _by_address(case: _Case) -> User | None:
    """Return the one member with this address, on whose account the owners decide anyway."""
    here = Membership.objects.filter(
        organization=case.organization_id, user__email__iexact=case.arrival.email
    )
    found = [one.user for one in here.select_related("user")[:2]]
    if not found:
        return None
    if found[0].is_superuser:
        return found[0]  # who is refused as such
    elsewhere = Membership.objects.filter(user=found[0]).exclude(organization=case.organization_id)
    known = Identity.objects.filter(provider=case.provider, user=found[0])
    if len(found) > 1 or elsewhere.exists() or known.exists():
        raise NotLetIn(
            "sso_link_first",
            "There is an account with this address that the provider may not open by itself.",
            "Sign in as before, then link the provider in your profile.",
        )
    return found[0]


def _created(case: _Case) -> User:
    """Make an account without a password, and its membership."""
    role = _role(case)
    for suffix in ("", *(f"-{token_hex(2)}" for _ in range(TRIES))):
        user = User(
            username=_username(case.arrival.email, suffix),
            email=case.arrival.email,
            first_name=case.arrival.first_name,
            last_name=case.arrival.last_name,
        )
        user.set_unusable_password()
        member = Membership(organization_id=case.organization_id, user=user, role=role)
        with _recorded(case, user, "member_joined_by_provider", role=role):
            try:
                with transaction.atomic():
                    user.save()
            except IntegrityError:
                continue  # the name is taken, by whomever
            member.save()
        _joined(case, user)
        return user
    raise NotLetIn("sso_no_name", "No free name was found for a new account.", "Try again.")


def _username(email: str, suffix: str) -> str:
    plain = STRANGE.sub("", email) or "person"
    return plain[: LONGEST_USERNAME - len(suffix)] + suffix


def _joined(case: _Case, user: User) -> Identity:
    found = Identity(
        organization_id=case.organization_id,
        provider=case.provider,
        user=user,
        subject=case.arrival.subject,
        email=case.arrival.email,
    )
    with _recorded(case, user, "identity_linked"):
        Identity.objects.filter(provider=case.provider, user=user).delete()
        found.save()
    return found


def _require_email(case: _Case) -> None:
    """Raise unless the provider says that the address is proved, or is trusted not to say so."""
    proved = case.arrival.verified
    trusted = proved is None and case.provider.trusts_email
    if not case.arrival.email or not (proved or trusted):
        raise NotLetIn(
            "sso_email_unverified",
            "The provider doesn't say that it has verified the e-mail address.",
            "Verify it there; whoever runs the provider can have it tell so.",
        )


def _require_domain(case: _Case) -> None:
    domains = case.provider.domains
    if domains and case.arrival.email.rpartition("@")[2] not in domains:
        raise NotLetIn(
            "sso_domain",
            "People with addresses of this domain don't sign in here.",
            "Use the account of your organization.",
        )


def _require_member(case: _Case, user: User) -> None:
    if user.is_superuser:
        raise NotLetIn(
            "sso_platform_administrator",
            "Platform administrators sign in by password and second factor alone.",
            "Sign in as before: no organization's provider decides on the platform.",
        )
    here = Membership.objects.filter(user=user, organization=case.organization_id)
    if not user.is_active or not here.exists():
        raise NotLetIn(
            "sso_not_a_member",
            "You are no member of this organization, or your account is switched off.",
            "Ask an owner.",
        )


def _role(case: _Case) -> Role:
    found = role_of(case.provider, case.arrival.claims)
    if found is None:
        raise NotLetIn(
            "sso_no_role",
            "Nothing that the provider says gives you a role.",
            "Ask whoever runs the provider to put you into the right group.",
        )
    return found


def _follow_role(case: _Case, user: User) -> None:
    """Give a member the role that the claim says; the last owner stays one."""
    if not case.provider.role_claim:
        return
    role = _role(case)
    member = Membership.objects.get(user=user, organization=case.organization_id)
    if member.role == role:
        return
    if member.role == Role.OWNER and not members.has_other_owner(member):
        return
    with _recorded(case, user, "member_changed", role=role):
        member.role = role
        member.save()


def _used(case: _Case, user: User) -> None:
    rows = Identity.objects.filter(provider=case.provider, user=user)
    rows.update(used_at=timezone.now(), email=case.arrival.email)


def _recorded(case: _Case, user: User, action: str, **details: Any) -> Any:
    return change(**_what(case, user, action, details), governed=False)


def _record(case: _Case, user: User | None, action: str, event: Event) -> None:
    record(**_what(case, user, action, {}), governed=False, event=event)


def _what(case: _Case, user: User | None, action: str, details: dict[str, Any]) -> dict[str, Any]:
    own = Actor(kind="user", id=str(user.pk), label=user.get_username()) if user else None
    return {
        "organization_id": case.organization_id,
        "actor": own or case.actor,
        "action": action,
        "resource_type": "provider",
        "resource_id": str(case.provider.pk),
        "resource_name": case.provider.name,
        "details": details | {"subject": visible(case.arrival.subject, 255)},
    }
