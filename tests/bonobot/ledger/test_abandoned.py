from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from bonobot.ledger import usage
from bonobot.ledger import writer as writers
from bonobot.ledger.abandoned import settle_abandoned
from bonobot.ledger.entries import Admission, Opening, Reserve
from bonobot.ledger.models import AuditRow
from bonobot.ledger.verify import verify
from bonobot.ledger.writer import Writer

WAIT_S = 30.0


def test_a_call_that_nobody_settled_is_closed_at_what_it_had_reserved(
    writer: Writer, opening: Callable[..., Opening], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_current", writer)
    left, event = opening(), opening()
    writer.admit(Admission(left, (Reserve("budget:x", 10, 7),))).result(WAIT_S)
    writer.note(event).result(WAIT_S)
    assert settle_abandoned(opened_before=timezone.now() - timedelta(minutes=10)) == 0
    assert settle_abandoned(opened_before=timezone.now()) == 1
    row = AuditRow.objects.get(pk=left.call_id)
    assert (row.outcome, row.code) == ("unknown", "abandoned")
    assert usage.spent("budget:x") == (7, 0)
    assert settle_abandoned(opened_before=timezone.now()) == 0
    assert verify(row.organization_id).ok
