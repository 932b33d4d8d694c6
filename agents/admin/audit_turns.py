"""Calls of one model turn as one row of the audit log, which unfolds (no queries)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from agents.admin.audit_list import ShownEntry

MIN_FOLDED_CALLS = 2
MAX_TOOLS_NAMED = 3
# The outcome of a folded turn is the first of these that one of its calls has.
OUTCOME_ORDER = ("pending", "error", "refused", "unknown", "open", "cancelled", "ok")


@dataclass(frozen=True)
class TurnGroup:
    """The entries of a page that one model turn caused, newest first, with that of the turn.

    Other entries are groups of their own. `is_open` shows the entries of a folded group.
    """

    turn_id: UUID
    entries: list[ShownEntry]
    is_open: bool = False

    @property
    def calls(self) -> list[ShownEntry]:
        return [entry for entry in self.entries if entry.row.event_type == "call"]

    @property
    def is_folded(self) -> bool:
        """Whether the group has a row of its own above its entries."""
        return len(self.calls) >= MIN_FOLDED_CALLS

    @property
    def rows(self) -> list[tuple[ShownEntry, str]]:
        """The entries with their place on the line of the group: start, middle or end."""
        if len(self.entries) == 1:
            return [(self.entries[0], "")]
        first = "middle" if self.is_folded else "start"
        parts = [first, *("middle" for _ in self.entries[2:]), "end"]
        return list(zip(self.entries, parts, strict=True))

    @property
    def tools(self) -> str:
        """The names of the called tools, such as "get_time ×2, convert_time", at most three."""
        counts = Counter(call.title for call in self.calls)
        names = [name if n == 1 else f"{name} ×{n}" for name, n in counts.items()]
        return ", ".join(names[:MAX_TOOLS_NAMED]) + (", …" if len(names) > MAX_TOOLS_NAMED else "")

    @property
    def outcome(self) -> str:
        """The most severe outcome of the calls."""
        return min((call.outcome for call in self.calls), key=_rank_outcome)

    @property
    def outcome_count(self) -> int:
        """How many calls have that outcome; 0 if all have."""
        count = sum(call.outcome == self.outcome for call in self.calls)
        return 0 if count == len(self.calls) else count

    @property
    def servers(self) -> list[str]:
        return sorted({call.row.server_name for call in self.calls if call.row.server_name})

    @property
    def approvers(self) -> str:
        return ", ".join(sorted({call.approved_by for call in self.calls if call.approved_by}))

    @property
    def duration_ms(self) -> int | None:
        """The time from the first call's start to the last one's end; None while one runs."""
        durations = [call.row.duration_ms for call in self.calls]
        if any(duration is None for duration in durations):
            return None
        start: datetime = min(call.row.opened_at for call in self.calls)
        ends: Any = [call.row.opened_at + _get_duration(call) for call in self.calls]
        return round((max(ends) - start) / timedelta(milliseconds=1))


def group_turns(entries: Iterable[ShownEntry], open_entry: str = "") -> list[TurnGroup]:
    """Return the entries by model turn, at the place of the newest of each.

    The group of the entry with the ID `open_entry` is unfolded.
    """
    groups: dict[UUID, list[ShownEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.row.parent_id or entry.row.pk, []).append(entry)
    return [
        TurnGroup(turn_id, members, any(str(entry.row.pk) == open_entry for entry in members))
        for turn_id, members in groups.items()
    ]


def _rank_outcome(outcome: str) -> int:
    return OUTCOME_ORDER.index(outcome) if outcome in OUTCOME_ORDER else len(OUTCOME_ORDER)


def _get_duration(call: ShownEntry) -> timedelta:
    return timedelta(milliseconds=call.row.duration_ms or 0)
