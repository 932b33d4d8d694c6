"""Pacing: how much of the loop's time one child may take with what it writes.

A child that talks without end, to us or to stderr, would leave less and less of the loop to all
others, also after whoever called it has given up. Its output is left lying in its pipe for a while
instead: the child then waits in its own write.
"""

SHARE = 0.1  # of the loop's time
GRACE_S = 0.02  # of work at once that nobody pauses for
PER_READ_S = 0.0001  # what a read costs beside what is done with it
LONGEST_S = 1.0


class Pace:
    """Counts the time that one child's output takes."""

    def __init__(self) -> None:
        self._debt_s = 0.0
        self._at = 0.0

    def spent(self, seconds: float, now: float) -> float:
        """Count one read's work that ended at `now`; return how long not to read, in seconds."""
        self._debt_s = max(0.0, self._debt_s - SHARE * (now - self._at)) + seconds + PER_READ_S
        self._at = now
        return 0.0 if self._debt_s <= GRACE_S else min(self._debt_s / SHARE, LONGEST_S)
