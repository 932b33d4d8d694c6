"""Calls that wait for approval, which usage counts at the time of their request.

The package of approvals registers them. They have no entry that counts as a call yet: that is
written when they run, are denied, or expire.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from bonobot.ledger.extension_points import PendingCalls, pending_call_source
from bonobot.ledger.usage.aggregation import UsageLine, truncate_time
from bonobot.ledger.usage.query_rollups import UsageReader

# The columns of rollups that pending calls have, too.
PENDING_COLUMNS = frozenset(
    {
        *("begins", "organization_id", "agent_id", "agent_name"),
        *("server_id", "server_name", "tool_name"),
    }
)


def load_pending_calls(reader: UsageReader, **filters: Any) -> list[PendingCalls]:
    """Return the pending calls within the span of a reader (at most one query).

    `filters` are those of the reader's lines; filters that only other entries match return none.
    """
    span = reader.span
    pending = find_pending_calls(reader.organization_id, span.since, span.until, **filters)
    return [replace(calls, begins=truncate_time(calls.begins, span.grain)) for calls in pending]


def find_pending_calls(
    organization_id: UUID | None, since: datetime, until: datetime | None, **filters: Any
) -> list[PendingCalls]:
    """Return the pending calls requested from `since` to before `until` (at most one query)."""
    conditions = {name: value for name, value in filters.items() if name != "event_type"}
    if filters.get("event_type", "call") != "call" or not conditions.keys() <= PENDING_COLUMNS:
        return []
    return pending_call_source.get()(organization_id, since, until, conditions)


def add_pending_calls(
    lines: dict[tuple[Any, ...], UsageLine],
    pending: Iterable[PendingCalls],
    columns: tuple[str, ...],
    *,
    limit: int,
) -> dict[tuple[Any, ...], UsageLine]:
    """Return the lines of a report by `columns` with pending calls, most calls first.

    A report that `limit` has cut gets no new lines, as they could lack their ended calls.
    """
    is_cut = len(lines) >= limit
    for calls in pending:
        key = tuple(getattr(calls, name) for name in columns)
        if key not in lines and is_cut:
            continue
        line = lines.setdefault(
            key, UsageLine(agent_name=calls.agent_name, server_name=calls.server_name)
        )
        line.add_pending(calls.count)
    ordered_lines = sorted(lines.items(), key=lambda item: (-item[1].calls, -item[1].turns))
    return dict(ordered_lines[:limit])
