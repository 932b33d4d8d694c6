"""Throttling of reads from children and streams.

A child that writes without end would take more and more of the loop's time, even after its caller
has given up. Reading from it is paused instead, so the child blocks in its own write. The same
applies to a server with an endless event stream.
"""

LOOP_SHARE = 0.1  # of the loop's time
STREAM_SHARE = 0.25  # more, as a stream ends with its call and a child does not
GRACE_S = 0.02  # of work that causes no pause
PER_READ_S = 0.0001  # overhead of one read
MAX_PAUSE_S = 1.0


class ReadThrottle:
    """Counts the loop time spent on one child's output or one stream."""

    def __init__(self, share: float | None = None) -> None:
        self._share = share
        self._debt_s = 0.0
        self._updated_at = 0.0

    def add_work(self, seconds: float, now: float) -> float:
        """Add the work of one read that ended at `now`; return the pause in seconds."""
        share = self._share or LOOP_SHARE
        self._debt_s = (
            max(0.0, self._debt_s - share * (now - self._updated_at)) + seconds + PER_READ_S
        )
        self._updated_at = now
        return 0.0 if self._debt_s <= GRACE_S else min(self._debt_s / share, MAX_PAUSE_S)
