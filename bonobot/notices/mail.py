"""E-mail: one plain-text message for each notice, over one connection for those of a batch.

Header values are single lines of visible characters, so nothing that a server calls itself can
add a header; the text is plain, so nothing in it is rendered.
"""

from collections.abc import Iterator, Sequence
from smtplib import SMTPException

from django.conf import settings
from django.core.mail import EmailMessage, get_connection

from bonobot.lib.untrusted import visible
from bonobot.notices.events import EVENTS
from bonobot.notices.models import Notice

LONGEST_SUBJECT = 150


def send_all(notices: Sequence[Notice]) -> Iterator[tuple[Notice, str]]:
    """Send the notices; yield each with what went wrong, blank if nothing, as it is known."""
    if not settings.BONOBOT_EMAIL_URL:
        for notice in notices:
            yield notice, "This installation sends no e-mail: `BONOBOT_EMAIL_URL` is not set."
        return
    connection = get_connection()
    try:
        connection.open()
    except (SMTPException, OSError) as error:
        for notice in notices:
            yield notice, _told(error)
        return
    try:
        for notice in notices:
            try:
                message(notice, connection).send()
            except (SMTPException, OSError) as error:
                yield notice, _told(error)
            else:
                yield notice, ""
    finally:
        connection.close()


def message(notice: Notice, connection: object = None) -> EmailMessage:
    """Return the message of a notice."""
    title = EVENTS[notice.event].title
    lines = [notice.text]
    if notice.link:
        lines += ["", f"{settings.BONOBOT_URL}{notice.link}"]
    lines += ["", f"-- \nBonobot, {notice.organization.name}: {notice.severity}, {notice.event}"]
    return EmailMessage(
        subject=_line(f"[Bonobot] {title}: {notice.subject_name}"),
        body="\n".join(lines),
        from_email=settings.BONOBOT_EMAIL_FROM,
        to=list(notice.channel.addresses),
        headers={
            # The same at each attempt, so that a message sent twice shows once.
            "Message-ID": f"<{notice.pk}@bonobot>",
            "Auto-Submitted": "auto-generated",
        },
        connection=connection,  # type: ignore[arg-type]  # any of Django's backends
    )


def _line(text: str) -> str:
    return " ".join(visible(text, LONGEST_SUBJECT).split())


def _told(error: OSError) -> str:  # smtplib's errors are among them
    """Say what the mail server refused, without what it may quote of the login."""
    if isinstance(error, SMTPException):
        code = getattr(error, "smtp_code", None)
        return f"The mail server refused ({type(error).__name__}{f' {code}' if code else ''})."
    return f"The mail server doesn't answer ({type(error).__name__}: {error.strerror or error})."[
        :300
    ]
