"""How often what can be guessed may be tried.

Each limit is one row per subject (an account, an address), moved by a conditional update; subjects
are kept as digests. Rows that are full again are deleted.
"""

from dataclasses import dataclass
from hashlib import sha256
from time import time_ns

from django.db import IntegrityError, transaction

from bonobot.accounts.models import Attempts
from bonobot.core.gcra import admit, compute_interval
from bonobot.core.problems import Problem

TRIES = 5  # until somebody else's update is no longer in the way
SECOND = 1_000_000


class TooManyAttempts(Problem):
    """It was tried too often; `retry_after` says in how many seconds it may be tried again."""

    code = "too_many_attempts"
    status = 429
    title = "Too many attempts"


@dataclass(frozen=True)
class AttemptLimit:
    """So many at once, and then so many a minute."""

    name: str
    burst: int
    per_minute: int


# One person's typing errors fit; from one address, a whole office's; of one account, what an
# attacker with many addresses may try while its owner still gets in.
SIGN_IN_PAIR = AttemptLimit("sign-in:pair", 10, 2)
SIGN_IN_ACCOUNT = AttemptLimit("sign-in:account", 60, 10)
SIGN_IN_ADDRESS = AttemptLimit("sign-in:address", 60, 20)
SIGN_IN_DEVICE = AttemptLimit("sign-in:device", 10, 2)
JOIN_ADDRESS = AttemptLimit("join:address", 30, 10)
RESET_ADDRESS = AttemptLimit("reset:address", 20, 2)
RESET_EMAIL = AttemptLimit("reset:email", 3, 1)
INVITE_ORGANIZATION = AttemptLimit("invite:organization", 100, 10)
INVITE_EMAIL = AttemptLimit("invite:email", 5, 1)


def charge_attempt(limit: AttemptLimit, *subject: str) -> None:
    """Count an attempt; raises `TooMany`, and then counts nothing."""
    key = _key((limit.name, *subject))
    step = compute_interval(limit.per_minute)
    for _ in range(TRIES):
        now = time_ns() // 1_000
        row = Attempts.objects.filter(pk=key).first()
        verdict = admit(row.tat if row else 0, now, step, limit.burst)
        if not verdict.allowed:
            raise TooManyAttempts(
                "This was tried too often.",
                remedy="Wait a little, then try again.",
                retry_after=verdict.retry_after / SECOND,
            )
        if row is None and _create_attempts(key, verdict.tat, now):
            return
        if row is not None and Attempts.objects.filter(pk=key, tat=row.tat).update(tat=verdict.tat):
            return


def _create_attempts(key: str, tat: int, now: int) -> bool:
    Attempts.objects.filter(tat__lte=now).delete()
    try:
        with transaction.atomic():
            Attempts.objects.create(key=key, tat=tat)
    except IntegrityError:
        return False
    return True


def remember_once(seconds: int, *subject: str) -> bool:
    """Remember a subject for so long; return False if it is remembered already."""
    key = _key(subject)
    now = time_ns() // 1_000
    until = now + seconds * SECOND
    if Attempts.objects.filter(pk=key, tat__lte=now).update(tat=until):
        return True
    return _create_attempts(key, until, now)


def forget_once(*subject: str) -> None:
    """Forget what `remember_once` remembers."""
    Attempts.objects.filter(pk=_key(subject)).delete()


def _key(subject: tuple[str, ...]) -> str:
    return sha256("\0".join(subject).encode()).hexdigest()
