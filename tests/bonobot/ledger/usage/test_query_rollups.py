"""The subjects with the most calls, selected from the busiest of each step if that is exact."""

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


def list_busiest(days: list[dict[int, int]], per_step: int) -> list[BusiestSubject]:
    return [
        BusiestSubject(START + timedelta(days=number), UUID(int=subject), calls)
        for number, day in enumerate(days)
        for subject, calls in sorted(day.items(), key=lambda item: -item[1])[:per_step]
    ]


@given(days, some.integers(1, 5), some.integers(1, 6))
def test_the_top_rows_contain_the_largest_one_or_none_are_returned(
    days: list[dict[int, int]], limit: int, per_step: int
) -> None:
    busiest = select_busiest(list_busiest(days, per_step), limit=limit, per_step=per_step)
    if busiest is None:
        return
    calls: Counter[UUID] = Counter()
    for day in days:
        calls.update({UUID(int=subject): number for subject, number in day.items()})
    ranked = calls.most_common()
    least = ranked[limit - 1][1] if len(ranked) >= limit else 0
    assert {subject for subject, number in ranked if number > least} <= set(busiest)
    assert sum(calls[subject] >= least for subject in busiest) >= min(limit, len(ranked))


def test_a_row_that_is_large_every_day_is_found_among_many_small_ones() -> None:
    day = {1: 90, 2: 80} | dict.fromkeys(range(3, 100), 1)
    busiest = select_busiest(list_busiest([day] * 3, 10), limit=2, per_step=10)
    assert busiest == [UUID(int=1), UUID(int=2)]


def test_no_top_rows_are_returned_if_all_are_equal() -> None:
    day = dict.fromkeys(range(1, 100), 1)
    assert select_busiest(list_busiest([day] * 3, 10), limit=2, per_step=10) is None


@pytest.fixture
def acme() -> Organization:
    organization = factories.create_organization()
    servers = [admin_client.create_web_server(organization, name) for name in ("web", "other")]
    for number, name in enumerate(("helper", "clerk", "porter")):
        agent_servers = servers if number else servers[:1]
        large_organization.create_calls(
            organization,
            factories.create_agent(organization, name),
            agent_servers,
            20 * (number + 1),
        )
    build_rollups.count_organization(organization.pk)
    return organization


@pytest.mark.django_db
@pytest.mark.parametrize("grain", ["hour", "day"])
def test_lists_are_the_same_for_each_method(
    acme: Organization, grain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = Summary.objects.filter(grain=grain).earliest("begins").begins
    span = ReportSpan(since, None, grain)  # type: ignore[arg-type]  # the parameter's
    reader = UsageReader(acme.pk, span, summed_since=RollupCursor.objects.get().summed_since)
    results = [reader._find_busiest(dimension, span, 1) for dimension in dimensions()]
    assert all(results)
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


@pytest.mark.django_db
@pytest.mark.parametrize("is_summed", [True, False])
def test_lines_with_only_counts_have_the_same_numbers_of_calls(
    acme: Organization, *, is_summed: bool
) -> None:
    span = ReportSpan(Summary.objects.earliest("begins").begins, None, "day")
    summed_since = RollupCursor.objects.get().summed_since if is_summed else None
    reader = UsageReader(acme.pk, span, summed_since=summed_since)
    complete = reader.load_lines("begins", event_type="call")
    counted = reader.load_lines("begins", only_counts=True, event_type="call")
    assert [
        (key, line.calls, line.ok, line.errors, line.refused) for key, line in complete.items()
    ] == [(key, line.calls, line.ok, line.errors, line.refused) for key, line in counted.items()]
    assert sum(line.calls for line in counted.values()) == 120


def dimensions() -> list[UsageDimension]:
    return [dimension for dimension in DIMENSIONS if dimension.name in ("agent", "tool")]


@pytest.mark.django_db
@pytest.mark.parametrize("is_counted", [True, False])
def test_percentiles_of_few_calls_are_exact(is_counted: bool) -> None:
    organization = factories.create_organization()
    server = admin_client.create_web_server(organization)
    agent = factories.create_agent(organization)
    large_organization.create_calls(organization, agent, [server], 20)
    if is_counted:
        build_rollups.count_organization(organization.pk)
    span = ReportSpan(datetime.now(UTC) - timedelta(days=3), None, "hour")
    span = span.expand_to_days()
    reader = query_rollups.open_reader(organization.pk, span)
    # The calls take 0 to 19 ms; those of 0 and 10 ms failed or were denied.
    total = reader.load_total(timed=True, agent_id=agent.pk)
    assert (total.p50, total.p95) == (9, 19)
    tools = reader.load_lines("tool_name", timed=True, event_type="call")
    assert {line.p95 for line in tools.values()} == {None, *map(float, sorted(total.durations))}


@pytest.mark.django_db
def test_percentiles_of_many_calls_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_rollups, "MAX_TIMED_ENTRIES", 10)
    organization = factories.create_organization()
    server = admin_client.create_web_server(organization)
    large_organization.create_calls(
        organization, factories.create_agent(organization), [server], 20
    )
    span = ReportSpan(datetime.now(UTC) - timedelta(days=3), None, "day").expand_to_days()
    total = query_rollups.open_reader(organization.pk, span).load_total(timed=True)
    assert total.durations == []
    assert total.p95 == pytest.approx(18, abs=2)
