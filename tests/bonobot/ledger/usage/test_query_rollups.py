"""Leaders: who has the most calls, told from the busiest of each step or not at all."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bonobot.accounts.models import Organization
from bonobot.ledger.models import RollupCursor, Summary
from bonobot.ledger.usage import build_rollups, query_rollups
from bonobot.ledger.usage.aggregation import DIMENSIONS, UsageDimension
from bonobot.ledger.usage.query_rollups import (
    BusiestSubject,
    ReportSpan,
    UsageReader,
    select_busiest,
)
from tests import admin_client, factories, large_organization

START = datetime(2026, 11, 1, tzinfo=UTC)
days = some.lists(some.dictionaries(some.integers(1, 12), some.integers(0, 50)), max_size=4)


def seen_of(days: list[dict[int, int]], looked_at: int) -> list[BusiestSubject]:
    return [
        BusiestSubject(START + timedelta(days=number), UUID(int=who), calls)
        for number, day in enumerate(days)
        for who, calls in sorted(day.items(), key=lambda one: -one[1])[:looked_at]
    ]


@given(days, some.integers(1, 5), some.integers(1, 6))
def test_the_top_rows_contain_the_largest_one_or_none_are_returned(
    days: list[dict[int, int]], most: int, looked_at: int
) -> None:
    found = select_busiest(seen_of(days, looked_at), limit=most, per_step=looked_at)
    if found is None:
        return
    calls: Counter[UUID] = Counter()
    for day in days:
        calls.update({UUID(int=who): number for who, number in day.items()})
    ranked = calls.most_common()
    least = ranked[most - 1][1] if len(ranked) >= most else 0
    assert {who for who, number in ranked if number > least} <= set(found)
    assert sum(calls[who] >= least for who in found) >= min(most, len(ranked))


def test_a_row_that_is_large_every_day_is_found_among_many_small_ones() -> None:
    day = {1: 90, 2: 80} | dict.fromkeys(range(3, 100), 1)
    found = select_busiest(seen_of([day] * 3, 10), limit=2, per_step=10)
    assert found == [UUID(int=1), UUID(int=2)]


def test_no_top_rows_are_returned_if_all_are_equal() -> None:
    day = dict.fromkeys(range(1, 100), 1)
    assert select_busiest(seen_of([day] * 3, 10), limit=2, per_step=10) is None


@pytest.fixture
def acme() -> Organization:
    made = factories.create_organization()
    servers = [admin_client.web_server(made, name) for name in ("web", "other")]
    for number, name in enumerate(("helper", "clerk", "porter")):
        of = servers if number else servers[:1]
        large_organization.call(made, factories.create_agent(made, name), of, 20 * (number + 1))
    build_rollups.count_organization(made.pk)
    return made


@pytest.mark.django_db
@pytest.mark.parametrize("grain", ["hour", "day"])
def test_lists_are_the_same_for_each_method(
    acme: Organization, grain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = Summary.objects.filter(grain=grain).earliest("begins").begins
    span = ReportSpan(since, None, grain)  # type: ignore[arg-type]  # the parameter's
    reader = UsageReader(acme.pk, span, summed_since=RollupCursor.objects.get().summed_since)
    asked = [reader._find_busiest(one, span, 1) for one in dimensions()]
    assert all(asked)
    short = [
        reader.load_lines("agent_id", limit=1),
        reader.load_lines("server_id", event_type="call", limit=1),
    ]
    monkeypatch.setattr(query_rollups, "MAX_BUSIEST", 0)
    long = [
        reader.load_lines("agent_id", limit=1),
        reader.load_lines("server_id", event_type="call", limit=1),
    ]
    assert short == long


def dimensions() -> list[UsageDimension]:
    return [dimension for dimension in DIMENSIONS if dimension.name in ("agent", "tool")]
