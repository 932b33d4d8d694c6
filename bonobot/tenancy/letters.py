"""Letters: e-mail to one person, with a link that only they should have.

Header values are single lines of visible characters, and the text is plain, so nothing in a name
adds a header or is rendered.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from smtplib import SMTPException

from django.conf import settings
from django.core.mail import EmailMessage
from django.utils import translation

from bonobot.lib.problems import Unavailable
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from bonobot.tenancy.models import User

LONGEST_SUBJECT = 150


def can_send() -> bool:
    """Tell whether a mail server is set."""
    return bool(settings.BONOBOT_EMAIL_URL)


def send(to: str, subject: str, paragraphs: Sequence[str]) -> None:
    """Send a letter; raises `Unavailable` (code `mail_unavailable`)."""
    letter = EmailMessage(
        subject=" ".join(visible(subject, LONGEST_SUBJECT).split()),
        body="\n\n".join(map(str, paragraphs)) + "\n",
        from_email=settings.BONOBOT_EMAIL_FROM,
        to=[to],
        headers={"Auto-Submitted": "auto-generated"},
    )
    try:
        letter.send()
    except (SMTPException, OSError) as error:
        raise Unavailable(
            say(
                "The mail server did not take the message ({name}).",
                name=type(error).__name__,
            ),
            code="mail_unavailable",
            remedy="Look at `BONOBOT_EMAIL_URL`, then send it again.",
        ) from None


@contextmanager
def language_of(user: User) -> Iterator[None]:
    """Speak a person's language, where they have said which, as long as the block runs."""
    with translation.override(user.language or translation.get_language()):
        yield


def address_of(path: str) -> str:
    """Return the whole address of one of our paths, as a letter has it."""
    return f"{settings.BONOBOT_URL}{path}"
