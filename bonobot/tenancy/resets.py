"""Passwords that were forgotten: a link by mail, good for one time and for some hours.

The link is Django's: it is made from the stored password, so a new password ends it and every
session with it. Who asks never learns whether there is an account.
"""

from collections.abc import Iterable
from uuid import UUID

from django.conf import settings
from django.contrib.auth.forms import PasswordResetForm
from django.contrib.auth.tokens import default_token_generator
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode
from django.utils.translation import gettext as _t

from bonobot.ledger.changes import change
from bonobot.lib.problems import Conflict
from bonobot.tenancy import letters
from bonobot.tenancy.attempts import RESET_ADDRESS, RESET_EMAIL, attempt
from bonobot.tenancy.models import User
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.second_factor import require_power_over


def accounts_of(email: str, address: str) -> list[UUID]:
    """Return the accounts that a link goes to; `address` is who asks. Raises `TooMany`."""
    attempt(RESET_ADDRESS, address)
    attempt(RESET_EMAIL, email.strip().lower())
    return [user.pk for user in PasswordResetForm().get_users(email)]


def mail_resets(accounts: Iterable[UUID | str]) -> int:
    """Mail a link to each account that has an address; return how many that were."""
    found = User.objects.filter(pk__in=list(accounts), is_active=True).exclude(email="")
    for user in found:
        with letters.language_of(user):
            _mail_reset(user)
    return len(found)


def _mail_reset(user: User) -> None:
    letters.send(
        user.email,
        _t("A new password for Bonobot"),
        (
            _t("Open this link to choose a new password for %(name)s:")
            % {"name": user.get_username()},
            link_of(user),
            _t("It can be used once, within %(hours)s hours.")
            % {"hours": settings.BONOBOT_PASSWORD_RESET_H},
            _t("If you don't know what this is about, do nothing."),
        ),
    )


def offer_reset(principal: Principal, user: User) -> str:
    """Send a member a link to choose a new password; return it where it can't be mailed.

    A link that isn't mailed is the platform administrator's alone: whoever has it can sign in.
    Raises `Forbidden`, `Conflict` (code `mail_unset`) and `Unavailable`.
    """
    require_power_over(principal, user)
    mailed = bool(user.email) and letters.can_send()
    if not mailed and not principal.platform_admin:
        raise Conflict(
            "No message can be sent to this person.",
            code="mail_unset",
            remedy="Ask a platform administrator, who can hand a link over.",
        )
    with change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action="password_reset_offered",
        resource_type="user",
        resource_id=str(user.pk),
        resource_name=user.get_username(),
        details={"mailed": mailed},
        governed=False,
    ):
        pass
    if not mailed:
        return link_of(user)
    mail_resets([user.pk])
    return ""


def link_of(user: User) -> str:
    """Return a link that lets whoever opens it choose a new password for the account."""
    named = urlsafe_base64_encode(force_bytes(user.pk))
    made = default_token_generator.make_token(user)
    return letters.address_of(reverse("account_new_password", args=[named, made]))
