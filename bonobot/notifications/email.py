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
from django.utils import translation

from bonobot.accounts.models import User
from bonobot.core.i18n.localization import localize_text
from bonobot.core.text.untrusted_text import make_visible
from bonobot.notifications.events import EVENTS
from bonobot.notifications.models import SEVERITY_NAMES, Notification

MAX_SUBJECT_LENGTH = 150


def send_emails(notices: Sequence[Notification]) -> Iterator[tuple[Notification, str]]:
    """Send notifications; yield each with its error, blank if it was sent."""
    if not settings.BONOBOT_EMAIL_URL:
        for notice in notices:
            yield notice, "This installation doesn't send email: `BONOBOT_EMAIL_URL` isn't set."
        return
    connection = get_connection()
    try:
        connection.open()
    except (SMTPException, OSError) as error:
        for notice in notices:
            yield notice, _describe_smtp_error(error)
        return
    try:
        for notice in notices:
            try:
                for message in build_messages(notice, connection):
                    message.send()
            except (SMTPException, OSError) as error:
                yield notice, _describe_smtp_error(error)
            else:
                yield notice, ""
    finally:
        connection.close()


def build_messages(notice: Notification, connection: object = None) -> Iterator[EmailMessage]:
    """Yield the messages of a notification, one for each language (a query)."""
    for language, addresses in _group_by_language(notice.channel.addresses).items():
        with translation.override(language):
            yield _build_message(notice, addresses, connection)


def _group_by_language(addresses: Sequence[str]) -> dict[str, list[str]]:
    users = User.objects.filter(email__in=addresses, is_active=True).exclude(language="")
    languages = dict(users.values_list("email", "language"))
    groups: dict[str, list[str]] = {}
    for address in addresses:
        groups.setdefault(languages.get(address, settings.LANGUAGE_CODE), []).append(address)
    return groups


def _build_message(
    notice: Notification, addresses: Sequence[str], connection: object
) -> EmailMessage:
    title, severity = localize_text(EVENTS[notice.event].title), SEVERITY_NAMES[notice.severity]
    lines = [localize_text(notice.text)]
    if notice.link:
        lines += ["", f"{settings.BONOBOT_URL}{notice.link}"]
    lines += ["", f"-- \nBonobot, {notice.organization.name}: {severity} ({notice.event})"]
    return EmailMessage(
        subject=_to_single_line(f"[Bonobot] {title}: {notice.about}"),
        body="\n".join(lines),
        from_email=settings.BONOBOT_EMAIL_FROM,
        to=list(addresses),
        headers={
            # The same for each attempt, so that duplicates are shown once.
            "Message-ID": f"<{notice.pk}@bonobot>",
            "Auto-Submitted": "auto-generated",
        },
        connection=connection,  # type: ignore[arg-type]  # any of Django's backends
    )


def _to_single_line(text: str) -> str:
    return " ".join(make_visible(text, MAX_SUBJECT_LENGTH).split())


def _describe_smtp_error(error: OSError) -> str:  # smtplib's errors are among them
    """Describe a mail error without the server's reply, which may quote the credentials."""
    if isinstance(error, SMTPException):
        code = getattr(error, "smtp_code", None)
        return f"The mail server refused ({type(error).__name__}{f' {code}' if code else ''})."
    return f"The mail server doesn't answer ({type(error).__name__}: {error.strerror or error})."[
        :300
    ]
