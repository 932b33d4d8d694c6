"""Second factors: one-time codes, recovery codes, passkeys, and their reset.

allauth stores factors in its own rows. Their secrets are encrypted in `FactorSecret`, so that key
rotation covers them; allauth's rows only hold the ids.
"""

from typing import Any
from uuid import UUID

from allauth.core import context
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.account_emails import (
    EmailContent,
    announce_change,
    queue_email,
    write_second_factor_reset_email,
)
from bonobot.accounts.models import FactorSecret, Membership, Organization, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import Forbidden
from bonobot.ledger.audit.admin_changes import record_change
from bonobot.ledger.types import Actor

STRONG_TYPES = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)
SECOND_FACTOR_RESET = "second_factor_reset"
SECRET_FIELDS = ("secret", "seed")  # keys of allauth's data that hold a secret


class SecondFactorAdapter(DefaultMFAAdapter):
    """allauth's adapter for second factors."""

    error_messages = {
        **DefaultMFAAdapter.error_messages,
        "incorrect_code": _("This code is incorrect, or was used before."),
        "invalid_passkey": _("This passkey wasn't accepted. Try again, or use another method."),
        "cannot_generate_recovery_codes": _("Set up an authenticator app or a passkey first."),
    }

    def encrypt(self, text: str) -> str:
        """Encrypt a secret of the current user; return the id of its row."""
        user: Any = context.request.user
        return str(FactorSecret.objects.create(user=user, secret=text).pk)

    def decrypt(self, encrypted_text: str) -> str:
        """Return the secret with an id; raises `UnreadableSecret`."""
        return str(FactorSecret.objects.get(pk=encrypted_text).secret.open())

    def get_totp_label(self, user: Any) -> str:
        return str(user.get_username())

    def generate_authenticator_name(self, user: Any, type: Authenticator.Type) -> str:
        """Return the name that a new passkey gets if the person enters none."""
        count = Authenticator.objects.filter(user=user, type=type).count()
        return _t("Passkey %(n)d") % {"n": count + 1} if count else _t("Passkey")


class SecondFactorRequired(Forbidden):
    """The organization requires a second factor, and this user has none."""

    code = "second_factor_required"

    def __init__(self) -> None:
        super().__init__(
            "This organization requires a second factor, and you haven't set one up yet.",
            rule="second_factor",
            remedy="Sign in to the admin site and set one up.",
        )


def has_second_factor(user: User) -> bool:
    """Return whether a user has a second factor (a query)."""
    return Authenticator.objects.filter(user=user, type__in=STRONG_TYPES).exists()


def check_second_factor(user: User, organization: Organization) -> None:
    """Raise `SecondFactorRequired` if the organization requires one that the user lacks."""
    if organization.second_factor and not has_second_factor(user):
        raise SecondFactorRequired


def reset_second_factor(principal: Principal, user: User) -> None:
    """Delete a user's second factors and end their sessions; raises `Forbidden`.

    Owners may do this for users who belong to no other organization.
    """
    require_account_control(principal, user)
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
        queue_email(user, SECOND_FACTOR_RESET)
    end_sessions(user)


def build_second_factor_reset_email(user: User) -> EmailContent | None:
    """Build the email about a reset of the second factor; None if the account is disabled."""
    if not user.is_active:
        return None
    return write_second_factor_reset_email(user)


def end_sessions(user: User, *, except_key: str = "") -> None:
    for session in UserSession.objects.filter(user=user).exclude(session_key=except_key):
        session.end()


def require_account_control(principal: Principal, user: User) -> None:
    """Raise `Forbidden` unless the principal may manage how this user signs in."""
    principal.require(Action.MANAGE_MEMBERS)
    if principal.platform_admin:
        return
    other_memberships = Membership.objects.filter(user=user).exclude(
        organization_id=principal.organization_id
    )
    own_memberships = Membership.objects.filter(
        user=user, organization_id=principal.organization_id
    )
    if user.is_superuser or not own_memberships.exists() or other_memberships.exists():
        raise Forbidden(
            "Only a platform administrator can change how this person signs in.",
            rule="platform_admin",
            remedy="Contact a platform administrator.",
        )


def record_own_change(action: str, user: User, **details: Any) -> None:
    """Record a change to a user's own account in the audit log of each of their organizations."""
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
    """Record and announce a new factor and end the other sessions."""
    delete_unused_secrets(user)
    record_own_change("second_factor_added", user, kind=authenticator.type)
    announce_change(user, f"{authenticator.type}_added", method=str(authenticator))
    if authenticator.type in STRONG_TYPES:
        end_sessions(user, except_key=request.session.session_key or "")


def handle_factor_removed(user: User, authenticator: Authenticator, **_: Any) -> None:
    delete_unused_secrets(user)
    record_own_change("second_factor_removed", user, kind=authenticator.type)
    announce_change(user, f"{authenticator.type}_removed", method=str(authenticator))


def delete_unused_secrets(user: User) -> None:
    """Delete the secrets that no allauth row refers to."""
    rows = Authenticator.objects.filter(user=user).values_list("data", flat=True)
    used_ids = {UUID(data[name]) for data in rows for name in SECRET_FIELDS if data.get(name)}
    FactorSecret.objects.filter(user=user).exclude(pk__in=used_ids).delete()
