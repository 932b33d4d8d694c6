"""Count equal refusals that repeat within a short time in one audit entry. No I/O.

The first of equal refusals is written at once. Repeats within its window are counted in memory; at
the end of the window, or when the process stops, the row is closed with `repeats`. A killed
process loses at most the counts of one minute, never the first row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from bonobot.ledger.types import Opening

WINDOW_S = 60.0
MAX_WINDOWS = 10_000  # then the oldest is closed early, to limit memory
RefusalKey = tuple[UUID, str, str, UUID | None, str, str, str, str, str]


def build_refusal_key(opening: Opening) -> RefusalKey:
    """Return the key of equal refusals: organization, actor, agent, action, resource and code.

    Requests of different approvals aren't equal: each is listed as a pending call.
    """
    return (
        opening.organization_id,
        opening.actor.kind,
        opening.actor.id,
        opening.agent_id,
        opening.action,
        opening.resource_type,
        opening.resource_id,
        opening.code,
        str(opening.details.get("approval_id", "")),
    )


@dataclass(slots=True)
class RefusalWindow:
    """The first of equal refusals, the number of repeats, and the time of the last one."""

    row_id: UUID
    organization_id: UUID
    ends_at: float
    last_at: datetime
    repeats: int = 0


@dataclass(slots=True)
class RepeatedRefusals:
    """The open refusal windows of a process; times are in seconds of a monotonic clock."""

    # In order of opening; all windows are equally long, so the first one ends first.
    windows: dict[RefusalKey, RefusalWindow] = field(default_factory=dict)

    def find_window(self, key: RefusalKey, now: float) -> RefusalWindow | None:
        """Return the open window of an equal refusal, if there is one."""
        window = self.windows.get(key)
        return window if window is not None and now < window.ends_at else None

    def open_window(
        self, key: RefusalKey, row_id: UUID, *, at: datetime, now: float
    ) -> list[RefusalWindow]:
        """Open a window after a written refusal; return windows closed for it that have repeats."""
        ended_windows = [self.windows.pop(key)] if key in self.windows else []
        if len(self.windows) >= MAX_WINDOWS:
            ended_windows.append(self.windows.pop(next(iter(self.windows))))
        self.windows[key] = RefusalWindow(row_id, key[0], now + WINDOW_S, at)
        return [window for window in ended_windows if window.repeats]

    def count_refusal(self, key: RefusalKey, at: datetime) -> None:
        """Count a repeated refusal in an open window."""
        window = self.windows[key]
        window.repeats += 1
        window.last_at = at

    def find_next_end(self) -> float | None:
        """Return when the next window ends, or None."""
        window = next(iter(self.windows.values()), None)
        return window.ends_at if window is not None else None

    def take_ended_windows(self, now: float) -> Iterator[RefusalWindow]:
        """Remove the windows that have ended; yield those with repeats."""
        while (ends_at := self.find_next_end()) is not None and ends_at <= now:
            window = self.windows.pop(next(iter(self.windows)))
            if window.repeats:
                yield window
