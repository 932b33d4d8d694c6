"""Send notifications as plain text email.

Each address gets the language of its account, English by default; addresses of one language share
a message. If one message fails, all are sent again later with the same Message-ID, so that mail
programs show duplicates once.

Header values are single lines of visible characters, which prevents header injection through names
of servers.
"""

from collections.abc import Iterator, Sequence
from smtplib import SMTPException

from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.core.mail.backends.base import BaseEmailBackend
from django.utils import translation

from bonobot.accounts.models import User
from bonobot.core.i18n.localization import localize_text
from bonobot.core.text.untrusted_text import make_visible
from bonobot.notifications.events import EVENTS
from bonobot.notifications.models import SEVERITY_NAMES, Notification

MAX_SUBJECT_LENGTH = 150
MAX_ERROR_LENGTH = 300


def send_emails(notifications: Sequence[Notification]) -> Iterator[tuple[Notification, str]]:
    """Send notifications; yield each with its error, blank if it was sent."""
    connection = get_connection()
    if error := _open_connection(connection):
        for notification in notifications:
            yield notification, error
        return
    try:
        for notification in notifications:
            yield notification, _send_messages(notification, connection)
    finally:
        connection.close()


def _open_connection(connection: BaseEmailBackend) -> str:
    """Connect to the mail server; return an error, blank if there is none."""
    if not settings.BONOBOT_EMAIL_URL:
        return "This installation doesn't send email: `BONOBOT_EMAIL_URL` isn't set."
    try:
        connection.open()
    except OSError as error:
        return _describe_error(error)
    return ""


def _send_messages(notification: Notification, connection: BaseEmailBackend) -> str:
    """Send a message for each language; return an error, blank if there is none."""
    try:
        for language, addresses in _group_by_language(notification.channel.addresses).items():
            with translation.override(language):
                message = _build_message(notification, addresses, connection)
            message.send()
    except OSError as error:
        return _describe_error(error)
    return ""


def _group_by_language(addresses: Sequence[str]) -> dict[str, list[str]]:
    """Return the addresses by the language of their account (a query)."""
    users = User.objects.filter(email__in=addresses, is_active=True).exclude(language="")
    languages = dict(users.values_list("email", "language"))
    groups: dict[str, list[str]] = {}
    for address in addresses:
        groups.setdefault(languages.get(address, settings.LANGUAGE_CODE), []).append(address)
    return groups


def _build_message(
    notification: Notification, addresses: Sequence[str], connection: BaseEmailBackend
) -> EmailMessage:
    """Return a notification in the active language."""
    title = localize_text(EVENTS[notification.event].title)
    severity = SEVERITY_NAMES[notification.severity]
    lines = [localize_text(notification.text)]
    if notification.link:
        lines += ["", f"{settings.BONOBOT_URL}{notification.link}"]
    footer = f"Bonobot, {notification.organization.name}: {severity} ({notification.event})"
    lines += ["", f"-- \n{footer}"]
    return EmailMessage(
        subject=_format_subject(f"[Bonobot] {title}: {notification.about}"),
        body="\n".join(lines),
        from_email=settings.BONOBOT_EMAIL_FROM,
        to=list(addresses),
        headers={
            # The same for each attempt, so that duplicates are shown once.
            "Message-ID": f"<{notification.pk}@bonobot>",
            "Auto-Submitted": "auto-generated",
        },
        connection=connection,
    )


def _format_subject(text: str) -> str:
    """Return a subject on one line; a line break would start another header."""
    return " ".join(make_visible(text, MAX_SUBJECT_LENGTH).split())


def _describe_error(error: OSError) -> str:
    """Describe a mail error without the server's reply, which may quote the credentials."""
    if isinstance(error, SMTPException):  # an `OSError`, too
        code = getattr(error, "smtp_code", None)
        return f"The mail server refused ({type(error).__name__}{f' {code}' if code else ''})."
    reason = f"{type(error).__name__}: {error.strerror or error}"
    return f"The mail server doesn't answer ({reason})."[:MAX_ERROR_LENGTH]
