"""A batch is written with one statement only if the rows it was decided on are unchanged."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError

from bonobot.ledger.admission import BudgetExhausted, StaleSnapshot
from bonobot.ledger.audit import admin_changes
from bonobot.ledger.models import AuditRow, BudgetCell, FlowCell, Head, RateCell, StoreLabel
from bonobot.ledger.types import (
    Admission,
    BudgetReservation,
    FlowLabelEffect,
    Opening,
    RateCharge,
    Settlement,
    Store,
    build_rate_prefix,
)
from bonobot.ledger.writer import committer
from bonobot.ledger.writer.batch_plan import BatchPlan, BatchRowKeys, BatchState
from bonobot.ledger.writer.sql import DedicatedLedgerDatabase
from bonobot.ledger.writer.writer_thread import LedgerWriter
from tests.bonobot.ledger.factories import load_balance, opening_of
from tests.ledger_chain import verify_whole_chain

WAIT_S = 30.0
NEVER = 10**9

pytestmark = pytest.mark.postgres


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """List for each conditional write whether it succeeded, which it must exactly if its rows are
    unchanged."""
    results: list[bool] = []
    write = committer.sql.write_if_unchanged

    def write_and_check(
        database: DedicatedLedgerDatabase, before: BatchState, plan: BatchPlan
    ) -> int | None:
        unchanged = _equals_stored_rows(before)
        now = write(database, before, plan)
        assert unchanged is (now is not None)
        results.append(unchanged)
        return now

    monkeypatch.setattr(committer.sql, "write_if_unchanged", write_and_check)
    return results


def _equals_stored_rows(before: BatchState) -> bool:
    """Return whether the stored rows, read independently, equal these."""
    heads = Head.objects.in_bulk(before.tips)
    cells, rates = BudgetCell.objects.in_bulk(before.cells), RateCell.objects.in_bulk(before.rates)
    flows = FlowCell.objects.in_bulk(before.flows)
    stored: list[Any] = [
        {key: (row.seq, row.digest, row.generation) for key, row in heads.items()},
        {key: (row.spent, row.reserved) for key, row in cells.items()},
        {key: row.tat for key, row in rates.items()},
        {key: (row.labels, row.touched) for key, row in flows.items()},
    ]
    return stored == [
        {key: (row.seq, row.digest, row.generation) for key, row in before.tips.items()},
        {key: (row.spent, row.reserved) for key, row in before.cells.items()},
        before.rates,
        {key: (row.labels, row.last_used_us) for key, row in before.flows.items()},
    ]


@pytest.fixture
def other(transactional_db: None) -> Iterator[LedgerWriter]:
    """A second writer, like that of another process."""
    writer = LedgerWriter()
    with closing(writer):
        yield writer


def _build_admission(
    call: Opening, *, generation: int | None = None, limit: int = NEVER
) -> Admission:
    organization_id = call.organization_id
    return Admission(
        call,
        reservations=(
            BudgetReservation(f"budget:{organization_id}:agent:1:calls:total:all", limit, 1),
        ),
        charges=(RateCharge(f"{build_rate_prefix(organization_id)}agent:1", 100_000, 10_000),),
        generation=generation,
        flows=(FlowLabelEffect(f"flow:{organization_id}:agent:1", added_labels=1),),
        stores=(Store(f"flow:{organization_id}:server:1"),),
    )


def _build_settlement(admission: Admission, **overrides: Any) -> Settlement:
    defaults: dict[str, Any] = {"outcome": "ok", "duration_ms": 1}
    return Settlement(
        call_id=admission.opening.call_id,
        organization_id=admission.opening.organization_id,
        actuals=tuple(
            (reservation.key, reservation.amount, 1) for reservation in admission.reservations
        ),
        **(defaults | overrides),
    )


def _make_call(writer: LedgerWriter, organization_id: UUID, **overrides: Any) -> Admission:
    admission = _build_admission(opening_of(organization_id))
    writer.admit_call(admission).result(WAIT_S)
    assert writer.settle_call(_build_settlement(admission, **overrides)).result(WAIT_S) is True
    return admission


def test_a_repeated_call_is_written_with_one_statement(
    writer: LedgerWriter, organization_id: UUID, writes: list[bool]
) -> None:
    for _ in range(3):
        call = _make_call(writer, organization_id)
    assert writes == [True] * 5  # all but the first admission
    assert verify_whole_chain(organization_id).ok
    row = AuditRow.objects.get(pk=call.opening.call_id)
    assert (row.outcome, row.code, row.tool_name) == ("ok", "", "now")
    assert load_balance(call.reservations[0].key) == (3, 0)


def test_a_failed_call_is_written_with_one_statement(
    writer: LedgerWriter, organization_id: UUID, writes: list[bool]
) -> None:
    call = _make_call(writer, organization_id, outcome="error", code="tool_error")
    assert writes == [True]
    row = AuditRow.objects.get(pk=call.opening.call_id)
    assert (row.outcome, row.code) == ("error", "tool_error")
    assert verify_whole_chain(organization_id).ok


def test_a_policy_change_applies_to_the_next_call(
    writer: LedgerWriter,
    opening: Callable[..., Opening],
    organization_id: UUID,
    writes: list[bool],
) -> None:
    for _ in range(2):
        writer.admit_call(_build_admission(opening(), generation=0)).result(WAIT_S)
    admin_changes.increment_generation(organization_id)
    with pytest.raises(StaleSnapshot):
        writer.admit_call(_build_admission(opening(), generation=0)).result(WAIT_S)
    assert (
        writer.admit_call(_build_admission(opening(), generation=1)).result(WAIT_S).generation == 1
    )
    assert writes == [True, False]


def test_a_budget_is_never_denied_from_the_cache(
    writer: LedgerWriter, other: LedgerWriter, opening: Callable[..., Opening]
) -> None:
    first = _build_admission(opening(), limit=1)
    writer.admit_call(first).result(WAIT_S)
    with pytest.raises(BudgetExhausted):
        writer.admit_call(_build_admission(opening(), limit=1)).result(WAIT_S)
    assert other.settle_call(_build_settlement(first)).result(WAIT_S) is True
    BudgetCell.objects.update(spent=0)
    writer.admit_call(_build_admission(opening(), limit=1)).result(WAIT_S)


def test_a_writer_reads_until_no_other_writer_was_active_for_a_while(
    writer: LedgerWriter,
    other: LedgerWriter,
    organization_id: UUID,
    writes: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "UNTOUCHED_READS", 3)
    _make_call(writer, organization_id)
    _make_call(other, organization_id)
    assert writes == [True, True]  # the settlements
    writes.clear()
    for _ in range(3):
        _make_call(writer, organization_id)
    # The first write failed; after three unchanged reads, writing is tried again.
    assert writes == [False, True, True]
    writes.clear()
    for _ in range(4):
        _make_call(other, organization_id)
        _make_call(writer, organization_id)
    assert writes == [False, False]  # one for each writer; then both read
    assert verify_whole_chain(organization_id).ok


def test_two_writers_form_one_chain(
    writer: LedgerWriter, other: LedgerWriter, organization_id: UUID, writes: list[bool]
) -> None:
    rng = random.Random(5)  # noqa: S311  # reproducible
    for _ in range(40):
        _make_call(rng.choice([writer, other]), organization_id)
    assert True in writes
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows, report.seq) == (True, 40, 80)
    assert BudgetCell.objects.get().spent == 40


def test_rows_shared_by_organizations_are_locked_and_read(
    writer: LedgerWriter, opening: Callable[..., Opening], writes: list[bool]
) -> None:
    for _ in range(3):
        writer.admit_call(Admission(opening(), charges=(RateCharge("rate:all", 100, 50),))).result(
            WAIT_S
        )
    assert writes == []


def test_an_old_clock_reading_isnt_used(
    writer: LedgerWriter,
    organization_id: UUID,
    writes: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _make_call(writer, organization_id)
    monkeypatch.setattr(committer, "CLOCK_VALID_S", -1.0)
    _make_call(writer, organization_id)
    writes.clear()
    _make_call(writer, organization_id)
    assert writes == []


def test_a_lost_answer_isnt_written_twice(
    writer: LedgerWriter,
    opening: Callable[..., Opening],
    organization_id: UUID,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer.admit_call(_build_admission(opening())).result(WAIT_S)
    write, lost = committer.sql.write_if_unchanged, [True]

    def write_and_fail(*args: Any) -> int | None:
        now = write(*args)
        if lost and lost.pop():
            raise OperationalError("the connection is gone")
        return now

    monkeypatch.setattr(committer.sql, "write_if_unchanged", write_and_fail)
    admission = _build_admission(opening())
    assert writer.admit_call(admission).result(WAIT_S).seq == 2
    assert writer.settle_call(_build_settlement(admission)).result(WAIT_S) is True
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows, report.seq) == (True, 2, 3)
    assert load_balance(admission.reservations[0].key) == (1, 1)


def test_a_store_is_labeled_with_one_statement(
    writer: LedgerWriter, organization_id: UUID, writes: list[bool]
) -> None:
    key = f"flow:{organization_id}:server:1"
    calls = [_make_call(writer, organization_id) for _ in range(3)]
    assert FlowCell.objects.get(pk=key).labels == 1
    # The first call has no labels before it; the second one adds its labels to the store.
    assert True in writes
    (row,) = StoreLabel.objects.filter(key=key)
    assert (row.call_id, row.labels) == (calls[1].opening.call_id, 1)


def test_each_write_of_a_labeled_caller_changes_the_time_of_the_store(
    writer: LedgerWriter, other: LedgerWriter, organization_id: UUID, writes: list[bool]
) -> None:
    key, times = f"flow:{organization_id}:server:1", [0]
    _make_call(writer, organization_id)
    assert FlowCell.objects.get(pk=key).touched == 0  # the caller had no labels
    for used_writer in (writer, writer, other, writer):
        _make_call(used_writer, organization_id)
        times.append(FlowCell.objects.get(pk=key).touched)
    assert times == sorted(set(times))
    assert True in writes
    assert StoreLabel.objects.filter(key=key).count() == 1


def test_labels_are_kept_after_their_row_was_deleted(
    writer: LedgerWriter, organization_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared rows that weren't used for long can be deleted before the write."""
    call = Admission(
        opening_of(organization_id), flows=(FlowLabelEffect("flow:x", added_labels=0),)
    )
    writer.admit_call(call).result(WAIT_S)
    move_head = committer.sql._move_head

    def move_and_delete(database: DedicatedLedgerDatabase, *args: Any) -> Any:
        result = move_head(database, *args)
        database.execute("DELETE FROM ledger_flowcell")
        return result

    monkeypatch.setattr(committer.sql, "_move_head", move_and_delete)
    call = Admission(
        opening_of(organization_id), flows=(FlowLabelEffect("flow:x", added_labels=4),)
    )
    writer.admit_call(call).result(WAIT_S)
    assert FlowCell.objects.get(pk="flow:x").labels == 4


def test_decisions_use_only_stored_rows_during_concurrent_changes(
    writer: LedgerWriter,
    other: LedgerWriter,
    organization_id: UUID,
    writes: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "UNTOUCHED_READS", 1)
    rng = random.Random(7)  # noqa: S311  # reproducible
    running: list[Admission] = []
    other_writes: list[Callable[[], object]] = [
        lambda: admin_changes.increment_generation(organization_id),
        lambda: _make_call(other, organization_id),
        lambda: BudgetCell.objects.all().delete(),
        lambda: BudgetCell.objects.update(spent=5),
        lambda: RateCell.objects.update(tat=0),
        lambda: RateCell.objects.all().delete(),
        lambda: FlowCell.objects.update(labels=2),
        lambda: FlowCell.objects.all().delete(),
    ]
    for _ in range(160):
        match rng.randrange(8):
            case 0:
                rng.choice(other_writes)()
            case 1 | 2 | 3 if running:
                settled = _build_settlement(running.pop(rng.randrange(len(running))))
                assert writer.settle_call(settled).result(WAIT_S) is True
            case _:
                admission = _build_admission(opening_of(organization_id))
                writer.admit_call(admission).result(WAIT_S)
                running.append(admission)
    assert writes.count(True) > 60
    assert writes.count(False) > 5
    assert verify_whole_chain(organization_id).ok


def test_a_batch_of_two_organizations_is_locked_and_read(
    writer: LedgerWriter, organization_id: UUID, writes: list[bool]
) -> None:
    organizations = [organization_id, uuid4()]
    for owner_id in organizations:
        _make_call(writer, owner_id)
    cache = writer._committer._cache
    database = committer.open_database()
    with closing(database.connection):
        keys = BatchRowKeys((organization_id,), (), (), ())
        assert cache.guess_state(keys) is not None
        assert cache.guess_state(BatchRowKeys(tuple(sorted(organizations)), (), (), ())) is None
