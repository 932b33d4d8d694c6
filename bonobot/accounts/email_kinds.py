"""The kinds of emails to people that the outbox sends (`account_emails`); apps register theirs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bonobot.core.db.outbox import RETRY_DELAYS_MIN

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


def register_email_kind(name: str, kind: EmailKind) -> None:
    """Register a kind (at most 32 characters); `build` gets the user and the row's values."""
    _kinds[name] = kind


def get_email_kind(name: str) -> EmailKind:
    return _kinds[name]
