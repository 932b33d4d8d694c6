"""Summaries: what rollups come to by one dimension, however and whenever they were made."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import time_machine
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
    ERROR_OUTCOMES,
    UsageEntry,
    fold_entries,
    summarize_rollups,
)
from bonobot.ledger.usage.query_rollups import ReportSpan, UsageReader
from mcp_servers.models import Server
from tests import admin_client, factories, large_organization

NOW = datetime(2026, 11, 22, 13, 30, tzinfo=UTC)
WHOLE = {"id", "organization_id"}
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


def stored() -> Counter[tuple[Any, ...]]:
    names = [field.attname for field in Summary._meta.concrete_fields if field.attname not in WHOLE]
    return Counter(Summary.objects.values_list(*names))


@given(some.lists(rows, max_size=30))
def test_each_dimension_adds_up_to_the_entries(ended: list[UsageEntry]) -> None:
    found = list(summarize_rollups(fold_entries(ended, ["day"]), lambda place: True))
    for dimension in DIMENSIONS:
        lines = [line for spot, line in found if spot.dimension is dimension]
        own = [
            one
            for one in ended
            if all(getattr(one, name) == value for name, value in dimension.filters.items())
        ]
        calls = [one for one in own if one.event_type == "call"]
        assert sum(line.calls for line in lines) == sum(one.times for one in calls)
        wrong = [one.times for one in calls if one.outcome in ERROR_OUTCOMES]
        assert sum(line.errors for line in lines) == sum(wrong)
        assert sum(line.input_tokens for line in lines) == sum(one.input_tokens for one in own)


class Either(TestCase):
    """Counted as it comes, or summed from the rollups by the database: the same rows."""

    @settings(max_examples=15)
    @given(some.lists(rows, min_size=1, max_size=20), some.integers(0, 20))
    def test_both_methods_write_the_same_totals(self, ended: list[UsageEntry], first: int) -> None:
        organization_id = ended[0].organization_id
        with time_machine.travel(NOW, tick=False):
            for some_of_them in (ended[:first], ended[first:]):
                sums = fold_entries(some_of_them)
                build_rollups._add_to_rollups(sums)
                build_rollups.add_to_summaries(sums, build_rollups.EPOCH)
            added = stored()
            RollupCursor.objects.create(organization_id=organization_id)
            while build_rollups.sum_next_day(organization_id):
                pass
        assert stored() == added
        for model in (Rollup, Summary, RollupCursor):
            model.objects.all().delete()


@pytest.fixture
def acme() -> Organization:
    made = factories.create_organization()
    servers = [admin_client.web_server(made, name) for name in ("web", "other")]
    for name, of in (("Helper", servers), ("Clerk", servers[:1])):
        large_organization.call(made, factories.create_agent(made, name.lower()), of, 60)
    return made


def read(acme: Organization, *, grain: Any = "day", summed: bool = True) -> Iterator[Any]:
    now = timezone.now()
    since = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=40)
    span = ReportSpan(since if grain == "hour" else since.replace(hour=0), None, grain)
    cursor = RollupCursor.objects.get(pk=acme.pk)
    whole = build_rollups.get_complete_since(cursor)
    assert not summed or (whole is not None and whole <= span.since)
    reader = UsageReader(acme.pk, span, summed_since=whole if summed else None)
    server, agent = Server.objects.first(), AuditRow.objects.first()
    assert server
    assert agent
    asked: list[tuple[tuple[str, ...], dict[str, Any]]] = [
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
    for by, where in asked:
        lines = reader.load_lines(*by, **where)
        told = {
            key: tuple(getattr(line, name) for name in (*COUNT_FIELDS, "duration_counts"))
            for key, line in lines.items()
        }
        yield by, where, told


@pytest.mark.django_db
@pytest.mark.parametrize("grain", ["hour", "day"])
def test_a_report_is_the_same_from_summaries_and_rollups(acme: Organization, grain: str) -> None:
    build_rollups.count_organization(acme.pk)
    assert list(read(acme, grain=grain)) == list(read(acme, grain=grain, summed=False))


@pytest.mark.django_db
def test_lists_read_only_summaries(acme: Organization) -> None:
    build_rollups.count_organization(acme.pk)
    whole = build_rollups.get_complete_since(RollupCursor.objects.get(pk=acme.pk))
    since = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    reader = UsageReader(acme.pk, ReportSpan(since, None, "day"), summed_since=whole)
    with CaptureQueriesContext(connection) as captured:
        reader.load_lines("agent_id", limit=9)
        reader.load_lines("server_id", "tool_name", limit=8, event_type="call")
        reader.load_total()
    assert not any("ledger_rollup" in one["sql"] for one in captured)


@pytest.mark.django_db
def test_days_counted_before_the_upgrade_are_summed_from_the_latest_back(
    acme: Organization,
) -> None:
    build_rollups.count_organization(acme.pk)
    whole = stored()
    # As the release before left it.
    Summary.objects.all().delete()
    RollupCursor.objects.update(summed_version=-1, summed_since=None)
    days = sorted(Rollup.objects.filter(grain="day").values_list("begins", flat=True).distinct())
    expected = list(read(acme, summed=False))
    for day in reversed(days):
        assert build_rollups.sum_next_day(acme.pk)
        assert RollupCursor.objects.get().summed_since == day
        # What is added meanwhile belongs to days that are summed, or is summed with its day.
        assert list(read(acme, summed=day == days[0])) == expected
    assert not build_rollups.sum_next_day(acme.pk)
    assert stored() == whole
    with CaptureQueriesContext(connection) as captured:
        assert build_rollups.sum_missing_days() == 0
    assert len(captured) == 1


@pytest.mark.django_db
def test_a_late_call_is_included_in_summed_and_unsummed_days(
    acme: Organization,
) -> None:
    rows = AuditRow.objects.order_by("opened_at")
    late = [rows.first(), rows.last()]
    ids = [one.pk for one in late if one]
    raw: Any = AuditRow._base_manager.filter(pk__in=ids)
    super(type(raw), raw).update(outcome="open", closed_seq=None)
    build_rollups.count_organization(acme.pk)
    RollupCursor.objects.update(summed_since=None)
    build_rollups.sum_next_day(acme.pk)
    super(type(raw), raw).update(outcome="ok", closed_seq=F("seq") + 1_000_000)
    assert build_rollups.count_organization(acme.pk) == 2
    build_rollups.sum_missing_days()
    counted = stored()
    RollupCursor.objects.update(summed_since=None)
    build_rollups.sum_missing_days()
    assert stored() == counted
    first = late[0]
    assert first
    assert Summary.objects.get(dimension="total", grain="day", begins=day(first)).calls


@pytest.mark.django_db
def test_a_day_that_changes_while_it_is_summed_is_summed_again(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_rollups.count_organization(acme.pk)
    whole = stored()
    RollupCursor.objects.update(summed_since=None)
    held, queries = [], build_rollups._build_queries

    def interrupted(organization_id: UUID, day: datetime) -> Iterator[Any]:
        held.append(day)
        yield from queries(organization_id, day)
        if len(held) == 1:
            RollupCursor.objects.update(version=F("version") + 1)

    monkeypatch.setattr(build_rollups, "_build_queries", interrupted)
    assert build_rollups.sum_next_day(acme.pk)
    assert len(held) == 2
    assert held[0] == held[1]
    while build_rollups.sum_next_day(acme.pk):
        pass
    assert stored() == whole


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "sqlite", reason="elsewhere it is one transaction")
@pytest.mark.parametrize("interrupted_at", [None, 1, 3])
def test_a_day_is_written_in_batches_on_sqlite(
    acme: Organization, monkeypatch: pytest.MonkeyPatch, interrupted_at: int | None
) -> None:
    build_rollups.count_organization(acme.pk)
    whole = stored()
    RollupCursor.objects.update(summed_since=None)
    pieces: list[int] = []
    write = build_rollups.StagingTable._insert_batch

    def written(self: build_rollups.StagingTable, behind: int) -> int:
        pieces.append(write(self, behind))
        if len(pieces) == interrupted_at:  # somebody counts, or sums the same day
            RollupCursor.objects.update(version=F("version") + 1)
        return pieces[-1]

    monkeypatch.setattr(build_rollups, "STAGING_BATCH_SIZE", 2)
    monkeypatch.setattr(build_rollups.StagingTable, "_insert_batch", written)
    while build_rollups.sum_next_day(acme.pk):
        pass
    assert stored() == whole
    assert len(pieces) > 3
    assert max(pieces) == 2
    with pytest.raises(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM temp.piecemeal")


def day(row: AuditRow) -> datetime:
    return row.opened_at.replace(hour=0, minute=0, second=0, microsecond=0)


@pytest.mark.django_db
def test_summaries_that_an_older_worker_left_incomplete_arent_used(
    acme: Organization,
) -> None:
    build_rollups.count_organization(acme.pk)
    whole = stored()
    # The release before counts: it moves the version, and knows of nothing else.
    RollupCursor.objects.update(version=F("version") + 1)
    Summary.objects.filter(dimension="agent").update(calls=77)
    expected = list(read(acme, summed=False))
    assert build_rollups.get_complete_since(RollupCursor.objects.get()) is None
    reader = query_rollups.open_reader(acme.pk, ReportSpan(NOW, None, "day"))
    assert reader.summed_since is None
    build_rollups.count_organization(acme.pk)
    build_rollups.sum_missing_days()
    assert list(read(acme)) == expected
    assert stored() == whole


@pytest.mark.django_db
def test_a_day_whose_sum_failed_is_summed_completely_later(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_rollups.count_organization(acme.pk)
    whole = stored()
    RollupCursor.objects.update(summed_since=None)
    statements = iter([build_rollups._build_sum_query(DIMENSIONS[0]), "no SQL"])
    with monkeypatch.context() as patched:
        patched.setattr(build_rollups, "_build_sum_query", lambda dimension: next(statements))
        with pytest.raises(DatabaseError):
            build_rollups.sum_next_day(acme.pk)
    build_rollups.sum_missing_days()
    assert stored() == whole


@pytest.mark.django_db
def test_a_rebuild_is_summed_by_the_task_that_counts_usage(acme: Organization) -> None:
    build_rollups.count_organization(acme.pk)
    whole = stored()
    build_rollups.rebuild_rollups(acme.pk)
    assert build_rollups.get_complete_since(RollupCursor.objects.get()) is None
    count_usage()
    assert build_rollups.get_complete_since(RollupCursor.objects.get()) == build_rollups.EPOCH
    assert stored() == whole


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
    for days, told in ((8, True), (9, False)):
        since = datetime.now(UTC) - timedelta(days=days, minutes=1)
        reader = UsageReader(
            acme, ReportSpan(since, None, "hour"), summed_since=build_rollups.EPOCH
        )
        found = reader._find_dimension(reader.span, ("begins",), {})
        assert (found is not None) is told


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
