"""Send plain-text email to one person.

Header values are reduced to one line of visible characters, so that a name can't inject headers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from smtplib import SMTPException

from django.conf import settings
from django.core.mail import EmailMessage
from django.utils import translation

from bonobot.accounts.models import User
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import ServiceUnavailable
from bonobot.core.text.untrusted_text import make_visible

MAX_SUBJECT_LENGTH = 150


def can_send() -> bool:
    """Return whether a mail server is configured."""
    return bool(settings.BONOBOT_EMAIL_URL)


def send_email(to: str, subject: str, paragraphs: Sequence[str], *, message_id: str = "") -> None:
    """Send a message; raises `ServiceUnavailable` (code `email_unavailable`)."""
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
