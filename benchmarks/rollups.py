"""Write the rollups of generated calls, as `build_rollups` does for audit rows.

The product's `aggregation` module computes the sums of hours and days; only reading the rows, which
are written at the same time, and finding the uncounted ones is skipped.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from benchmarks.audit_writer import NULL, REFUSED
from benchmarks.call_history import Call, Plan, iterate_calls
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
DURATION_COLUMNS = tuple(f"took_{number}" for number in range(BUCKET_COUNT))


def iterate_lines(plan: Plan, columns: Sequence[str]) -> Iterator[str]:
    """Yield the lines of all rollups with these columns by day, in the format of COPY."""
    today: datetime | None = None
    ended: list[UsageEntry] = []
    for call in iterate_calls(plan):
        day = truncate_time(call.at, "day")
        if day != today:
            yield from _fold_entries(ended, columns)
            today, ended = day, []
        ended.append(_build_entry(plan, call))
    yield from _fold_entries(ended, columns)


def _build_entry(plan: Plan, call: Call) -> UsageEntry:
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


def _fold_entries(ended: list[UsageEntry], columns: Sequence[str]) -> Iterator[str]:
    for index, total in fold_entries(ended).items():
        facts: dict[str, Any] = index.kind._asdict()
        facts |= {"key": hash_rollup_key(index), "grain": index.grain, "begins": index.begins}
        facts |= {name: getattr(total, name) for name in SUMMED}
        facts |= zip(DURATION_COLUMNS, total.duration_counts, strict=True)
        values = (facts[name] for name in columns)
        yield "\t".join([NULL if value is None else str(value) for value in values])
