from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import time_machine
from django.db import connection

from bonobot.ledger import retention
from bonobot.ledger.changes import record
from bonobot.ledger.entries import Admission, Opening, Settlement
from bonobot.ledger.models import AuditRow, Checkpoint
from bonobot.ledger.tasks import prune_audit
from bonobot.ledger.verify import verify
from bonobot.ledger.writer import Writer
from tests.bonobot.ledger.cast import ALICE

WAIT_S = 30.0
OLD = datetime(2026, 1, 1, tzinfo=UTC)
CUT = OLD + timedelta(days=1)
Make = Callable[..., Opening]


def happen(organization_id: UUID, at: datetime, times: int) -> None:
    with time_machine.travel(at, tick=False):
        for number in range(times):
            record(
                organization_id=organization_id,
                actor=ALICE,
                action="server_added",
                resource_type="mcp_server",
                resource_id=str(number),
            )


def left(organization_id: UUID) -> list[int]:
    return sorted(AuditRow.objects.of(organization_id).values_list("seq", flat=True))


@pytest.mark.django_db
def test_old_rows_leave_and_the_rest_is_verified_from_the_checkpoint(
    organization_id: UUID,
) -> None:
    happen(organization_id, OLD, 5)
    happen(organization_id, CUT, 2)
    done = retention.prune(organization_id, before=CUT, actor=ALICE)
    assert (done.rows, done.seq) == (5, 5)
    assert left(organization_id) == [6, 7, 8]
    assert AuditRow.objects.get(seq=8).action == "audit_pruned"
    report = verify(organization_id)
    assert (report.ok, report.rows, report.start) == (True, 3, 5)


@pytest.mark.django_db
def test_nothing_old_leaves_no_trace(organization_id: UUID) -> None:
    happen(organization_id, CUT, 2)
    assert retention.prune(organization_id, before=CUT, actor=ALICE).rows == 0
    assert left(organization_id) == [1, 2]
    assert not Checkpoint.objects.exists()


@pytest.mark.django_db
def test_long_histories_leave_in_steps(
    organization_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 3)
    happen(organization_id, OLD, 8)
    assert retention.prune(organization_id, before=CUT, actor=ALICE).rows == 8
    assert Checkpoint.objects.count() == 3
    assert verify(organization_id).ok


def test_a_call_that_was_closed_behind_the_cut_stays_with_what_follows_it(
    writer: Writer, opening: Make, organization_id: UUID
) -> None:
    with time_machine.travel(OLD, tick=False):
        happen(organization_id, OLD, 2)
        call = opening()
        writer.admit(Admission(call)).result(WAIT_S)
        happen(organization_id, OLD, 2)
    happen(organization_id, CUT, 1)
    closing = Settlement(
        call_id=call.call_id, organization_id=organization_id, outcome="ok", duration_ms=1
    )
    assert retention.prune(organization_id, before=CUT, actor=ALICE).seq == 2
    assert writer.settle(closing).result(WAIT_S) is True
    assert retention.prune(organization_id, before=CUT, actor=ALICE).rows == 0
    assert left(organization_id)[0] == 3
    assert verify(organization_id).ok


def test_whole_calls_leave_with_both_of_their_seals(
    writer: Writer, opening: Make, organization_id: UUID
) -> None:
    call = opening()
    writer.admit(Admission(call)).result(WAIT_S)
    writer.settle(
        Settlement(
            call_id=call.call_id, organization_id=organization_id, outcome="ok", duration_ms=1
        )
    ).result(WAIT_S)
    later = datetime.now(UTC) + timedelta(seconds=1)
    assert retention.prune(organization_id, before=later, actor=ALICE).seq == 2
    report = verify(organization_id)
    assert (report.ok, report.rows) == (True, 1)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE ledger_checkpoint SET seq = seq + 1",
        "UPDATE ledger_checkpoint SET digest = 'x'",
        "DELETE FROM ledger_checkpoint",
        "DELETE FROM ledger_auditrow WHERE seq = 6",
    ],
)
def test_a_forged_beginning_is_found(organization_id: UUID, sql: str) -> None:
    happen(organization_id, OLD, 5)
    happen(organization_id, CUT, 2)
    retention.prune(organization_id, before=CUT, actor=ALICE)
    with connection.cursor() as cursor:
        cursor.execute(sql)
    assert not verify(organization_id).ok


@pytest.mark.django_db
def test_the_schedule_keeps_everything_unless_it_is_told_how_long(
    organization_id: UUID, settings: Any
) -> None:
    happen(organization_id, OLD, 3)
    assert prune_audit() == 0
    settings.BONOBOT_AUDIT_DAYS = 30
    assert prune_audit() == 3
    assert verify(organization_id).ok
