from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import time_machine
from django.db.models import Sum

from bonobot.ledger.audit import prune_chain
from bonobot.ledger.models import AuditRow, Head, Rollup, UncountedEntry
from bonobot.ledger.tasks import count_usage
from bonobot.ledger.types import Admission, Opening, Settlement
from bonobot.ledger.usage import build_rollups
from bonobot.ledger.writer.writer_thread import LedgerWriter
from tests.bonobot.ledger.factories import ALICE

WAIT_S = 30.0
OpeningFactory = Callable[..., Opening]


def open_call(writer: LedgerWriter, opening: Opening) -> Opening:
    writer.admit_call(Admission(opening)).result(WAIT_S)
    return opening


def close_call(
    writer: LedgerWriter, opening: Opening, outcome: Any = "ok", **overrides: Any
) -> None:
    ids = {"call_id": opening.call_id, "organization_id": opening.organization_id}
    writer.settle_call(
        Settlement(**ids, outcome=outcome, **{"duration_ms": 5, **overrides})
    ).result(WAIT_S)


def count_calls(organization_id: UUID, *by: str, grain: str = "day") -> dict[Any, int]:
    rows = Rollup.objects.filter(organization_id=organization_id, grain=grain)
    return dict(rows.values_list(*by).annotate(n=Sum("calls")).values_list(*by, "n"))


def test_ended_calls_are_counted_once_per_hour_and_per_day(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    for _ in range(3):
        close_call(writer, open_call(writer, opening()), input_tokens=2, cost_microusd=7)
    close_call(writer, open_call(writer, opening(tool_name="then")), "error", code="tool_error")
    writer.record_refusal(opening(decision="deny", rule="deny:now", code="denied")).result(WAIT_S)
    assert [count_usage(), count_usage()] == [5, 0]
    for grain in ("hour", "day"):
        assert count_calls(organization_id, "outcome", grain=grain) == {
            "ok": 3,
            "error": 1,
            "refused": 1,
        }
    sums = Rollup.objects.filter(grain="day").aggregate(
        tokens=Sum("input_tokens"), cost=Sum("cost_microusd"), took=Sum("took_3")
    )
    assert sums == {"tokens": 6, "cost": 21, "took": 4}
    assert count_calls(organization_id, "rule")["deny:now"] == 1


def test_a_call_that_needed_approval_is_counted_once(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    request = opening(decision="ask", rule="policy:ask", code="approval_required")
    writer.record_refusal(request).result(WAIT_S)
    assert count_usage() == 0
    close_call(writer, open_call(writer, opening(decision="ask", rule="policy:ask")))
    assert count_usage() == 1
    assert count_calls(organization_id, "outcome") == {"ok": 1}
    assert not UncountedEntry.objects.exists()


def test_a_running_call_is_counted_after_its_end_in_the_hour_of_its_start(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    long = open_call(writer, opening())
    close_call(writer, open_call(writer, opening()))
    assert build_rollups.count_organization(organization_id) == 1
    started_at = AuditRow.objects.get(pk=long.call_id).opened_at
    with time_machine.travel(started_at + timedelta(hours=3)):
        close_call(writer, long)
        assert build_rollups.count_organization(organization_id) == 1
    [row] = Rollup.objects.filter(grain="hour")
    assert (row.calls, row.begins) == (2, started_at.replace(minute=0, second=0, microsecond=0))
    assert not UncountedEntry.objects.exists()


def test_repeats_of_a_denial_are_counted_after_their_window(
    start_writer: Callable[..., LedgerWriter], opening: OpeningFactory, organization_id: UUID
) -> None:
    writer = start_writer()
    for _ in range(4):
        writer.record_refusal(opening(decision="deny", code="denied")).result(WAIT_S)
    build_rollups.count_organization(organization_id)
    assert count_calls(organization_id, "outcome") == {"refused": 1}
    writer.close()  # ends the open windows
    build_rollups.count_organization(organization_id)
    build_rollups.count_organization(organization_id)
    assert count_calls(organization_id, "outcome") == {"refused": 4}


def test_a_failed_batch_is_counted_completely_the_next_time(
    writer: LedgerWriter,
    opening: OpeningFactory,
    organization_id: UUID,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(5):
        close_call(writer, open_call(writer, opening()))
    monkeypatch.setattr(build_rollups, "BATCH_SIZE", 2)
    add_to_rollups = build_rollups._add_to_rollups
    calls = iter((add_to_rollups, None, *[add_to_rollups] * 9))

    def add_and_fail(sums: Any) -> None:
        add = next(calls)
        add_to_rollups(sums)
        if add is None:
            raise RuntimeError("killed after the write and before the commit")

    monkeypatch.setattr(build_rollups, "_add_to_rollups", add_and_fail)
    with pytest.raises(RuntimeError):
        build_rollups.count_organization(organization_id)
    assert count_calls(organization_id, "outcome") == {"ok": 2}
    build_rollups.count_organization(organization_id)
    assert count_calls(organization_id, "outcome") == {"ok": 5}


def test_of_two_concurrent_runs_only_one_writes(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    close_call(writer, open_call(writer, opening()))
    batches = [build_rollups._load_batch(organization_id) for _ in range(2)]
    assert [build_rollups._write_batch(batch) for batch in batches] == [True, False]
    assert count_calls(organization_id, "outcome") == {"ok": 1}


def test_totals_of_pruned_entries_are_kept_after_a_rebuild(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    old = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with time_machine.travel(old, tick=False):
        close_call(writer, open_call(writer, opening(tool_name="old")))
    with time_machine.travel(old + timedelta(days=3), tick=False):
        close_call(writer, open_call(writer, opening()))
        # Nothing was counted yet: pruning counts first.
        prune_chain.prune_entries(organization_id, before=old + timedelta(days=1), actor=ALICE)
    expected = {"old": 1, "now": 1}
    assert count_calls(organization_id, "tool_name") == expected
    Rollup.objects.filter(tool_name="now").update(calls=77)
    with time_machine.travel(old + timedelta(days=4), tick=False):
        assert (
            build_rollups.rebuild_rollups(organization_id) == 0
        )  # the day of the first remaining row may be incomplete
        prune_chain.prune_entries(organization_id, before=old + timedelta(days=2), actor=ALICE)
    assert count_calls(organization_id, "tool_name") == expected | {"now": 77}


def test_a_rebuild_counts_all_entries_again(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    running = open_call(writer, opening())
    close_call(writer, open_call(writer, opening()))
    build_rollups.count_organization(organization_id)
    Rollup.objects.update(calls=99)
    assert build_rollups.rebuild_rollups(organization_id) == 1
    close_call(writer, running)
    build_rollups.count_organization(organization_id)
    assert count_calls(organization_id, "outcome") == {"ok": 2}


def test_an_entry_that_isnt_counted_yet_isnt_pruned(
    writer: LedgerWriter,
    opening: OpeningFactory,
    organization_id: UUID,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = datetime(2026, 1, 1, tzinfo=UTC)
    with time_machine.travel(old, tick=False):
        close_call(writer, open_call(writer, opening()))
    monkeypatch.setattr(build_rollups, "count_organization", lambda organization_id: 0)
    result = prune_chain.prune_entries(organization_id, before=old + timedelta(days=1), actor=ALICE)
    assert result.rows == 0


def test_the_tail_is_what_the_next_run_would_add(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    close_call(writer, open_call(writer, opening()))
    build_rollups.count_organization(organization_id)
    late = open_call(writer, opening(tool_name="late"))
    build_rollups.count_organization(organization_id)
    close_call(writer, late)
    close_call(writer, open_call(writer, opening(tool_name="new")))
    ended, more = build_rollups.load_uncounted_entries(organization_id)
    assert ({row.tool_name for row in ended}, more) == ({"late", "new"}, False)


@pytest.mark.django_db
def test_an_organization_without_new_entries_is_skipped(
    organization_id: UUID, django_assert_num_queries: Any
) -> None:
    Head.objects.create(organization_id=organization_id)
    build_rollups.count_organization(organization_id)
    with django_assert_num_queries(2):
        assert build_rollups.count_all_organizations() == 0


@pytest.mark.django_db
def test_hourly_totals_are_deleted_after_two_months_and_daily_ones_kept() -> None:
    zeros = dict.fromkeys(build_rollups.SUM_FIELDS, 0)
    for grain in ("hour", "day"):
        Rollup.objects.create(
            key=grain,
            grain=grain,
            organization_id=uuid4(),
            begins=datetime.now(UTC) - timedelta(days=61),
            **zeros,
        )
    assert build_rollups.delete_old_rollups() == 1
    assert Rollup.objects.get().grain == "day"
