"""Pooled: what the pool keeps open between calls, and closes once nobody used it for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self


class Pooled:
    """Knows whether somebody uses it, and when that was last."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.used_at = clock()
        self._clock = clock
        self._users = 0

    @property
    def busy(self) -> bool:
        """Say whether somebody waits for an answer."""
        return self._users > 0

    @contextmanager
    def used(self) -> Iterator[Self]:
        """Keep it from being closed as idle meanwhile."""
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1
            self.used_at = self._clock()
