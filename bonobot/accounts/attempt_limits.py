"""Rate limits for attempts at anything that can be guessed.

Each limit has one row per subject (an account, an address), changed by conditional updates.
Subjects are stored as digests. Rows that are no longer limiting are deleted.
"""

from dataclasses import dataclass
from hashlib import sha256
from time import time_ns

from django.db import IntegrityError, transaction

from bonobot.accounts.models import Attempts
from bonobot.core.problems import Problem
from bonobot.core.rate_limiter import admit_request, compute_interval

MAX_UPDATE_TRIES = 5  # of the conditional update, when others change the row
MICROSECONDS_PER_SECOND = 1_000_000


class TooManyAttempts(Problem):
    """Too many attempts; `retry_after` is in seconds."""

    code = "too_many_attempts"
    status = 429
    title = "Too many attempts"


@dataclass(frozen=True)
class AttemptLimit:
    """A burst of attempts, then a number per minute."""

    name: str
    burst: int
    per_minute: int


# The pair limit allows one person's typing errors, the address limit those of a whole office. The
# account limit slows attackers with many addresses and still lets the owner in.
SIGN_IN_PAIR = AttemptLimit("sign-in:pair", 10, 2)
SIGN_IN_ACCOUNT = AttemptLimit("sign-in:account", 60, 10)
SIGN_IN_ADDRESS = AttemptLimit("sign-in:address", 60, 20)
SIGN_IN_DEVICE = AttemptLimit("sign-in:device", 10, 2)
JOIN_ADDRESS = AttemptLimit("join:address", 30, 10)
RESET_ADDRESS = AttemptLimit("reset:address", 20, 2)
RESET_EMAIL = AttemptLimit("reset:email", 3, 1)
INVITE_ORGANIZATION = AttemptLimit("invite:organization", 100, 10)
INVITE_EMAIL = AttemptLimit("invite:email", 5, 1)
# Of one address; counted in each process, since each request with an unknown token asks for it.
INVALID_TOKENS = AttemptLimit("token:address", 60, 60)


def charge_attempt(limit: AttemptLimit, *subject: str) -> None:
    """Count an attempt; raises `TooManyAttempts` without counting it."""
    key = _hash_subject((limit.name, *subject))
    interval = compute_interval(limit.per_minute)
    for _ in range(MAX_UPDATE_TRIES):
        now = time_ns() // 1_000
        row = Attempts.objects.filter(pk=key).first()
        verdict = admit_request(row.tat if row else 0, now, interval, limit.burst)
        if not verdict.allowed:
            raise _build_error(verdict.retry_after / MICROSECONDS_PER_SECOND)
        if row is None and _create_attempts(key, verdict.tat, now):
            return
        if row is not None and Attempts.objects.filter(pk=key, tat=row.tat).update(tat=verdict.tat):
            return
    # So many others attempt the same that this one couldn't be counted.
    raise _build_error(interval / MICROSECONDS_PER_SECOND)


def _build_error(retry_after_s: float) -> TooManyAttempts:
    return TooManyAttempts(
        "There were too many attempts.",
        remedy="Wait a moment, then try again.",
        retry_after=retry_after_s,
    )


def _create_attempts(key: str, tat: int, now: int) -> bool:
    Attempts.objects.filter(tat__lte=now).delete()
    try:
        with transaction.atomic():
            Attempts.objects.create(key=key, tat=tat)
    except IntegrityError:
        return False
    return True


def remember_once(seconds: int, *subject: str) -> bool:
    """Remember a subject for `seconds`; return False if it already is."""
    key = _hash_subject(subject)
    now = time_ns() // 1_000
    expires = now + seconds * MICROSECONDS_PER_SECOND
    if Attempts.objects.filter(pk=key, tat__lte=now).update(tat=expires):
        return True
    return _create_attempts(key, expires, now)


def forget_once(*subject: str) -> None:
    """Forget a subject that `remember_once` stored."""
    Attempts.objects.filter(pk=_hash_subject(subject)).delete()


def _hash_subject(subject: tuple[str, ...]) -> str:
    return sha256("\0".join(subject).encode()).hexdigest()
