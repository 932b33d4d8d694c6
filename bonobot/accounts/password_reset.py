"""Build and mail password reset links.

The links are Django's: they depend on the stored password, so a new password invalidates them. They
also depend on the number of the email address, which each change of the address increases. The
requester never learns whether an account exists.

After a reset, a signed link is mailed to what a person with the old password may have changed. It
needs no sign-in, because an intruder may have added a second factor. It only removes access: linked
accounts, sessions, and authorized clients. It never removes a second factor, because access to the
mailbox alone must not be enough to sign in.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from allauth.mfa.models import Authenticator
from django.contrib.auth.forms import PasswordResetForm
from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.core import signing
from django.db import transaction
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from bonobot.accounts import account_emails
from bonobot.accounts.account_emails import EmailContent, announce_change, queue_email
from bonobot.accounts.attempt_limits import RESET_ADDRESS, RESET_EMAIL, charge_attempt
from bonobot.accounts.email_addresses import get_address_number
from bonobot.accounts.models import Identity, Membership, Token, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.profiles import list_sessions
from bonobot.accounts.second_factor import end_sessions, record_own_change, require_account_control
from bonobot.accounts.sso.account_linking import unlink_identity
from bonobot.accounts.tokens.oauth_grants import end_user_grants, list_user_grants
from bonobot.core.problems import Conflict, NotFound
from bonobot.ledger.audit.admin_changes import record_change

RESET_LINK = "password_reset_link"


class ResetTokenGenerator(PasswordResetTokenGenerator):
    """Django's tokens, which don't become valid again when an old address is restored."""

    def _make_hash_value(self, user: Any, timestamp: int) -> str:
        return f"{super()._make_hash_value(user, timestamp)}:{get_address_number(user)}"


reset_tokens = ResetTokenGenerator()

REVIEW_LINK_SALT = "reset_review"
REVIEW_LINK_DAYS = 7
RESET_REVIEW = "reset_review"


@dataclass(frozen=True, slots=True)
class ResetReview:
    """What an intruder may have added to an account."""

    user: User
    identities: list[Identity]
    factors: list[Authenticator]
    grants: list[Token]
    session_count: int


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
    return account_emails.write_password_reset_email(user, build_reset_link(user))


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


def announce_reset(user: User) -> None:
    """Queue an email about a password reset, if mail can be sent."""
    queue_email(user, RESET_REVIEW)


def build_review_email(user: User) -> EmailContent | None:
    """Build the email about a password reset; None if the account is disabled."""
    if not user.is_active:
        return None
    return account_emails.write_reset_review_email(
        user,
        build_review_link(user),
        days=REVIEW_LINK_DAYS,
        identity_count=Identity.objects.filter(user=user).count(),
    )


def build_review_link(user: User) -> str:
    token = signing.dumps([str(user.pk), _compute_stamp(user)], salt=REVIEW_LINK_SALT)
    return account_emails.build_absolute_url(reverse("account_review", args=[token]))


def _compute_stamp(user: User) -> str:
    """Return what a link is bound to: a new password invalidates it."""
    return str(user.get_session_auth_hash())[:16]


def get_reviewed_user(link_token: str) -> User:
    """Return the user of a link; raises `NotFound`."""
    try:
        user_id, stamp = signing.loads(
            link_token, salt=REVIEW_LINK_SALT, max_age=timedelta(days=REVIEW_LINK_DAYS)
        )
    except signing.BadSignature:
        user_id, stamp = None, ""
    user: User | None = User.objects.filter(pk=user_id, is_active=True).first()
    if user is None or stamp != _compute_stamp(user):
        raise NotFound(
            "This link has expired, or the password was changed again.",
            code="link_invalid",
            remedy="Sign in and check your profile.",
        )
    return user


def build_review(user: User) -> ResetReview:
    identities = Identity.objects.filter(user=user).select_related("provider__organization")
    return ResetReview(
        user=user,
        identities=list(identities.order_by("-created_at")),
        factors=list(Authenticator.objects.filter(user=user).order_by("-created_at")),
        grants=list_user_grants(user.pk),
        session_count=len(list_sessions(user)),
    )


def end_access(user: User, identity_ids: Collection[str]) -> int:
    """Unlink identities and end all sessions and grants; return how many identities.

    Raises `Conflict`.
    """
    identities = Identity.objects.filter(user=user).select_related("provider")
    chosen = [identity for identity in identities if str(identity.pk) in identity_ids]
    with transaction.atomic():
        for identity in chosen:
            unlink_identity(user, identity)
        session_count = len(list_sessions(user))
        end_sessions(user)
        end_user_grants(user, reason="reset_review")
        record_own_change("signed_out", user, sessions=session_count, by="reset_review")
    return len(chosen)
