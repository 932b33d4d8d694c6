from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from bonobot.ledger.audit.abandoned_calls import settle_abandoned_calls
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import Admission, BudgetReservation, Opening
from bonobot.ledger.writer import writer_thread as writers
from bonobot.ledger.writer.writer_thread import LedgerWriter
from tests.bonobot.ledger.factories import load_balance
from tests.ledger_chain import verify_whole_chain

WAIT_S = 30.0


def test_an_abandoned_call_is_closed_with_its_reserved_amounts(
    writer: LedgerWriter, opening: Callable[..., Opening], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_current_writer", writer)
    abandoned, refused = opening(), opening(decision="deny", code="denied")
    writer.admit_call(Admission(abandoned, (BudgetReservation("budget:x", 10, 7),))).result(WAIT_S)
    writer.record_refusal(refused).result(WAIT_S)
    assert settle_abandoned_calls(opened_before=timezone.now() - timedelta(minutes=10)) == 0
    assert settle_abandoned_calls(opened_before=timezone.now()) == 1
    row = AuditRow.objects.get(pk=abandoned.call_id)
    assert (row.outcome, row.code) == ("unknown", "abandoned")
    assert load_balance("budget:x") == (7, 0)
    assert settle_abandoned_calls(opened_before=timezone.now()) == 0
    assert verify_whole_chain(row.organization_id).ok
