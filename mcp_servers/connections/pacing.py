"""Pacing: how much of the loop's time one child, or one stream of events, may take.

A child that talks without end, to us or to stderr, would leave less and less of the loop to all
others, also after whoever called it has given up. Its output is left lying in its pipe for a while
instead: the child then waits in its own write. So does a server whose stream of events has no end.
"""

SHARE = 0.1  # of the loop's time
STREAM_SHARE = 0.25  # more: a stream lasts as long as its caller waits, a child beyond that
GRACE_S = 0.02  # of work at once that nobody pauses for
PER_READ_S = 0.0001  # what a read costs beside what is done with it
LONGEST_S = 1.0


class Pace:
    """Counts the time that one child's output, or one stream, takes."""

    def __init__(self, share: float | None = None) -> None:
        self._share = share
        self._debt_s = 0.0
        self._at = 0.0

    def spent(self, seconds: float, now: float) -> float:
        """Count one read's work that ended at `now`; return how long not to read, in seconds."""
        share = self._share or SHARE
        self._debt_s = max(0.0, self._debt_s - share * (now - self._at)) + seconds + PER_READ_S
        self._at = now
        return 0.0 if self._debt_s <= GRACE_S else min(self._debt_s / share, LONGEST_S)
