"""Gathering: how many callers are waited for, a moment, before the writer gets what they hand in.

A commit costs the same for one as for many, so where many call at once it is worth waiting for
those who are about to come. Who calls alone never waits.
"""

# The longest that a group waits for the others, in seconds, and for how many at most.
WAIT_S = 0.001
MOST = 32


class Crowd:
    """How many came together of late; `expected` is the size of group that is waited for."""

    def __init__(self) -> None:
        """Expect nobody but who is there."""
        self.expected = 1

    def learn(self, came: int) -> None:
        """Expect one more where as many came as were expected, and one less where fewer did.

        So a crowd that goes away is waited for a few times only.
        """
        if 1 < came >= self.expected:
            self.expected = min(came + 1, MOST)
        else:
            self.expected = max(self.expected - 1, 1)
