"""Build and mail password reset links.

The links are Django's: they depend on the stored password, so a new password invalidates them. The
requester never learns whether an account exists.
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

from bonobot.accounts import email_delivery
from bonobot.accounts.attempt_limits import RESET_ADDRESS, RESET_EMAIL, charge_attempt
from bonobot.accounts.models import User
from bonobot.accounts.principals import Principal
from bonobot.accounts.second_factor import require_account_control
from bonobot.core.problems import Conflict
from bonobot.ledger.audit.admin_changes import record_change


def list_reset_accounts(email: str, client_address: str) -> list[UUID]:
    """Return the accounts to send a reset link to; raises `TooManyAttempts`."""
    charge_attempt(RESET_ADDRESS, client_address)
    charge_attempt(RESET_EMAIL, email.strip().lower())
    return [user.pk for user in PasswordResetForm().get_users(email)]


def send_reset_emails(accounts: Iterable[UUID | str]) -> int:
    """Mail a link to each active account with an email address; return their number."""
    users = User.objects.filter(pk__in=list(accounts), is_active=True).exclude(email="")
    for user in users:
        with email_delivery.override_language(user):
            _send_reset_email(user)
    return len(users)


def _send_reset_email(user: User) -> None:
    email_delivery.send_email(
        user.email,
        _t("New password for Bonobot"),
        (
            _t("Open this link to set a new password for %(name)s:")
            % {"name": user.get_username()},
            build_reset_link(user),
            _t("The link works once and expires in %(hours)s hours.")
            % {"hours": settings.BONOBOT_PASSWORD_RESET_H},
            _t("If you didn't expect this message, ignore it."),
        ),
    )


def send_reset_link(principal: Principal, user: User) -> str:
    """Mail a member a reset link, or return the link if it can't be mailed.

    Only platform administrators get the link itself, as its holder can sign in. Raises `Forbidden`,
    `Conflict` (code `email_not_configured`) and `ServiceUnavailable`.
    """
    require_account_control(principal, user)
    can_mail = bool(user.email) and email_delivery.can_send()
    if not can_mail and not principal.platform_admin:
        raise Conflict(
            "No message can be sent to this user.",
            code="email_not_configured",
            remedy="Contact a platform administrator, who can provide a link.",
        )
    with record_change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action="password_reset_link_created",
        resource_type="user",
        resource_id=str(user.pk),
        resource_name=user.get_username(),
        details={"mailed": can_mail},
        governed=False,
    ):
        pass
    if not can_mail:
        return build_reset_link(user)
    send_reset_emails([user.pk])
    return ""


def build_reset_link(user: User) -> str:
    encoded_id = urlsafe_base64_encode(force_bytes(user.pk))
    token = default_token_generator.make_token(user)
    return email_delivery.build_absolute_url(
        reverse("account_new_password", args=[encoded_id, token])
    )
