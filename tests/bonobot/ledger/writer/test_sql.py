"""What is written at once was decided on what is stored, whoever wrote last; else it is not."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError

from bonobot.ledger import queries as ledger_queries
from bonobot.ledger.audit import admin_changes
from bonobot.ledger.audit.verify_chain import verify_whole_chain
from bonobot.ledger.models import AuditRow, BudgetCell, FlowCell, Head, RateCell, StoreLabel
from bonobot.ledger.refusals import BudgetExhausted, StaleSnapshot
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
from tests.bonobot.ledger.factories import opening_of

WAIT_S = 30.0
NEVER = 10**9

pytestmark = pytest.mark.postgres


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """List for each group that was tried at once whether it was written, which it must be exactly
    where what it was decided on is stored."""
    seen: list[bool] = []
    write = committer.sql.write_if_unchanged

    def watched(
        database: DedicatedLedgerDatabase, before: BatchState, plan: BatchPlan
    ) -> int | None:
        same = _stored(before)
        now = write(database, before, plan)
        assert same is (now is not None)
        seen.append(same)
        return now

    monkeypatch.setattr(committer.sql, "write_if_unchanged", watched)
    return seen


def _stored(before: BatchState) -> bool:
    """Tell whether these rows are there as they are here; does its own reading."""
    heads = Head.objects.in_bulk(before.tips)
    cells, rates = BudgetCell.objects.in_bulk(before.cells), RateCell.objects.in_bulk(before.rates)
    held = FlowCell.objects.in_bulk(before.flows)
    found: list[Any] = [
        {key: (one.seq, one.digest, one.generation) for key, one in heads.items()},
        {key: (one.spent, one.reserved) for key, one in cells.items()},
        {key: one.tat for key, one in rates.items()},
        {key: (one.labels, one.touched) for key, one in held.items()},
    ]
    return found == [
        {key: (one.seq, one.digest, one.generation) for key, one in before.tips.items()},
        {key: (one.spent, one.reserved) for key, one in before.cells.items()},
        before.rates,
        {key: (one.labels, one.last_used_us) for key, one in before.flows.items()},
    ]


@pytest.fixture
def other(transactional_db: None) -> Iterator[LedgerWriter]:
    """Another process's writer, as far as the database can tell."""
    writer = LedgerWriter()
    with closing(writer):
        yield writer


def _admission(call: Opening, *, generation: int | None = None, limit: int = NEVER) -> Admission:
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


def _settlement(admission: Admission, **facts: Any) -> Settlement:
    usual: dict[str, Any] = {"outcome": "ok", "duration_ms": 1}
    return Settlement(
        call_id=admission.opening.call_id,
        organization_id=admission.opening.organization_id,
        actuals=tuple(
            (reservation.key, reservation.amount, 1) for reservation in admission.reservations
        ),
        **(usual | facts),
    )


def _call(writer: LedgerWriter, organization_id: UUID, **facts: Any) -> Admission:
    admission = _admission(opening_of(organization_id))
    writer.admit_call(admission).result(WAIT_S)
    assert writer.settle_call(_settlement(admission, **facts)).result(WAIT_S) is True
    return admission


def test_a_repeated_call_is_written_with_one_statement(
    writer: LedgerWriter, organization_id: UUID, written: list[bool]
) -> None:
    for _ in range(3):
        call = _call(writer, organization_id)
    assert written == [True] * 5  # all but the first admission
    assert verify_whole_chain(organization_id).ok
    row = AuditRow.objects.get(pk=call.opening.call_id)
    assert (row.outcome, row.code, row.tool_name) == ("ok", "", "now")
    assert ledger_queries.load_balance(call.reservations[0].key) == (3, 0)


def test_a_failed_call_is_written_with_one_statement(
    writer: LedgerWriter, organization_id: UUID, written: list[bool]
) -> None:
    call = _call(writer, organization_id, outcome="error", code="tool_error")
    assert written == [True]
    row = AuditRow.objects.get(pk=call.opening.call_id)
    assert (row.outcome, row.code) == ("error", "tool_error")
    assert verify_whole_chain(organization_id).ok


def test_a_policy_change_applies_to_the_next_call(
    writer: LedgerWriter,
    opening: Callable[..., Opening],
    organization_id: UUID,
    written: list[bool],
) -> None:
    for _ in range(2):
        writer.admit_call(_admission(opening(), generation=0)).result(WAIT_S)
    admin_changes.increment_generation(organization_id)
    with pytest.raises(StaleSnapshot):
        writer.admit_call(_admission(opening(), generation=0)).result(WAIT_S)
    assert writer.admit_call(_admission(opening(), generation=1)).result(WAIT_S).generation == 1
    assert written == [True, False]


def test_a_budget_is_never_denied_from_the_cache(
    writer: LedgerWriter, other: LedgerWriter, opening: Callable[..., Opening]
) -> None:
    first = _admission(opening(), limit=1)
    writer.admit_call(first).result(WAIT_S)
    with pytest.raises(BudgetExhausted):
        writer.admit_call(_admission(opening(), limit=1)).result(WAIT_S)
    assert other.settle_call(_settlement(first)).result(WAIT_S) is True
    BudgetCell.objects.update(spent=0)
    writer.admit_call(_admission(opening(), limit=1)).result(WAIT_S)


def test_a_writer_reads_until_no_other_writer_was_active_for_a_while(
    writer: LedgerWriter,
    other: LedgerWriter,
    organization_id: UUID,
    written: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "UNTOUCHED_READS", 3)
    _call(writer, organization_id)
    _call(other, organization_id)
    assert written == [True, True]  # the settlements
    written.clear()
    for _ in range(3):
        _call(writer, organization_id)
    # The first of these was tried; then it was read once, and three times found as it was left.
    assert written == [False, True, True]
    written.clear()
    for _ in range(4):
        _call(other, organization_id)
        _call(writer, organization_id)
    assert written == [False, False]  # one for each, who take turns from then on
    assert verify_whole_chain(organization_id).ok


def test_two_writers_form_one_chain(
    writer: LedgerWriter, other: LedgerWriter, organization_id: UUID, written: list[bool]
) -> None:
    chance = random.Random(5)  # noqa: S311  # the same order each time
    for _ in range(40):
        _call(chance.choice([writer, other]), organization_id)
    assert True in written
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows, report.seq) == (True, 40, 80)
    assert BudgetCell.objects.get().spent == 40


def test_rows_shared_by_organizations_are_locked_and_read(
    writer: LedgerWriter, opening: Callable[..., Opening], written: list[bool]
) -> None:
    for _ in range(3):
        writer.admit_call(Admission(opening(), charges=(RateCharge("rate:all", 100, 50),))).result(
            WAIT_S
        )
    assert written == []


def test_an_old_clock_reading_isnt_used(
    writer: LedgerWriter,
    organization_id: UUID,
    written: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _call(writer, organization_id)
    monkeypatch.setattr(committer, "CLOCK_VALID_S", -1.0)
    _call(writer, organization_id)
    written.clear()
    _call(writer, organization_id)
    assert written == []


def test_a_lost_answer_isnt_written_twice(
    writer: LedgerWriter,
    opening: Callable[..., Opening],
    organization_id: UUID,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer.admit_call(_admission(opening())).result(WAIT_S)
    write, lost = committer.sql.write_if_unchanged, [True]

    def losing(*args: Any) -> int | None:
        now = write(*args)
        if lost and lost.pop():
            raise OperationalError("the connection is gone")
        return now

    monkeypatch.setattr(committer.sql, "write_if_unchanged", losing)
    admission = _admission(opening())
    assert writer.admit_call(admission).result(WAIT_S).seq == 2
    assert writer.settle_call(_settlement(admission)).result(WAIT_S) is True
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows, report.seq) == (True, 2, 3)
    assert ledger_queries.load_balance(admission.reservations[0].key) == (1, 1)


def test_a_store_is_labeled_with_one_statement(
    writer: LedgerWriter, organization_id: UUID, written: list[bool]
) -> None:
    place = f"flow:{organization_id}:server:1"
    calls = [_call(writer, organization_id) for _ in range(3)]
    assert FlowCell.objects.get(pk=place).labels == 1
    # The first call holds nothing before it; the second, written at once, leaves what it holds.
    assert True in written
    (row,) = StoreLabel.objects.filter(key=place)
    assert (row.call_id, row.labels) == (calls[1].opening.call_id, 1)


def test_labels_are_kept_after_their_row_was_deleted(
    writer: LedgerWriter, organization_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compared can be removed before it is written, if nobody has used it for long."""
    call = Admission(
        opening_of(organization_id), flows=(FlowLabelEffect("flow:x", added_labels=0),)
    )
    writer.admit_call(call).result(WAIT_S)
    move = committer.sql._move_head

    def removing(database: DedicatedLedgerDatabase, *args: Any) -> Any:
        found = move(database, *args)
        database.execute("DELETE FROM ledger_flowcell")
        return found

    monkeypatch.setattr(committer.sql, "_move_head", removing)
    call = Admission(
        opening_of(organization_id), flows=(FlowLabelEffect("flow:x", added_labels=4),)
    )
    writer.admit_call(call).result(WAIT_S)
    assert FlowCell.objects.get(pk="flow:x").labels == 4


def test_decisions_use_only_stored_rows_during_concurrent_changes(
    writer: LedgerWriter,
    other: LedgerWriter,
    organization_id: UUID,
    written: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "UNTOUCHED_READS", 1)
    chance = random.Random(7)  # noqa: S311  # the same order of events each time
    running: list[Admission] = []
    strangers: list[Callable[[], object]] = [
        lambda: admin_changes.increment_generation(organization_id),
        lambda: _call(other, organization_id),
        lambda: BudgetCell.objects.all().delete(),
        lambda: BudgetCell.objects.update(spent=5),
        lambda: RateCell.objects.update(tat=0),
        lambda: RateCell.objects.all().delete(),
        lambda: FlowCell.objects.update(labels=2),
        lambda: FlowCell.objects.all().delete(),
    ]
    for _ in range(160):
        match chance.randrange(8):
            case 0:
                chance.choice(strangers)()
            case 1 | 2 | 3 if running:
                settled = _settlement(running.pop(chance.randrange(len(running))))
                assert writer.settle_call(settled).result(WAIT_S) is True
            case _:
                admission = _admission(opening_of(organization_id))
                writer.admit_call(admission).result(WAIT_S)
                running.append(admission)
    assert written.count(True) > 60
    assert written.count(False) > 5
    assert verify_whole_chain(organization_id).ok


def test_a_batch_of_two_organizations_is_locked_and_read(
    writer: LedgerWriter, organization_id: UUID, written: list[bool]
) -> None:
    both = [organization_id, uuid4()]
    for whose in both:
        _call(writer, whose)
    memory = writer._committer._cache
    database = committer.open_database()
    with closing(database.connection):
        one = BatchRowKeys((organization_id,), (), (), ())
        assert memory.guess_state(database, one) is not None
        assert memory.guess_state(database, BatchRowKeys(tuple(sorted(both)), (), (), ())) is None
