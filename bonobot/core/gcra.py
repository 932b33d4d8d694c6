"""Arithmetic of the rate limiter; pure.

The state of a limit is one number, the theoretical arrival time (TAT): when the bucket would be
full again. It can be kept in a database column and moved by one conditional update.
"""

from typing import NamedTuple

MINUTE = 60_000_000


class RateLimitResult(NamedTuple):
    """Whether a request may pass, the TAT to keep, and the microseconds to wait if it may not."""

    allowed: bool
    tat: int
    retry_after: int


def compute_interval(per_minute: int) -> int:
    """Return the microseconds that one unit takes to come back, rounded so as never to exceed."""
    if per_minute < 1:
        raise ValueError(f"`per_minute` must be at least 1, not {per_minute}.")
    return -(-MINUTE // per_minute)


def admit(tat: int, now: int, interval: int, burst: int, cost: int = 1) -> RateLimitResult:
    """Decide on `cost` units at `now`; within any window t at most t / interval + burst pass.

    Times are microseconds since any fixed moment. Raises ValueError when the cost can never pass.
    """
    if interval < 1 or burst < 1 or not 0 <= cost <= burst:
        raise ValueError(
            f"A cost of {cost} can't pass a burst of {burst} at an interval of {interval} us."
        )
    then = max(tat, now) + cost * interval
    wait = then - burst * interval - now
    if wait > 0:
        return RateLimitResult(allowed=False, tat=tat, retry_after=wait)
    return RateLimitResult(allowed=True, tat=then, retry_after=0)
