"""Reopening: a stream that a server tells something on is opened again whenever it ends.

Before each next one is a pause. It grows while streams are lost soon, and is spread by chance, so
that not all who lost a server come back to it at once.
"""

from asyncio import sleep
from random import SystemRandom
from time import monotonic

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
# A stream that lived this long was a good one: the next pause is the first again.
STEADY_S = 60.0
# No stream is trusted for longer: a peer that vanished says nothing, a credential may be withdrawn.
RENEWED_S = 3600.0

# Its own: nobody who seeds the one that all share decides when servers are asked.
_CHANCE = SystemRandom()


class Openings:
    """Iterated for ever, once for each stream; the pause is where the next one is asked for."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._losses = 0

    def __aiter__(self) -> "Openings":
        """Return itself: it is walked through once."""
        return self

    async def __anext__(self) -> None:
        """Wait as long as it takes until a stream may be opened: the first at once."""
        if self._began is not None:
            steady = monotonic() - self._began >= STEADY_S
            self._losses = 0 if steady else self._losses + 1
            await sleep(pause_s(self._losses, _CHANCE.random()))
        self._began = monotonic()


def pause_s(losses: int, luck: float) -> float:
    """Return how long to wait after so many losses in a row; `luck` from 0 to 1 spreads it."""
    longest: float = min(FIRST_PAUSE_S * 2 ** min(max(losses - 1, 0), 20), LONGEST_PAUSE_S)
    return longest * (1 + luck) / 2


def lifetime_s() -> float:
    """Return after how long a stream is opened anew, though nothing is wrong with it."""
    return RENEWED_S * (1 + _CHANCE.random() / 10)
