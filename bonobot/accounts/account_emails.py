"""Emails to people about their account: their texts, and an outbox.

A row of the outbox is created in the transaction of its event, retried while mail is down, and
deleted when the mail server accepted the email. Kinds are registered with a function that builds
the email when it is sent, so that no link waits in the database.

Header values are reduced to one line of visible characters, so that a name can't inject headers.
When the way a person signs in changes, they are emailed, so that they notice a change by another
person: a change of the email address at the old and the new address.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone, translation
from django.utils.formats import date_format
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_noop, ngettext

from bonobot.accounts.models import AccountEmail, Invitation, User
from bonobot.core.celery_tasks import enqueue_task_on_commit
from bonobot.core.db.outbox import RETRY_DELAYS_MIN, claim_row, compute_retry_delay
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import ServiceUnavailable
from bonobot.core.text.untrusted_text import make_visible

MAX_NAME_SHOWN = 100
SIGN_IN_CHANGED = "sign_in_changed"

# What happened, by the code of the change. `method` is the name of a passkey or a provider.
SENTENCES = {
    "password_changed": gettext_noop("The password of the account %(name)s was changed."),
    "email_added": gettext_noop("The account %(name)s now has an email address."),
    "email_changed": gettext_noop("The account %(name)s now has a different email address."),
    "email_removed": gettext_noop("The email address of the account %(name)s was removed."),
    "totp_added": gettext_noop("An authenticator app was added to the account %(name)s."),
    "totp_removed": gettext_noop("The authenticator app of the account %(name)s was removed."),
    "webauthn_added": gettext_noop("The passkey “%(method)s” was added to the account %(name)s."),
    "webauthn_removed": gettext_noop(
        "The passkey “%(method)s” of the account %(name)s was removed."
    ),
    "recovery_codes_added": gettext_noop("The account %(name)s has new recovery codes."),
    "recovery_codes_removed": gettext_noop(
        "The recovery codes of the account %(name)s were removed."
    ),
    "identity_linked": gettext_noop(
        "The identity provider “%(method)s” can now sign in to the account %(name)s."
    ),
    "identity_unlinked": gettext_noop(
        "The identity provider “%(method)s” can no longer sign in to the account %(name)s."
    ),
}

MAX_SUBJECT_LENGTH = 150

# An email about the security of an account is still useful after a week without a mail server; a
# requested link isn't after an hour.
DAY_MIN = 24 * 60
ACCOUNT_DELAYS_MIN = (*RETRY_DELAYS_MIN, *[DAY_MIN] * 6)
LINK_DELAYS_MIN = (1, 5, 15, 30)


@dataclass(frozen=True, slots=True)
class EmailContent:
    """The subject and the paragraphs of an email, in the active language."""

    subject: str
    paragraphs: Sequence[str]


@dataclass(frozen=True, slots=True)
class EmailKind:
    """How an email is built, None if it is no longer needed, and when it is retried (minutes)."""

    build: Callable[..., EmailContent | None]
    retry_delays_min: Sequence[int] = ACCOUNT_DELAYS_MIN


_kinds: dict[str, EmailKind] = {}

logger = logging.getLogger(__name__)

SEND_DUE = "bonobot.accounts.tasks.send_due_account_emails"
BATCH_SIZE = 50
# How long emails that finally failed are kept, and shown by `bonobot doctor`.
RETENTION = timedelta(days=30)


def queue_email(user: User, kind: str, *, address: str = "", **values: Any) -> None:
    """Queue an email with the current transaction, if mail can be sent; a worker sends it.

    Without an `address` it goes to the one that the account has when it is sent. `values` must not
    be secret.
    """
    if can_send() and (address or user.email):
        AccountEmail.objects.create(user=user, kind=kind, address=address, values=values)
        enqueue_task_on_commit(SEND_DUE)


def send_due_emails() -> int:
    """Claim and send due emails, and delete old failed ones; return how many were tried."""
    expired = AccountEmail.objects.given_up().filter(created_at__lt=timezone.now() - RETENTION)
    expired.delete()
    if not can_send():
        return 0
    count = 0
    due = AccountEmail.objects.due().select_related("user").order_by("next_attempt_at")
    for row in due[:BATCH_SIZE]:
        # One at a time: a slow mail server must not outlast the lease of the last one.
        if claim_row(AccountEmail.objects.all(), row):
            _send_row(row)
            count += 1
    return count


def _send_row(row: AccountEmail) -> None:
    kind = get_email_kind(row.kind)
    address = row.address or row.user.email
    rows = AccountEmail.objects.filter(pk=row.pk, next_attempt_at=row.next_attempt_at)
    with override_language(row.user):
        content = kind.build(row.user, **row.values) if address else None
        if content is None:
            rows.delete()
            return
        try:
            send_email(
                address,
                content.subject,
                content.paragraphs,
                # The same for each attempt, so that mail programs show duplicates once.
                message_id=f"<{row.pk}@bonobot>",
            )
        except ServiceUnavailable as problem:
            _settle_failure(row, kind, problem)
        else:
            rows.delete()


def _settle_failure(row: AccountEmail, kind: EmailKind, problem: ServiceUnavailable) -> None:
    delay = compute_retry_delay(row.attempts, kind.retry_delays_min)
    rows = AccountEmail.objects.filter(pk=row.pk, next_attempt_at=row.next_attempt_at)
    rows.update(next_attempt_at=timezone.now() + delay if delay else None, error=str(problem))
    logger.warning(
        "Email %s to the account %s wasn't delivered (%s); %s",
        row.kind,
        row.user_id,
        problem.code,
        f"next attempt in {delay}" if delay else "no further attempt",
    )


def register_email_kind(name: str, kind: EmailKind) -> None:
    """Register a kind (at most 32 characters); `build` gets the user and the row's values."""
    _kinds[name] = kind


def get_email_kind(name: str) -> EmailKind:
    return _kinds[name]


def can_send() -> bool:
    """Return whether a mail server is configured."""
    return bool(settings.BONOBOT_EMAIL_URL)


def send_email(to: str, subject: str, paragraphs: Sequence[str], *, message_id: str = "") -> None:
    """Send a message; raises `ServiceUnavailable` (code `email_unavailable`)."""
    # Commands that only read rows import this module, but not what sends email.
    from smtplib import SMTPException

    from django.core.mail import EmailMessage

    headers = {"Auto-Submitted": "auto-generated"}
    message = EmailMessage(
        subject=" ".join(make_visible(subject, MAX_SUBJECT_LENGTH).split()),
        body="\n\n".join(map(str, paragraphs)) + "\n",
        from_email=settings.BONOBOT_EMAIL_FROM,
        to=[to],
        headers=headers | ({"Message-ID": message_id} if message_id else {}),
    )
    try:
        message.send()
    except (SMTPException, OSError) as error:
        raise ServiceUnavailable(
            format_message(
                "The mail server didn't accept the message ({name}).",
                name=type(error).__name__,
            ),
            code="email_unavailable",
            remedy="Check `BONOBOT_EMAIL_URL`, then send it again.",
        ) from None


@contextmanager
def override_language(user: User) -> Iterator[None]:
    """Activate the user's language, if set, within the block."""
    with translation.override(user.language or translation.get_language()):
        yield


def build_absolute_url(path: str) -> str:
    return f"{settings.BONOBOT_URL}{path}"


def announce_change(user: User, change: str, *, method: str = "", old_email: str = "") -> None:
    """Queue emails about a change, a code of `SENTENCES`, if mail can be sent."""
    for address in sorted({user.email, old_email} - {""}):
        queue_email(user, SIGN_IN_CHANGED, address=address, change=change, method=method)


def announce_email_change(user: User, old_email: str) -> None:
    """Queue emails to the old and the new address."""
    change = "email_changed" if user.email and old_email else "email_added"
    announce_change(user, change if user.email else "email_removed", old_email=old_email)


def build_change_email(user: User, change: str, method: str) -> EmailContent:
    """Build the email about a change."""
    values = {"name": user.get_username(), "method": make_visible(method, MAX_NAME_SHOWN)}
    return EmailContent(
        _t("Your sign-in to Bonobot was changed"),
        (
            _t(SENTENCES[change]) % values,
            _t("If this wasn't you, contact an administrator immediately."),
        ),
    )


def write_invitation_email(invitation: Invitation, sender: str, link: str) -> EmailContent:
    """Return the email with the link of an invitation."""
    context = {
        "who": sender,
        "where": invitation.organization.name,
        "until": date_format(invitation.expires_at, "DATETIME_FORMAT"),
    }
    return EmailContent(
        _t("Join %(where)s on Bonobot") % context,
        (
            _t("%(who)s invited you to join %(where)s on Bonobot. Open this link:") % context,
            link,
            _t("The link works once and expires on %(until)s (UTC).") % context,
            _t("If you didn't expect this message, ignore it."),
        ),
    )


def write_password_reset_email(user: User, link: str) -> EmailContent:
    """Return the email with the link to set a new password."""
    text = _t("Open this link to set a new password for %(name)s:")
    return _build_link_email(user, _t("New password for Bonobot"), text, link)


def write_reset_review_email(
    user: User, link: str, *, days: int, identity_count: int
) -> EmailContent:
    """Return the email about a password reset, with the link to review the account."""
    return EmailContent(
        _t("Your password for Bonobot was reset"),
        (
            _t("The password of the account %(name)s was reset.") % {"name": user.username},
            _t("All sessions and the access of authorized clients were ended."),
            _describe_remaining_access(identity_count),
            _t("If somebody else may have known the old password, review your account:"),
            link,
            _t("The link expires in %(days)s days, and when the password changes again.")
            % {"days": days},
            _t("If this wasn't you, contact an administrator immediately."),
        ),
    )


def _describe_remaining_access(identity_count: int) -> str:
    if not identity_count:
        return _t("Your second factor is unchanged. No account of an identity provider is linked.")
    return ngettext(
        "Your second factor is unchanged. %(n)d linked account of an identity provider can "
        "still sign in until you unlink it.",
        "Your second factor is unchanged. %(n)d linked accounts of identity providers can "
        "still sign in until you unlink them.",
        identity_count,
    ) % {"n": identity_count}


def write_second_factor_reset_email(user: User) -> EmailContent:
    """Return the email about a reset of the second factor."""
    return EmailContent(
        _t("Your second factor on Bonobot was reset"),
        (
            _t("An administrator reset the second factor of the account %(name)s.")
            % {"name": user.get_username()},
            _t("If this wasn't you, contact an administrator immediately."),
        ),
    )


def write_address_confirmation_email(user: User, link: str) -> EmailContent:
    """Return the email with the link to confirm a new email address."""
    text = _t("Open this link to confirm this email address for %(name)s:")
    return _build_link_email(user, _t("Your email address on Bonobot"), text, link)


def _build_link_email(user: User, subject: str, text: str, link: str) -> EmailContent:
    """Return an email with a link that works once; `text` has the placeholder `name`."""
    return EmailContent(
        subject,
        (
            text % {"name": user.get_username()},
            link,
            _t("The link works once and expires in %(hours)s hours.")
            % {"hours": settings.BONOBOT_PASSWORD_RESET_H},
            _t("If you didn't expect this message, ignore it."),
        ),
    )
