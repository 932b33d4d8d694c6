"""Verification in steps: interrupted, continued, and protected against forged progress."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import time_machine
from django.db import connection

from bonobot.ledger.audit import prune_chain
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.audit.signed_checkpoints import SignedCheckpoint, get_signer
from bonobot.ledger.audit.verify_chain import (
    VerificationProgress,
    load_progress,
    verify_step,
)
from bonobot.ledger.models import AuditRow, Head, Verification
from bonobot.ledger.types import Admission, Opening, Settlement
from bonobot.ledger.writer.writer_thread import LedgerWriter
from tests.bonobot.ledger.factories import ALICE
from tests.ledger_chain import verify_whole_chain

WAIT_S = 30.0
pytestmark = pytest.mark.django_db


def record_changes(organization_id: UUID, count: int) -> None:
    for number in range(count):
        record_finished_change(
            organization_id=organization_id,
            actor=ALICE,
            action="server_created",
            resource_type="mcp_server",
            resource_id=str(number),
        )


@pytest.fixture
def chain(organization_id: UUID) -> UUID:
    record_changes(organization_id, 10)
    return organization_id


def tamper(sql: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


def verify_in_steps(organization_id: UUID, rows: int = 3) -> Iterator[VerificationProgress]:
    while True:
        progress = verify_step(organization_id, rows=rows)
        yield progress
        if progress.done:
            return


def list_fault_kinds(progress: VerificationProgress) -> list[str]:
    return [fault.kind for fault in progress.faults]


def test_stepwise_verification_reports_progress_and_the_same_result(chain: UUID) -> None:
    results = list(verify_in_steps(chain))
    assert [result.rows for result in results] == [3, 6, 9, 10]
    assert [round(result.share, 1) for result in results] == [0.3, 0.6, 0.9, 1.0]
    assert results[-1].build_report() == verify_whole_chain(chain)
    assert load_progress(chain) == results[-1]


def test_a_continued_verification_reads_only_new_entries(chain: UUID) -> None:
    *_, first = verify_in_steps(chain)
    record_changes(chain, 4)
    second = verify_step(chain)
    assert (second.rows - first.rows, second.seq, second.done, second.ok) == (4, 14, True, True)
    # A change of a verified entry is detected by a full verification.
    tamper("UPDATE ledger_auditrow SET action = 'x' WHERE seq = 5")
    assert verify_step(chain).ok
    assert list_fault_kinds(verify_step(chain, restart=True)) == ["columns"]


@pytest.mark.parametrize("seq", range(1, 11))
def test_a_fault_in_any_step_is_kept_until_the_end(chain: UUID, seq: int) -> None:
    tamper("UPDATE ledger_auditrow SET digest = %s WHERE seq = %s", "0" * 64, seq)
    *_, last = verify_in_steps(chain)
    assert last.faults == verify_whole_chain(chain).faults
    assert not verify_step(chain).ok


def test_entries_deleted_between_steps_are_detected(chain: UUID) -> None:
    verify_step(chain, rows=3)
    tamper("DELETE FROM ledger_auditrow WHERE seq IN (4, 5)")
    *_, last = verify_in_steps(chain)
    assert list_fault_kinds(last) == ["missing"]


def test_a_chain_truncated_below_the_verified_end_is_detected(chain: UUID) -> None:
    assert verify_step(chain).done
    tamper("DELETE FROM ledger_auditrow WHERE seq > 8")
    tamper("UPDATE ledger_head SET seq = 8, digest = %s", AuditRow.objects.get(seq=8).digest)
    assert "truncated" in list_fault_kinds(verify_step(chain))


@pytest.mark.parametrize("name", ["seq", "behind", "digest", "faults", "waiting", "signature"])
def test_a_forged_verification_state_is_refused(chain: UUID, name: str) -> None:
    tamper("UPDATE ledger_auditrow SET action = 'x' WHERE seq = 5")
    assert list_fault_kinds(verify_step(chain)) == ["columns"]
    row = Verification.objects.get()
    changed = {"seq": 9, "behind": 9, "digest": "0" * 64, "faults": [], "waiting": [1]}
    row.statement[name] = changed.get(name, "AAAA")
    row.save()
    progress = verify_step(chain)
    assert (progress.rows, set(list_fault_kinds(progress))) == (10, {"standing", "columns"})


def test_a_verification_state_of_another_organization_or_kind_is_refused(chain: UUID) -> None:
    other = uuid4()
    record_changes(other, 3)
    verify_step(other)
    statement = Verification.objects.get().statement
    head = get_signer().sign({"kind": "head", "organization_id": str(chain), "seq": 10})
    for stored in (statement, head, {}, []):
        Verification.objects.update_or_create(pk=chain, defaults={"statement": stored})
        assert list_fault_kinds(verify_step(chain)) == ["standing"]


def test_signed_checkpoints_are_compared_in_each_step(chain: UUID) -> None:
    verify_step(chain, rows=5)
    forged = [SignedCheckpoint(chain, 3, "0" * 64, ""), SignedCheckpoint(chain, 7, "0" * 64, "")]
    assert [fault.seq for fault in verify_step(chain, checkpoints=forged).faults] == [7]
    later = [SignedCheckpoint(chain, 99, "0" * 64, "")]
    assert "truncated" in list_fault_kinds(verify_step(chain, restart=True, checkpoints=later))


def test_verification_continues_from_a_checkpoint_that_passed_its_position(chain: UUID) -> None:
    verify_step(chain, rows=3)
    Head.objects.filter(pk=chain).update()
    soon = datetime.now(UTC) + timedelta(hours=1)
    with time_machine.travel(soon + timedelta(hours=1)):
        prune_chain.prune_entries(chain, before=soon, actor=ALICE)
    *_, last = verify_in_steps(chain)
    assert (last.ok, last.since) == (True, 10)
    record_changes(chain, 2)
    assert verify_step(chain).ok


OpeningFactory = Callable[..., Opening]


@pytest.mark.django_db(transaction=True)
def test_calls_that_end_after_they_were_read_are_checked_later(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    def end(call: Opening) -> None:
        ids = {"call_id": call.call_id, "organization_id": call.organization_id}
        writer.settle_call(Settlement(**ids, outcome="ok", duration_ms=1)).result(WAIT_S)

    calls = [opening() for _ in range(6)]
    for call in calls:
        writer.admit_call(Admission(call)).result(WAIT_S)
    end(calls[0])
    denied_call = opening(decision="deny", code="denied")
    for _ in range(3):
        writer.record_refusal(denied_call).result(WAIT_S)
    results = list(verify_in_steps(organization_id, rows=2))
    assert results[-1].ok
    assert len(results[-1].waiting) == 6
    for call in calls[1:4]:
        end(call)
    writer.close()  # closes the denial with its repeats
    *_, last = verify_in_steps(organization_id, rows=2)
    assert last.build_report() == verify_whole_chain(organization_id)
    assert len(last.waiting) == 2
    assert last.ok


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("target", ["closing", "row"])
def test_a_change_of_a_call_that_was_still_open_is_detected(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID, target: str
) -> None:
    call = opening()
    writer.admit_call(Admission(call)).result(WAIT_S)
    assert verify_step(organization_id).ok
    ids = {"call_id": call.call_id, "organization_id": call.organization_id}
    writer.settle_call(Settlement(**ids, outcome="ok", duration_ms=1)).result(WAIT_S)
    writer.close()
    tamper(
        "UPDATE ledger_auditrow SET closed = REPLACE(closed, 'ok', 'no'), outcome = 'no'"
        if target == "closing"
        else "DELETE FROM ledger_auditrow"
    )
    assert not verify_step(organization_id).ok
