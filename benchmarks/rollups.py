"""Counts an organization's calls into rollups, as `build_rollups` counts the audit's rows.

What an hour or a day comes to is worked out by the product's own `rollups`; left out is only the
reading of rows that are being written at that moment, and the looking for what is counted already.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from benchmarks.audit_writer import NOTHING, REFUSED
from benchmarks.call_history import Call, Plan, calls
from bonobot.ledger.usage.aggregation import (
    BUCKET_COUNT,
    UsageEntry,
    fold_entries,
    hash_rollup_key,
    truncate_time,
)

SUMMED = (
    *("calls", "duration_ms", "input_tokens", "output_tokens", "cost_microusd"),
    *("agent_name", "server_name", "last_at"),
)
TOOK = tuple(f"took_{number}" for number in range(BUCKET_COUNT))


def lines(plan: Plan, columns: Sequence[str]) -> Iterator[str]:
    """Yield the lines of all rollups with these columns, day by day, as COPY takes them."""
    today: datetime | None = None
    ended: list[UsageEntry] = []
    for call in calls(plan):
        day = truncate_time(call.at, "day")
        if day != today:
            yield from _folded(ended, columns)
            today, ended = day, []
        ended.append(_ended(plan, call))
    yield from _folded(ended, columns)


def _ended(plan: Plan, call: Call) -> UsageEntry:
    refused = call.end.outcome == REFUSED
    return UsageEntry(
        organization_id=plan.organization_id,  # type: ignore[arg-type]  # its text does as well
        opened_at=call.at,
        event_type="call",
        outcome=call.end.outcome,
        code=call.end.code,
        rule="policy:agent",
        agent_id=call.agent[0],  # type: ignore[arg-type]
        agent_name=call.agent[1],
        server_id=call.server[0],  # type: ignore[arg-type]
        server_name=call.server[1],
        tool_name=call.tool,
        resource_id=call.tool,
        duration_ms=None if refused else call.took,
        input_tokens=0,
        output_tokens=0,
        cost_microusd=0 if refused else call.took % 40,
        times=1,
    )


def _folded(ended: list[UsageEntry], columns: Sequence[str]) -> Iterator[str]:
    for place, total in fold_entries(ended).items():
        facts: dict[str, Any] = place.kind._asdict()
        facts |= {"key": hash_rollup_key(place), "grain": place.grain, "begins": place.begins}
        facts |= {name: getattr(total, name) for name in SUMMED}
        facts |= zip(TOOK, total.duration_counts, strict=True)
        values = (facts[name] for name in columns)
        yield "\t".join([NOTHING if value is None else str(value) for value in values])
