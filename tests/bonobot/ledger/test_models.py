from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, transaction

from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.models import AppendOnly, AuditRow, BudgetCell
from tests.bonobot.ledger.factories import ALICE

pytestmark = pytest.mark.django_db


@pytest.fixture
def row(organization_id: UUID) -> AuditRow:
    record_finished_change(
        organization_id=organization_id,
        actor=ALICE,
        action="server_created",
        resource_type="mcp_server",
        resource_id="1",
    )
    return AuditRow.objects.get()


@pytest.mark.parametrize(
    "write",
    [
        lambda row: row.save(),
        lambda row: row.delete(),
        lambda row: AuditRow.objects.create(pk=row.pk),
        lambda row: AuditRow.objects.update(outcome="ok"),
        lambda row: AuditRow.objects.filter(pk=row.pk).update(outcome="ok"),
        lambda row: AuditRow.objects.all().delete(),
        lambda row: AuditRow.objects.bulk_create([row]),
        lambda row: AuditRow.objects.bulk_update([row], ["outcome"]),
        lambda row: AuditRow._default_manager.all().delete(),
        lambda row: AuditRow._base_manager.filter(pk=row.pk).update(outcome="ok"),
    ],
)
def test_audit_entries_are_read_only(row: AuditRow, write: Callable[[AuditRow], Any]) -> None:
    with pytest.raises(AppendOnly) as raised:
        write(row)
    assert raised.value.code == "append_only"
    assert AuditRow.objects.filter(outcome="ok").count() == 1


def test_entries_of_an_organization_are_ordered_latest_first(
    organization_id: UUID, row: AuditRow
) -> None:
    record_finished_change(
        organization_id=organization_id,
        actor=ALICE,
        action="server_deleted",
        resource_type="mcp_server",
        resource_id="1",
    )
    actions = [entry.action for entry in AuditRow.objects.for_organization(organization_id)]
    assert actions == ["server_deleted", "server_created"]
    assert str(row) == "server_created mcp_server 1: ok"


def test_a_budget_counter_never_goes_below_zero() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        BudgetCell.objects.create(key="budget:x", organization_id=UUID(int=1), reserved=-1)
