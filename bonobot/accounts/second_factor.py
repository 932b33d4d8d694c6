"""One-time codes, recovery codes, passkeys, reset.

The library keeps what it needs in rows of its own; their secrets are sealed in `FactorSecret`, so
that they are sealed anew with all others when the keys are rotated, and only named there.
"""

from typing import Any
from uuid import UUID

from allauth.core import context
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.db import transaction
from django.utils.translation import gettext as _t

from bonobot.accounts import email as account_email
from bonobot.accounts.models import FactorSecret, Membership, Organization, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import Forbidden
from bonobot.ledger.audit.admin_changes import record_change
from bonobot.ledger.types import Actor

STRONG = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)
NAMED = ("secret", "seed")  # members of the library's rows that hold a secret


class SecondFactorAdapter(DefaultMFAAdapter):
    """The library's questions about second factors, answered."""

    def encrypt(self, text: str) -> str:
        """Seal a secret of the person who is signed in; return what names it."""
        user: Any = context.request.user
        return str(FactorSecret.objects.create(user=user, secret=text).pk)

    def decrypt(self, encrypted_text: str) -> str:
        """Return the secret that is named; raises `UnreadableSecret`."""
        return str(FactorSecret.objects.get(pk=encrypted_text).secret.open())

    def get_totp_label(self, user: Any) -> str:
        """Return the name that the person signs in with."""
        return str(user.get_username())


class SecondFactorRequired(Forbidden):
    """The organization asks for a second factor, and this person has none yet."""

    code = "second_factor_required"

    def __init__(self) -> None:
        super().__init__(
            "This organization asks everybody for a second factor, and you have none yet.",
            rule="second_factor",
            remedy="Sign in to the admin and set one up.",
        )


def has_second_factor(user: User) -> bool:
    """Tell whether a person is asked for more than a password (a query)."""
    return Authenticator.objects.filter(user=user, type__in=STRONG).exists()


def check_second_factor(user: User, organization: Organization) -> None:
    """Raise `SecondFactorNeeded` where the organization asks for one that a person doesn't have."""
    if organization.second_factor and not has_second_factor(user):
        raise SecondFactorRequired


def reset_second_factor(principal: Principal, user: User) -> None:
    """Take a person's second factor away, who has lost it, and end their sessions; audited.

    An owner may for people who belong to no other organization; raises `Forbidden`.
    """
    require_power_over(principal, user)
    with record_change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action="second_factor_reset",
        resource_type="user",
        resource_id=str(user.pk),
        resource_name=user.get_username(),
        governed=False,
    ):
        Authenticator.objects.filter(user=user).delete()
        FactorSecret.objects.filter(user=user).delete()
    end_sessions(user)
    transaction.on_commit(lambda: tell_of_reset(user))


def tell_of_reset(user: User) -> None:
    """Have the worker mail a person that their second factor was reset, where mail can be sent."""
    # Tasks import what they do, and so this module.
    from bonobot.accounts.tasks import mail_factor_reset

    if user.email and account_email.can_send():
        mail_factor_reset.delay(str(user.pk))


def mail_reset(user: User) -> None:
    """Mail a person that their second factor was reset; raises `Unavailable`."""
    with account_email.override_language(user):
        account_email.send(
            user.email,
            _t("Your second factor on Bonobot was reset"),
            (
                _t("An administrator reset the second factor of the account %(name)s.")
                % {"name": user.get_username()},
                _t("If that wasn't you, tell an administrator at once."),
            ),
        )


def end_sessions(user: User, *, but: str = "") -> None:
    """End the sessions of a person, but for one (its key)."""
    for session in UserSession.objects.filter(user=user).exclude(session_key=but):
        session.end()


def require_power_over(principal: Principal, user: User) -> None:
    """Raise `Forbidden` unless the principal may decide on how this person signs in."""
    principal.require(Action.MANAGE_MEMBERS)
    if principal.platform_admin:
        return
    elsewhere = Membership.objects.filter(user=user).exclude(
        organization_id=principal.organization_id
    )
    mine = Membership.objects.filter(user=user, organization_id=principal.organization_id)
    if user.is_superuser or not mine.exists() or elsewhere.exists():
        raise Forbidden(
            "Only a platform administrator may decide on how this person signs in.",
            rule="platform_admin",
            remedy="Ask a platform administrator.",
        )


def record_own(action: str, user: User, **details: Any) -> None:
    """Write to the audit of each of a person's organizations what they did to their own sign-in."""
    for organization_id in Membership.objects.filter(user=user).values_list(
        "organization_id", flat=True
    ):
        with record_change(
            organization_id=organization_id,
            actor=Actor(kind="user", id=str(user.pk), label=user.get_username()),
            action=action,
            resource_type="user",
            resource_id=str(user.pk),
            resource_name=user.get_username(),
            details=details,
            governed=False,
        ):
            pass


def handle_factor_added(request: Any, user: User, authenticator: Authenticator, **_: Any) -> None:
    """Record a new factor, and end the sessions that began without it."""
    forget_unnamed(user)
    record_own("second_factor_added", user, kind=authenticator.type)
    if authenticator.type in STRONG:
        end_sessions(user, but=request.session.session_key or "")


def handle_factor_removed(user: User, authenticator: Authenticator, **_: Any) -> None:
    """Record a factor that is gone."""
    forget_unnamed(user)
    record_own("second_factor_removed", user, kind=authenticator.type)


def forget_unnamed(user: User) -> None:
    """Delete the secrets that no row of the library names any more."""
    rows = Authenticator.objects.filter(user=user).values_list("data", flat=True)
    named = {UUID(data[name]) for data in rows for name in NAMED if data.get(name)}
    FactorSecret.objects.filter(user=user).exclude(pk__in=named).delete()
