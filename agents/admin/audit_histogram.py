"""The histogram of calls over time above the audit log."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.http import QueryDict
from django.utils import timezone

from agents.admin.audit_filters import (
    MAX_PENDING,
    PENDING,
    PLAIN_PARAMETERS,
    TIME_PARAMETER,
    build_period_query,
    parse_uuid,
)
from agents.models import Approval
from bonobot.ledger.audit.activity import ROLLUP_COLUMNS, ActivityBar, load_activity

DEFAULT_SPAN = timedelta(hours=24)
WIDTH, HEIGHT, GAP = 1000, 100, 0.2
SERIES = ("ok", "refused", PENDING, "error")


@dataclass(frozen=True)
class Histogram:
    """The bars of calls over time, their scale, and whether all filters are applied."""

    bars: list[dict[str, Any]]
    highest: int
    total: int
    step: timedelta
    ticks: list[tuple[float, datetime]]


def build_histogram(
    organization_id: UUID, query: QueryDict, period: tuple[datetime | None, datetime | None]
) -> Histogram | None:
    """Return the calls over time for the list's filters; None if rollups don't know a filter."""
    filters = _select_rollup_filters(query)
    if filters is None:
        return None
    until = min(period[1] or timezone.now(), timezone.now())
    since = period[0] or until - DEFAULT_SPAN
    if since >= until:
        return None
    bars = load_activity(organization_id, since, until, filters)
    _add_pending(organization_id, bars, filters)
    highest = max((bar.total for bar in bars), default=0) or 1
    width = WIDTH / len(bars)
    shown_parts = [
        {
            "bar": bar,
            "x": round(index * width, 2),
            "full_width": round(width, 2),
            "parts": _stack_parts(bar, index * width, width, highest),
            "query": build_period_query(query, bar.begins, bar.ends),
        }
        for index, bar in enumerate(bars)
    ]
    every = max(1, len(bars) // 6)
    # The last label would be wider than its bars.
    labeled = range(0, len(bars) - every // 2, every)
    ticks = [(round(100 * at / len(bars), 2), bars[at].begins) for at in labeled]
    return Histogram(
        shown_parts,
        highest=highest,
        total=sum(bar.total for bar in bars),
        step=bars[0].ends - bars[0].begins,
        ticks=ticks,
    )


def _select_rollup_filters(query: QueryDict) -> dict[str, Any] | None:
    """Return the filters that rollups have, or None if there is another one."""
    filters: dict[str, Any] = {}
    for name in query:
        value = query.get(name, "").strip()
        is_plain = name in PLAIN_PARAMETERS or name.startswith(f"{TIME_PARAMETER}_")
        # The bars have all outcomes, of calls.
        if is_plain or not value or name.startswith("outcome"):
            continue
        if name == "kind" and value == "call":
            continue
        if name not in ROLLUP_COLUMNS:
            return None
        filters[name] = parse_uuid(value) if name.endswith("_id") else value
    return None if None in filters.values() else filters


def _add_pending(
    organization_id: UUID, bars: list[ActivityBar], filters: Mapping[str, Any]
) -> None:
    """Count the calls that wait for approval at the time of their request (one query)."""
    columns = {"agent_id": "agent_id", "server_id": "server_id", "tool_name": "own_name"}
    if not set(filters) <= set(columns):
        return
    conditions = {columns[name]: value for name, value in filters.items()}
    rows: Any = Approval.objects.filter(organization_id=organization_id, **conditions)
    step = bars[0].ends - bars[0].begins
    times = rows.pending().values_list("created_at", flat=True)[:MAX_PENDING]
    for created_at in times:
        index = (created_at - bars[0].begins) // step
        if 0 <= index < len(bars):
            bars[index].counts[PENDING] += 1


def _stack_parts(bar: ActivityBar, x: float, width: float, highest: int) -> list[dict[str, Any]]:
    parts, base = [], float(HEIGHT)
    for series in SERIES:
        if count := bar.counts[series]:
            height = HEIGHT * count / highest
            base -= height
            parts.append(
                {
                    "series": series,
                    "x": round(x + width * GAP / 2, 2),
                    "width": round(width * (1 - GAP), 2),
                    "y": round(base, 2),
                    "height": round(height, 2),
                }
            )
    return parts
