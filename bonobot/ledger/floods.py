"""Floods: equal refusals within a minute are one row and a count.

Pure. The first refusal is written and sealed at once. Those that follow within its window are
counted in the memory of this process; at the window's end, or when the process stops, the row is
closed with `repeats`, the second seal. Until then the row says nothing false: it says "refused". A
process that is killed loses the count of its open windows (a minute at most), never the first row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from bonobot.ledger.entries import Opening

WINDOW_S = 60.0
MOST_WINDOWS = 10_000  # beyond them the oldest is closed early: memory stays bounded

Key = tuple[UUID, str, str, UUID | None, str, str, str, str]


def key_of(opening: Opening) -> Key:
    """Return what makes refusals equal: organization, actor, agent, action, resource and code."""
    return (
        opening.organization_id,
        opening.actor.kind,
        opening.actor.id,
        opening.agent_id,
        opening.action,
        opening.resource_type,
        opening.resource_id,
        opening.code,
    )


@dataclass(slots=True)
class Window:
    """The first of equal refusals, how many came after it, and the last one's time."""

    row_id: UUID
    organization_id: UUID
    ends: float
    last_at: datetime
    repeats: int = 0


@dataclass(slots=True)
class Floods:
    """The open windows of one process; times are seconds of a monotonic clock."""

    # A dict keeps the order of opening, and windows are equally long: the first one ends first.
    _windows: dict[Key, Window] = field(default_factory=dict)

    def find(self, key: Key, now: float) -> Window | None:
        """Return the window in which an equal refusal only counts."""
        window = self._windows.get(key)
        return window if window is not None and now < window.ends else None

    def start(self, key: Key, row_id: UUID, *, at: datetime, now: float) -> list[Window]:
        """Open a window behind a written refusal; return those that had to end for it."""
        ended = [self._windows.pop(key)] if key in self._windows else []
        if len(self._windows) >= MOST_WINDOWS:
            ended.append(self._windows.pop(next(iter(self._windows))))
        self._windows[key] = Window(row_id, key[0], now + WINDOW_S, at)
        return [window for window in ended if window.repeats]

    def count(self, key: Key, at: datetime) -> None:
        """Count one more refusal of an open window."""
        window = self._windows[key]
        window.repeats += 1
        window.last_at = at

    def next_end(self) -> float | None:
        """Return when the next window ends."""
        return next((window.ends for window in self._windows.values()), None)

    def ended(self, now: float) -> Iterator[Window]:
        """Take out the windows that are over, and yield those that counted something."""
        while (ends := self.next_end()) is not None and ends <= now:
            window = self._windows.pop(next(iter(self._windows)))
            if window.repeats:
                yield window
