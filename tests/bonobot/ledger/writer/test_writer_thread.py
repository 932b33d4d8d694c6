import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from django.db import transaction

from bonobot.ledger.admission import (
    ApprovalRefused,
    AuditUnavailable,
    BudgetExhausted,
    FlowNeedsApproval,
    RateLimited,
    Refusal,
    StaleSnapshot,
)
from bonobot.ledger.audit import admin_changes
from bonobot.ledger.models import ApprovalCell, AuditRow, FlowCell, Head
from bonobot.ledger.types import (
    Admission,
    ApprovalReference,
    BudgetReservation,
    FlowLabelEffect,
    Opening,
    RateCharge,
    Settlement,
)
from bonobot.ledger.writer import writer_thread as writers
from bonobot.ledger.writer.writer_thread import LedgerWriter
from tests.bonobot.ledger.factories import ALICE, in_thread, load_balance, opening_of
from tests.ledger_chain import verify_whole_chain

WAIT_S = 30.0
OpeningFactory = Callable[..., Opening]


def build_settlement(call: Opening, *actuals: tuple[str, int, int]) -> Settlement:
    return Settlement(
        call_id=call.call_id,
        organization_id=call.organization_id,
        outcome="ok",
        duration_ms=12,
        details={"answer": "15:00"},
        actuals=actuals,
        input_tokens=3,
        output_tokens=4,
        cost_microusd=5,
    )


def test_a_call_is_opened_before_it_runs_and_closed_after(
    writer: LedgerWriter, opening: OpeningFactory
) -> None:
    call = opening()
    admitted = writer.admit_call(Admission(call)).result(WAIT_S)
    row = AuditRow.objects.get()
    assert (row.id, row.seq, row.outcome) == (call.call_id, admitted.seq, "open")
    assert list(AuditRow.objects.running()) == [row]

    assert writer.settle_call(build_settlement(call)).result(WAIT_S) is True
    row = AuditRow.objects.get()
    assert (row.outcome, row.duration_ms, row.closed_seq) == ("ok", 12, 2)
    assert (row.input_tokens, row.output_tokens, row.cost_microusd) == (3, 4, 5)
    assert row.closed_at is not None
    assert row.closed_at >= row.opened_at
    assert verify_whole_chain(call.organization_id).ok


def test_a_failed_call_is_found_by_its_code(writer: LedgerWriter, opening: OpeningFactory) -> None:
    call = opening()
    writer.admit_call(Admission(call)).result(WAIT_S)
    failed = replace(build_settlement(call), outcome="unknown", code="call_timeout")
    writer.settle_call(failed).result(WAIT_S)
    row = AuditRow.objects.get(code="call_timeout")
    assert row.outcome == "unknown"
    assert verify_whole_chain(row.organization_id).ok


def test_a_call_is_closed_once(writer: LedgerWriter, opening: OpeningFactory) -> None:
    call = opening()
    writer.admit_call(Admission(call)).result(WAIT_S)
    assert writer.settle_call(build_settlement(call)).result(WAIT_S) is True
    assert writer.settle_call(build_settlement(call)).result(WAIT_S) is False
    assert writer.settle_call(build_settlement(opening())).result(WAIT_S) is False
    assert verify_whole_chain(call.organization_id).seq == 2


def test_an_admission_has_the_generation_at_which_it_was_made(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    admin_changes.increment_generation(organization_id)
    assert writer.admit_call(Admission(opening(), generation=1)).result(WAIT_S).generation == 1
    admin_changes.increment_generation(organization_id)
    with pytest.raises(StaleSnapshot) as raised:
        writer.admit_call(Admission(opening(), generation=1)).result(WAIT_S)
    assert raised.value.extra == {"generation": 2}
    assert AuditRow.objects.count() == 1


def test_a_budget_is_reserved_and_then_settled_at_the_actual_cost(
    writer: LedgerWriter, opening: OpeningFactory
) -> None:
    call = opening()
    writer.admit_call(Admission(call, (BudgetReservation("budget:x", 10, 7),))).result(WAIT_S)
    assert load_balance("budget:x") == (0, 7)
    with pytest.raises(BudgetExhausted):
        writer.admit_call(Admission(opening(), (BudgetReservation("budget:x", 10, 4),))).result(
            WAIT_S
        )
    writer.settle_call(build_settlement(call, ("budget:x", 7, 12))).result(WAIT_S)
    assert load_balance("budget:x") == (12, 0)


def test_a_rate_limit_returns_when_to_retry(writer: LedgerWriter, opening: OpeningFactory) -> None:
    charge = RateCharge("rate:x", per_minute=1, burst=1)
    writer.admit_call(Admission(opening(), charges=(charge,))).result(WAIT_S)
    with pytest.raises(RateLimited) as raised:
        writer.admit_call(Admission(opening(), charges=(charge,))).result(WAIT_S)
    assert raised.value.code == "rate_limited"
    assert raised.value.retry_after is not None
    assert 50 <= raised.value.retry_after <= 60


def test_labels_of_a_caller_deny_calls_with_an_external_effect(
    writer: LedgerWriter, opening: OpeningFactory
) -> None:
    sends = (FlowLabelEffect("flow:x", blocking_labels=3),)
    writer.admit_call(Admission(opening(), flows=sends)).result(WAIT_S)
    writer.admit_call(
        Admission(opening(), flows=(FlowLabelEffect("flow:x", added_labels=3),))
    ).result(WAIT_S)
    assert FlowCell.objects.get().labels == 3
    with pytest.raises(FlowNeedsApproval):
        writer.admit_call(Admission(opening(), flows=sends)).result(WAIT_S)


def test_an_approval_is_used_by_one_of_many_concurrent_calls(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    approval = ApprovalReference(uuid4(), "d" * 64)
    ApprovalCell.objects.create(
        id=approval.id, organization_id=organization_id, digest=approval.digest, expires=2**62
    )
    calls = [opening() for _ in range(20)]
    futures = [writer.admit_call(Admission(call, approval=approval)) for call in calls]
    admitted_calls = [
        call for call, future in zip(calls, futures, strict=True) if not future.exception()
    ]
    assert [admitted.call_id for admitted in admitted_calls] == [
        ApprovalCell.objects.get().spent_by
    ]
    codes = {error.code for error in (f.exception() for f in futures) if isinstance(error, Refusal)}
    assert codes == {"approval_spent"}
    with pytest.raises(ApprovalRefused):
        writer.admit_call(
            Admission(opening(), approval=ApprovalReference(approval.id, "e" * 64))
        ).result(WAIT_S)


def test_a_denied_call_is_an_entry_that_is_hashed_once(
    writer: LedgerWriter, opening: OpeningFactory
) -> None:
    call = opening(decision="deny", rule="policy", code="denied_by_policy")
    assert writer.record_refusal(call).result(WAIT_S) == call.call_id
    row = AuditRow.objects.get()
    assert (row.outcome, row.code, row.closed_seq, row.repeats) == (
        "refused",
        "denied_by_policy",
        None,
        0,
    )
    assert verify_whole_chain(call.organization_id).ok


def test_equal_denials_are_one_entry_with_a_count(
    writer: LedgerWriter, opening: OpeningFactory
) -> None:
    futures = [writer.record_refusal(opening(decision="deny", code="denied")) for _ in range(100)]
    ids = {future.result(WAIT_S) for future in futures}
    other = writer.record_refusal(opening(decision="deny", code="other")).result(WAIT_S)
    (first,) = ids
    assert set(AuditRow.objects.values_list("id", flat=True)) == {first, other}
    writer.close()
    row = AuditRow.objects.get(pk=first)
    assert (row.repeats, row.outcome, row.code, row.closed_seq) == (99, "refused", "denied", 3)
    assert verify_whole_chain(row.organization_id).ok


def test_the_writer_refuses_to_run_inside_a_transaction(
    writer: LedgerWriter, opening: OpeningFactory
) -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match=r"record_change"):
        writer.admit_call(Admission(opening()))
    assert not AuditRow.objects.exists()


def test_details_that_arent_json_fail_only_their_caller(
    writer: LedgerWriter, opening: OpeningFactory
) -> None:
    with pytest.raises(ValueError, match="JSON"):
        writer.admit_call(Admission(opening(details={"tools": {"a", "b"}})))
    writer.admit_call(Admission(opening())).result(WAIT_S)


def test_text_that_the_database_cant_store_is_recorded_in_escaped_form(
    writer: LedgerWriter, opening: OpeningFactory
) -> None:
    name = "a\x00b\ud800" + "c" * 400
    writer.record_refusal(opening(tool_name=name, resource_id=name, details={name: name})).result(
        WAIT_S
    )
    row = AuditRow.objects.get()
    assert row.tool_name == "a\N{REPLACEMENT CHARACTER}b?" + "c" * 251
    assert verify_whole_chain(row.organization_id).ok


def test_eight_threads_with_200_calls_each_form_one_valid_chain(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    def work(_: int) -> None:
        for _ in range(200):
            call = opening()
            writer.admit_call(Admission(call)).result(WAIT_S)
            assert writer.settle_call(build_settlement(call)).result(WAIT_S) is True

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows, report.seq) == (True, 1600, 3200)


def test_fifty_parallel_reservations_never_overspend(
    start_writer: Callable[..., LedgerWriter], opening: OpeningFactory
) -> None:
    limit, amount = 1_000, 30
    pair = [start_writer(), start_writer()]  # as two processes would
    ready = threading.Barrier(50)

    def work(number: int) -> bool:
        writer = pair[number % 2]
        ready.wait(WAIT_S)
        call = opening()
        try:
            writer.admit_call(
                Admission(call, (BudgetReservation("budget:x", limit, amount),))
            ).result(WAIT_S)
        except BudgetExhausted:
            return False
        actual = 1 + number % amount
        return writer.settle_call(build_settlement(call, ("budget:x", amount, actual))).result(
            WAIT_S
        )

    with ThreadPoolExecutor(50) as threads:
        admitted = list(threads.map(work, range(50)))
    spent, reserved = load_balance("budget:x")
    assert reserved == 0
    assert spent == sum(
        1 + number % amount for number, is_admitted in enumerate(admitted) if is_admitted
    )
    assert spent <= limit


def test_twenty_runs_of_fifty_sessions_leave_less_than_one_call_unused(
    start_writer: Callable[..., LedgerWriter], opening: OpeningFactory
) -> None:
    limit, amount = 1_000, 30
    pair = [start_writer(), start_writer()]
    for run in range(20):
        key = f"budget:{run}"
        futures = [
            pair[number % 2].admit_call(
                Admission(opening(), (BudgetReservation(key, limit, amount),))
            )
            for number in range(50)
        ]
        assert sum(future.exception(WAIT_S) is None for future in futures) == limit // amount
        spent, reserved = load_balance(key)
        assert limit - amount < spent + reserved <= limit


def test_two_writers_with_twenty_clients_stay_within_two_percent_of_a_rate(
    start_writer: Callable[..., LedgerWriter], opening: OpeningFactory
) -> None:
    """Denials are fast, so twenty clients try far more calls than are allowed."""
    pair = [start_writer(), start_writer()]
    rate = RateCharge("rate:x", 3_000, 50)
    started = time.monotonic()

    def run_client(number: int) -> list[float]:
        admitted = []
        while time.monotonic() < started + 2:
            try:
                pair[number % 2].admit_call(Admission(opening(), charges=(rate,))).result(WAIT_S)
            except RateLimited:
                continue
            admitted.append(time.monotonic())
        return admitted

    with ThreadPoolExecutor(20) as threads:
        admitted = sorted(
            moment for times in threads.map(run_client, range(20)) for moment in times
        )
    duration = admitted[-1] - started
    expected = rate.burst + duration * rate.per_minute / 60
    assert 0.98 * expected - 1 <= len(admitted) <= 1.02 * expected + 1


def test_a_budget_is_used_up_to_the_last_call_that_fits(
    start_writer: Callable[..., LedgerWriter], opening: OpeningFactory
) -> None:
    pair = [start_writer(), start_writer()]
    futures = [
        pair[number % 2].admit_call(
            Admission(opening(), (BudgetReservation("budget:x", 1_000, 30),))
        )
        for number in range(50)
    ]
    admitted = [future for future in futures if future.exception(WAIT_S) is None]
    assert len(admitted) == 33
    assert load_balance("budget:x") == (0, 990)


def test_calls_of_several_organizations_keep_their_own_chains(writer: LedgerWriter) -> None:
    organizations = [uuid4() for _ in range(5)]
    calls = [opening_of(organizations[number % 5]) for number in range(50)]
    for future in [writer.admit_call(Admission(call)) for call in calls]:
        future.result(WAIT_S)
    assert {verify_whole_chain(organization).seq for organization in organizations} == {10}
    assert Head.objects.count() == 5


async def test_concurrent_calls_of_a_loop_are_admitted_and_settled(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    async def make_call() -> bool:
        call = opening()
        await writer.admit_call_async(Admission(call))
        return await writer.settle_call_async(build_settlement(call))

    assert all(await asyncio.gather(*[make_call() for _ in range(100)]))
    denial_id = await writer.record_refusal_async(opening(decision="deny", code="denied"))
    assert denial_id is not None
    report = await in_thread(verify_whole_chain, organization_id)
    assert (report.ok, report.seq) == (True, 201)


async def test_a_refusal_reaches_its_caller_on_the_loop(
    writer: LedgerWriter, opening: OpeningFactory
) -> None:
    with pytest.raises(Refusal) as raised:
        await writer.admit_call_async(Admission(opening(), (BudgetReservation("budget:x", 1, 2),)))
    assert raised.value.code == "budget_exhausted"


def test_a_closed_writer_refuses_items_and_the_next_one_takes_over(
    transactional_db: None, opening: OpeningFactory
) -> None:
    first = writers.get_writer()
    assert writers.get_writer() is first
    writers.close_writer()
    with pytest.raises(AuditUnavailable):
        first.admit_call(Admission(opening()))
    writers.get_writer().admit_call(Admission(opening())).result(WAIT_S)
    assert writers.get_writer() is not first
    writers.close_writer()


def test_the_actor_is_copied(writer: LedgerWriter, opening: OpeningFactory) -> None:
    writer.admit_call(Admission(opening())).result(WAIT_S)
    row = AuditRow.objects.get()
    assert (row.actor_kind, row.actor_id, row.actor_label) == (ALICE.kind, ALICE.id, ALICE.label)
