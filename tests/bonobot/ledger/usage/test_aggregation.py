from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bonobot.ledger.usage.aggregation import (
    BOUNDS_MS,
    BUCKET_COUNT,
    UsageEntry,
    estimate_quantile,
    find_duration_bucket,
    fold_entries,
    hash_rollup_key,
)

AT = datetime(2026, 11, 22, 13, 59, 59, tzinfo=UTC)


def build_entry(**overrides: Any) -> UsageEntry:
    defaults: dict[str, Any] = {
        "organization_id": UUID(int=1),
        "opened_at": AT,
        "event_type": "call",
        "outcome": "ok",
        "code": "",
        "rule": "policy:agent",
        "agent_id": None,
        "agent_name": "",
        "server_id": None,
        "server_name": "",
        "tool_name": "now",
        "resource_id": "mcp_time_now",
        "duration_ms": 7,
        "input_tokens": 0,
        "output_tokens": 0,
        "cost_microusd": 0,
        "times": 1,
    }
    return UsageEntry(**(defaults | overrides))


def test_equal_entries_are_counted_in_one_hour_and_one_day() -> None:
    sums = fold_entries(
        [build_entry(rule="a"), build_entry(rule="b", duration_ms=90, cost_microusd=5)]
    )
    assert {bucket.begins.hour: line.calls for bucket, line in sums.items()} == {13: 2, 0: 2}
    hour = next(line for bucket, line in sums.items() if bucket.grain == "hour")
    assert (hour.duration_ms, hour.cost_microusd, sum(hour.duration_counts)) == (97, 5, 2)


def test_denials_are_counted_by_rule_and_with_their_repeats() -> None:
    denial = {"outcome": "refused", "code": "denied", "duration_ms": None}
    sums = fold_entries(
        [build_entry(**denial, rule="a", times=4), build_entry(**denial, rule="b")], ["day"]
    )
    assert {bucket.kind.rule: line.calls for bucket, line in sums.items()} == {"a": 4, "b": 1}


def test_the_key_distinguishes_all_dimensions() -> None:
    variants = [{}, {"tool_name": "then"}, {"code": "x"}, {"agent_id": UUID(int=2)}]
    variants += [
        {"organization_id": UUID(int=3)},
        {"event_type": "model"},
        {"opened_at": AT.replace(hour=1)},
    ]
    keys = {
        hash_rollup_key(bucket)
        for facts in variants
        for bucket in fold_entries([build_entry(**facts)], ["hour"])
    }
    assert len(keys) == len(variants)


@pytest.mark.parametrize("counts", [[0] * BUCKET_COUNT])
def test_there_is_no_percentile_without_a_duration(counts: list[int]) -> None:
    assert estimate_quantile(counts, 0.5) is None


@given(some.lists(some.integers(0, 50_000), min_size=1), some.sampled_from([0.5, 0.95]))
def test_a_percentile_is_in_the_bucket_of_the_exact_one(times: list[int], share: float) -> None:
    counts = [0] * BUCKET_COUNT
    for time in times:
        counts[find_duration_bucket(time)] += 1
    exact = sorted(times)[max(-(-int(share * 100) * len(times) // 100) - 1, 0)]
    estimate = estimate_quantile(counts, share)
    assert estimate is not None
    number = find_duration_bucket(exact)
    low = BOUNDS_MS[number - 1] if number else 0
    assert low <= estimate <= BOUNDS_MS[number]


def test_durations_above_the_last_bucket_are_reported_as_its_bound() -> None:
    counts = [0] * BUCKET_COUNT
    counts[find_duration_bucket(10**9)] += 3
    assert estimate_quantile(counts, 0.5) == BOUNDS_MS[-1]
