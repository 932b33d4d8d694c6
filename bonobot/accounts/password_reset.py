"""Build and mail password reset links.

The links are Django's: they depend on the stored password, so a new password invalidates them. They
also depend on the number of the email address, which each change of the address increases. The
requester never learns whether an account exists.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.forms import PasswordResetForm
from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.db import transaction
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode
from django.utils.translation import gettext as _t

from bonobot.accounts import account_emails
from bonobot.accounts.account_emails import EmailContent, announce_change, queue_email
from bonobot.accounts.attempt_limits import RESET_ADDRESS, RESET_EMAIL, charge_attempt
from bonobot.accounts.email_addresses import get_address_number
from bonobot.accounts.models import Membership, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.second_factor import record_own_change, require_account_control
from bonobot.accounts.tokens.services import end_user_grants
from bonobot.core.problems import Conflict
from bonobot.ledger.audit.admin_changes import record_change

RESET_LINK = "password_reset_link"


class ResetTokenGenerator(PasswordResetTokenGenerator):
    """Django's tokens, which don't become valid again when an old address is restored."""

    def _make_hash_value(self, user: Any, timestamp: int) -> str:
        return f"{super()._make_hash_value(user, timestamp)}:{get_address_number(user)}"


reset_tokens = ResetTokenGenerator()


def list_reset_accounts(email: str, client_address: str) -> list[UUID]:
    """Return the accounts to send a reset link to; raises `TooManyAttempts`."""
    charge_attempt(RESET_ADDRESS, client_address)
    charge_attempt(RESET_EMAIL, email.strip().lower())
    return [user.pk for user in PasswordResetForm().get_users(email)]


def queue_reset_emails(accounts: Iterable[UUID | str]) -> None:
    """Queue an email with a link for each active account with an email address."""
    for user in User.objects.filter(pk__in=list(accounts), is_active=True):
        queue_email(user, RESET_LINK)


def build_reset_email(user: User) -> EmailContent | None:
    """Build the email with a link; None if the account is disabled."""
    if not user.is_active:
        return None
    return EmailContent(
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
    can_mail = bool(user.email) and account_emails.can_send()
    if not can_mail and not principal.platform_admin:
        raise Conflict(
            "No message can be sent to this user.",
            code="email_not_configured",
            remedy="Contact a platform administrator, who can provide a link.",
        )
    _record_change(principal, user, "password_reset_link_created", mailed=can_mail)
    if not can_mail:
        return build_reset_link(user)
    with account_emails.override_language(user):
        if content := build_reset_email(user):
            account_emails.send_email(user.email, content.subject, content.paragraphs)
    return ""


def build_reset_link(user: User) -> str:
    encoded_id = urlsafe_base64_encode(force_bytes(user.pk))
    token = reset_tokens.make_token(user)
    return account_emails.build_absolute_url(
        reverse("account_new_password", args=[encoded_id, token])
    )


@contextmanager
def record_password_change(user_pk: Any, principal: Principal) -> Iterator[None]:
    """Record and announce that the block changed a user's password, if it did.

    If another person changed it, the access of the clients that the user authorized ends, too, as
    after a reset.
    """
    with transaction.atomic():
        rows = User.objects.filter(pk=user_pk)
        old_hash = rows.values_list("password", flat=True).first()
        yield
        user = rows.first()
        if user is None or user.password == old_hash:
            return
        if str(user.pk) == principal.id and Membership.objects.filter(user=user).exists():
            record_own_change("password_changed", user)
        else:
            _record_change(principal, user, "password_changed")
        if str(user.pk) != principal.id:
            end_user_grants(user, reason="password_changed")
        announce_change(user, "password_changed")


def _record_change(principal: Principal, user: User, action: str, **details: Any) -> None:
    with record_change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action=action,
        resource_type="user",
        resource_id=str(user.pk),
        resource_name=user.get_username(),
        details=details,
        governed=False,
    ):
        pass
