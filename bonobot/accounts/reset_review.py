"""After a password reset: a signed link to what a person with the old password may have changed.

The link is in an email to the account's address and needs no sign-in, because an intruder may have
added a second factor. It only removes access: linked accounts, sessions, and authorized clients. It
never removes a second factor, because access to the mailbox alone must not be enough to sign in.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from allauth.mfa.models import Authenticator
from django.core import signing
from django.db import transaction
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import ngettext

from bonobot.accounts import account_emails
from bonobot.accounts.account_emails import EmailContent, queue_email
from bonobot.accounts.models import Identity, Token, User
from bonobot.accounts.profiles import list_sessions
from bonobot.accounts.second_factor import end_sessions, record_own_change
from bonobot.accounts.sso.account_linking import unlink_identity
from bonobot.accounts.tokens.services import end_user_grants, list_user_grants
from bonobot.core.problems import NotFound

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


def announce_reset(user: User) -> None:
    """Queue an email about a password reset, if mail can be sent."""
    queue_email(user, RESET_REVIEW)


def build_review_email(user: User) -> EmailContent | None:
    """Build the email about a password reset; None if the account is disabled."""
    if not user.is_active:
        return None
    return EmailContent(
        _t("Your password for Bonobot was reset"),
        (
            _t("The password of the account %(name)s was reset.") % {"name": user.username},
            _t("All sessions and the access of authorized clients were ended."),
            _describe_remaining_access(user),
            _t("If somebody else may have known the old password, review your account:"),
            build_review_link(user),
            _t("The link expires in %(days)s days, and when the password changes again.")
            % {"days": REVIEW_LINK_DAYS},
            _t("If this wasn't you, contact an administrator immediately."),
        ),
    )


def _describe_remaining_access(user: User) -> str:
    count = Identity.objects.filter(user=user).count()
    if not count:
        return _t("Your second factor is unchanged. No account of an identity provider is linked.")
    return ngettext(
        "Your second factor is unchanged. %(n)d linked account of an identity provider can "
        "still sign in until you unlink it.",
        "Your second factor is unchanged. %(n)d linked accounts of identity providers can "
        "still sign in until you unlink them.",
        count,
    ) % {"n": count}


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
