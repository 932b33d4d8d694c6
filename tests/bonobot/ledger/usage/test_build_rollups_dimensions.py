"""Summaries: totals of rollups by one dimension, whichever way they are computed."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
import time_machine
from django.apps import apps
from django.db import DatabaseError, connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.django import TestCase

from bonobot.accounts.models import Organization
from bonobot.ledger.models import TOOK, AuditRow, Rollup, RollupCursor, Summary
from bonobot.ledger.tasks import count_usage
from bonobot.ledger.usage import build_rollups, query_rollups
from bonobot.ledger.usage.aggregation import (
    COUNT_FIELDS,
    DIMENSIONS,
    UsageEntry,
    fold_entries,
    summarize_rollups,
)
from bonobot.ledger.usage.query_rollups import ReportSpan, UsageReader
from mcp_servers.models import Server
from tests import admin_client, factories, large_organization

NOW = datetime(2026, 11, 22, 13, 30, tzinfo=UTC)
IGNORED_FIELDS = {"id", "organization_id"}
ids = some.sampled_from([None, UUID(int=1), UUID(int=2)])
rows = some.builds(
    UsageEntry,
    organization_id=some.just(UUID(int=9)),
    opened_at=some.datetimes(
        NOW.replace(tzinfo=None) - timedelta(days=3), NOW.replace(tzinfo=None)
    ).map(lambda moment: moment.replace(tzinfo=UTC)),
    event_type=some.sampled_from(["call", "model"]),
    outcome=some.sampled_from(["ok", "error", "unknown", "refused", "cancelled"]),
    code=some.sampled_from(["", "denied", "timeout"]),
    rule=some.sampled_from(["", "deny:a", "deny:ü"]),
    agent_id=ids,
    agent_name=some.just("a"),
    server_id=ids,
    server_name=some.just("s"),
    tool_name=some.sampled_from(["", "add", "a:b", "’ add"]),
    resource_id=some.sampled_from(["gpt", "claude"]),
    duration_ms=some.one_of(some.none(), some.integers(0, 99_999)),
    input_tokens=some.integers(0, 9),
    output_tokens=some.integers(0, 9),
    cost_microusd=some.integers(0, 9),
    times=some.integers(1, 3),
)


def count_summaries() -> Counter[tuple[Any, ...]]:
    names = [
        field.attname
        for field in Summary._meta.concrete_fields
        if field.attname not in IGNORED_FIELDS
    ]
    return Counter(Summary.objects.values_list(*names))


@given(some.lists(rows, max_size=30))
def test_each_dimension_adds_up_to_the_entries(ended: list[UsageEntry]) -> None:
    summaries = list(summarize_rollups(fold_entries(ended, ["day"]), lambda place: True))
    for dimension in DIMENSIONS:
        lines = [line for bucket, line in summaries if bucket.dimension is dimension]
        matching = [
            entry
            for entry in ended
            if all(getattr(entry, name) == value for name, value in dimension.filters.items())
        ]
        calls = [entry for entry in matching if entry.event_type == "call"]
        assert sum(line.calls for line in lines) == sum(entry.times for entry in calls)
        for name, outcome in (("errors", "error"), ("unknown", "unknown")):
            times = [entry.times for entry in calls if entry.outcome == outcome]
            assert sum(getattr(line, name) for line in lines) == sum(times)
        assert sum(line.input_tokens for line in lines) == sum(
            entry.input_tokens for entry in matching
        )


class SummaryMethodsTest(TestCase):
    """Counting entries and summing rollups in the database produce the same rows."""

    @settings(max_examples=15)
    @given(some.lists(rows, min_size=1, max_size=20), some.integers(0, 20))
    def test_both_methods_write_the_same_totals(self, ended: list[UsageEntry], first: int) -> None:
        organization_id = ended[0].organization_id
        with time_machine.travel(NOW, tick=False):
            for part in (ended[:first], ended[first:]):
                sums = fold_entries(part)
                build_rollups._add_to_rollups(sums)
                build_rollups.add_to_summaries(sums, build_rollups.EPOCH)
            expected = count_summaries()
            RollupCursor.objects.create(organization_id=organization_id)
            while build_rollups.sum_next_day(organization_id):
                pass
        assert count_summaries() == expected
        for model in (Rollup, Summary, RollupCursor):
            model.objects.all().delete()


@pytest.fixture
def acme() -> Organization:
    organization = factories.create_organization()
    servers = [admin_client.create_web_server(organization, name) for name in ("web", "other")]
    for name, agent_servers in (("Helper", servers), ("Clerk", servers[:1])):
        large_organization.create_calls(
            organization, factories.create_agent(organization, name.lower()), agent_servers, 60
        )
    return organization


def read_lines(acme: Organization, *, grain: Any = "day", summed: bool = True) -> Iterator[Any]:
    now = timezone.now()
    since = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=40)
    span = ReportSpan(since if grain == "hour" else since.replace(hour=0), None, grain)
    cursor = RollupCursor.objects.get(pk=acme.pk)
    complete_since = build_rollups.get_complete_since(cursor)
    assert not summed or (complete_since is not None and complete_since <= span.since)
    reader = UsageReader(acme.pk, span, summed_since=complete_since if summed else None)
    server, agent = Server.objects.first(), AuditRow.objects.first()
    assert server
    assert agent
    queries: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (("begins",), {}),
        (("event_type",), {}),
        (("agent_id",), {}),
        (("agent_id",), {"agent_name": agent.agent_name}),
        (("server_id", "tool_name"), {"event_type": "call"}),
        (("server_id", "tool_name"), {"event_type": "call", "agent_name": agent.agent_name}),
        (("server_id",), {"event_type": "call"}),
        (("server_id",), {"event_type": "call", "tool_name": "search_issues_0"}),
        (("begins",), {"event_type": "call", "server_id": server.pk}),
        (("code", "rule"), {"event_type": "call", "outcome": "refused"}),
        (("model",), {"event_type": "model"}),
        (("agent_id",), {"server_id": server.pk}),
    ]
    for by, filters in queries:
        lines = reader.load_lines(*by, **filters)
        values = {
            key: tuple(getattr(line, name) for name in (*COUNT_FIELDS, "duration_counts"))
            for key, line in lines.items()
        }
        yield by, filters, values


@pytest.mark.django_db
@pytest.mark.parametrize("grain", ["hour", "day"])
def test_a_report_is_the_same_from_summaries_and_rollups(acme: Organization, grain: str) -> None:
    build_rollups.count_organization(acme.pk)
    assert list(read_lines(acme, grain=grain)) == list(read_lines(acme, grain=grain, summed=False))


@pytest.mark.django_db
def test_lists_read_only_summaries(acme: Organization) -> None:
    build_rollups.count_organization(acme.pk)
    complete_since = build_rollups.get_complete_since(RollupCursor.objects.get(pk=acme.pk))
    since = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    reader = UsageReader(acme.pk, ReportSpan(since, None, "day"), summed_since=complete_since)
    with CaptureQueriesContext(connection) as captured:
        reader.load_lines("agent_id", limit=9)
        reader.load_lines("server_id", "tool_name", limit=8, event_type="call")
        reader.load_total()
    assert not any("ledger_rollup" in query["sql"] for query in captured)


@pytest.mark.django_db
def test_days_counted_before_the_upgrade_are_summed_from_the_latest_back(
    acme: Organization,
) -> None:
    build_rollups.count_organization(acme.pk)
    summaries = count_summaries()
    # The state after an upgrade from the previous release.
    Summary.objects.all().delete()
    RollupCursor.objects.update(summed_version=-1, summed_since=None)
    days = sorted(Rollup.objects.filter(grain="day").values_list("begins", flat=True).distinct())
    expected = list(read_lines(acme, summed=False))
    for day in reversed(days):
        assert build_rollups.sum_next_day(acme.pk)
        assert RollupCursor.objects.get().summed_since == day
        # Entries added meanwhile belong to summed days, or are summed with their day.
        assert list(read_lines(acme, summed=day == days[0])) == expected
    assert not build_rollups.sum_next_day(acme.pk)
    assert count_summaries() == summaries
    with CaptureQueriesContext(connection) as captured:
        assert build_rollups.sum_missing_days() == 0
    assert len(captured) == 1


@pytest.mark.django_db
def test_a_late_call_is_included_in_summed_and_unsummed_days(
    acme: Organization,
) -> None:
    rows = AuditRow.objects.order_by("opened_at")
    late = [rows.first(), rows.last()]
    ids = [row.pk for row in late if row]
    raw: Any = AuditRow._base_manager.filter(pk__in=ids)
    super(type(raw), raw).update(outcome="open", closed_seq=None)
    build_rollups.count_organization(acme.pk)
    RollupCursor.objects.update(summed_since=None)
    build_rollups.sum_next_day(acme.pk)
    super(type(raw), raw).update(outcome="ok", closed_seq=F("seq") + 1_000_000)
    assert build_rollups.count_organization(acme.pk) == 2
    build_rollups.sum_missing_days()
    counted = count_summaries()
    RollupCursor.objects.update(summed_since=None)
    build_rollups.sum_missing_days()
    assert count_summaries() == counted
    first = late[0]
    assert first
    assert Summary.objects.get(dimension="total", grain="day", begins=day(first)).calls


@pytest.mark.django_db
def test_a_day_that_changes_while_it_is_summed_is_summed_again(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_rollups.count_organization(acme.pk)
    whole = count_summaries()
    RollupCursor.objects.update(summed_since=None)
    days, queries = [], build_rollups._build_queries

    def build_and_interrupt(organization_id: UUID, day: datetime) -> Iterator[Any]:
        days.append(day)
        yield from queries(organization_id, day)
        if len(days) == 1:
            RollupCursor.objects.update(version=F("version") + 1)

    monkeypatch.setattr(build_rollups, "_build_queries", build_and_interrupt)
    assert build_rollups.sum_next_day(acme.pk)
    assert len(days) == 2
    assert days[0] == days[1]
    while build_rollups.sum_next_day(acme.pk):
        pass
    assert count_summaries() == whole


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "sqlite", reason="other databases use one transaction")
@pytest.mark.parametrize("interrupted_at", [None, 1, 3])
def test_a_day_is_written_in_batches_on_sqlite(
    acme: Organization, monkeypatch: pytest.MonkeyPatch, interrupted_at: int | None
) -> None:
    build_rollups.count_organization(acme.pk)
    whole = count_summaries()
    RollupCursor.objects.update(summed_since=None)
    batch_sizes: list[int] = []
    write = build_rollups.StagingTable._insert_batch

    def insert_and_interrupt(self: build_rollups.StagingTable, behind: int) -> int:
        batch_sizes.append(write(self, behind))
        if len(batch_sizes) == interrupted_at:  # another process counts, or sums the same day
            RollupCursor.objects.update(version=F("version") + 1)
        return batch_sizes[-1]

    monkeypatch.setattr(build_rollups, "STAGING_BATCH_SIZE", 2)
    monkeypatch.setattr(build_rollups.StagingTable, "_insert_batch", insert_and_interrupt)
    while build_rollups.sum_next_day(acme.pk):
        pass
    assert count_summaries() == whole
    assert len(batch_sizes) > 3
    assert max(batch_sizes) == 2
    with pytest.raises(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM temp.piecemeal")


def day(row: AuditRow) -> datetime:
    return row.opened_at.replace(hour=0, minute=0, second=0, microsecond=0)


@pytest.mark.django_db
def test_summaries_that_an_older_worker_left_incomplete_arent_used(
    acme: Organization,
) -> None:
    build_rollups.count_organization(acme.pk)
    summaries = count_summaries()
    # The previous release increments the version and doesn't update summaries.
    RollupCursor.objects.update(version=F("version") + 1)
    Summary.objects.filter(dimension="agent").update(calls=77)
    expected = list(read_lines(acme, summed=False))
    assert build_rollups.get_complete_since(RollupCursor.objects.get()) is None
    reader = query_rollups.open_reader(acme.pk, ReportSpan(NOW, None, "day"))
    assert reader.summed_since is None
    build_rollups.count_organization(acme.pk)
    build_rollups.sum_missing_days()
    assert list(read_lines(acme)) == expected
    assert count_summaries() == summaries


@pytest.mark.django_db
def test_a_day_whose_sum_failed_is_summed_completely_later(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_rollups.count_organization(acme.pk)
    whole = count_summaries()
    RollupCursor.objects.update(summed_since=None)
    statements = iter([build_rollups._build_sum_query(DIMENSIONS[0]), "no SQL"])
    with monkeypatch.context() as patched:
        patched.setattr(build_rollups, "_build_sum_query", lambda dimension: next(statements))
        with pytest.raises(DatabaseError):
            build_rollups.sum_next_day(acme.pk)
    build_rollups.sum_missing_days()
    assert count_summaries() == whole


@pytest.mark.django_db
def test_summaries_that_counted_unknown_outcomes_as_failed_are_summed_again_after_the_upgrade(
    acme: Organization,
) -> None:
    build_rollups.count_organization(acme.pk)
    whole = count_summaries()
    Summary.objects.update(errors=F("errors") + F("unknown") + 1, unknown=0)
    migration = import_module("bonobot.ledger.migrations.0012_summaries_of_unknown_outcomes")
    migration.invalidate_summaries(apps, SimpleNamespace(connection=connection))
    count_usage()
    assert count_summaries() == whole


@pytest.mark.django_db
def test_a_rebuild_is_summed_by_the_task_that_counts_usage(acme: Organization) -> None:
    build_rollups.count_organization(acme.pk)
    whole = count_summaries()
    build_rollups.rebuild_rollups(acme.pk)
    assert build_rollups.get_complete_since(RollupCursor.objects.get()) is None
    count_usage()
    assert build_rollups.get_complete_since(RollupCursor.objects.get()) == build_rollups.EPOCH
    assert count_summaries() == whole


@pytest.mark.django_db
def test_hourly_summaries_are_deleted_earlier_and_reports_handle_it() -> None:
    zeros = dict.fromkeys((*COUNT_FIELDS, *TOOK), 0)
    begins = datetime.now(UTC) - timedelta(days=11)
    acme = uuid4()
    for grain in ("hour", "day"):
        Summary.objects.create(
            organization_id=acme,
            dimension="total",
            grain=grain,
            begins=begins,
            subject=uuid4(),
            **zeros,
        )
    assert build_rollups.delete_old_summaries() == 1
    assert Summary.objects.get().grain == "day"
    for days, is_found in ((8, True), (9, False)):
        since = datetime.now(UTC) - timedelta(days=days, minutes=1)
        reader = UsageReader(
            acme, ReportSpan(since, None, "hour"), summed_since=build_rollups.EPOCH
        )
        dimension = reader._find_dimension(reader.span, ("begins",), {})
        assert (dimension is not None) is is_found


@pytest.mark.django_db
def test_a_report_of_all_organizations_uses_summaries_once_all_are_complete(
    acme: Organization,
) -> None:
    build_rollups.count_organization(acme.pk)
    RollupCursor.objects.create(organization_id=uuid4())
    span = ReportSpan(NOW, None, "day")
    assert query_rollups.open_reader(acme.pk, span, all_organizations=True).summed_since is None
    build_rollups.sum_missing_days()
    assert (
        query_rollups.open_reader(acme.pk, span, all_organizations=True).summed_since
        == build_rollups.EPOCH
    )
