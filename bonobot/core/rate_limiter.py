"""The generic cell rate algorithm (GCRA) of the rate limiter.

The state of a limit is one number, the theoretical arrival time (TAT): when the bucket is full
again. It fits in a database column and can be advanced by one conditional update.
"""

from typing import NamedTuple

MICROSECONDS_PER_MINUTE = 60_000_000
# A third of a minute's calls may come at once, for parallel calls of one turn.
BURST_SHARE = 3
MIN_BURST = 10


class RateLimitResult(NamedTuple):
    """Whether a request is allowed, the TAT to store, and the microseconds to wait if it isn't."""

    allowed: bool
    tat: int
    retry_after: int


def compute_interval(per_minute: int) -> int:
    """Return the microseconds until one unit is available again, rounded up."""
    if per_minute < 1:
        raise ValueError(f"`per_minute` must be at least 1, not {per_minute}.")
    return -(-MICROSECONDS_PER_MINUTE // per_minute)


def calculate_burst(per_minute: int) -> int:
    """Return how many of a minute's calls may come at once."""
    return max(min(MIN_BURST, per_minute), per_minute // BURST_SHARE)


def admit_request(tat: int, now: int, interval: int, burst: int, cost: int = 1) -> RateLimitResult:
    """Decide on `cost` units at `now`; any window t allows at most t / interval + burst units.

    Times are microseconds since a fixed epoch. Raises ValueError if the cost can never pass.
    """
    if interval < 1 or burst < 1 or not 0 <= cost <= burst:
        raise ValueError(
            f"A cost of {cost} can't pass a burst of {burst} at an interval of {interval} us."
        )
    new_tat = max(tat, now) + cost * interval
    wait = new_tat - burst * interval - now
    if wait > 0:
        return RateLimitResult(allowed=False, tat=tat, retry_after=wait)
    return RateLimitResult(allowed=True, tat=new_tat, retry_after=0)
