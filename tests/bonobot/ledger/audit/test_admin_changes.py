import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from bonobot.ledger.audit.admin_changes import (
    AdminChange,
    increment_generation,
    record_change,
    record_finished_change,
)
from bonobot.ledger.models import AuditRow
from bonobot.ledger.policy_generations import load_policy_generation
from bonobot.ledger.types import Admission, Opening
from bonobot.ledger.writer.writer_thread import LedgerWriter
from tests.bonobot.ledger.factories import ALICE
from tests.ledger_chain import verify_whole_chain

WAIT_S = 30.0

pytestmark = pytest.mark.django_db


def build_change(
    organization_id: UUID, action: str = "token_created", **overrides: Any
) -> dict[str, Any]:
    return {
        "organization_id": organization_id,
        "actor": ALICE,
        "action": action,
        "resource_type": "token",
        "resource_id": "7",
    } | overrides


def fail_after(step: Callable[[], object]) -> None:
    step()
    raise ZeroDivisionError


def list_actions() -> list[str]:
    return list(AuditRow.objects.order_by("seq").values_list("action", flat=True))


def test_a_change_writes_one_hashed_entry_and_increments_the_generation(
    organization_id: UUID,
) -> None:
    with record_change(
        **build_change(organization_id, resource_name="ci", details={"role": "member"})
    ) as change:
        pass
    row = AuditRow.objects.get()
    assert (row.id, row.event_type, row.outcome) == (change.id, "change", "ok")
    assert (row.resource_type, row.resource_id, row.resource_name) == ("token", "7", "ci")
    assert (row.actor_kind, row.actor_label) == ("user", "Alice")
    assert json.loads(row.opened)["details"] == {"role": "member"}
    assert json.loads(row.opened)["generation"] == 1
    assert load_policy_generation(organization_id) == 1
    assert verify_whole_chain(organization_id).ok


def test_a_change_without_effect_on_policies_keeps_the_generation(organization_id: UUID) -> None:
    record_finished_change(**build_change(organization_id, "session_started", governed=False))
    assert load_policy_generation(organization_id) == 0
    assert verify_whole_chain(organization_id).seq == 1


def test_details_can_be_added_during_the_change(organization_id: UUID) -> None:
    details: dict[str, Any] = {}
    with record_change(**build_change(organization_id, details=details)) as change:
        details["approved"] = 3
        change.resource_name = "time"
    row = AuditRow.objects.get()
    assert (row.resource_name, json.loads(row.opened)["details"]) == ("time", {"approved": 3})


def test_a_change_that_fails_is_not_recorded(organization_id: UUID) -> None:
    with pytest.raises(ZeroDivisionError), record_change(**build_change(organization_id)):
        fail_after(lambda: increment_generation(organization_id))
    assert not AuditRow.objects.exists()
    assert load_policy_generation(organization_id) == 0
    increment_generation(organization_id)  # no change is pending
    assert load_policy_generation(organization_id) == 1


def test_nested_changes_lock_the_chain_once_at_the_end(
    organization_id: UUID,
) -> None:
    with (
        CaptureQueriesContext(
            connection,
        ) as queries,
        record_change(**build_change(organization_id, "outer")),
    ):
        with record_change(**build_change(organization_id, "inner")):
            increment_generation(organization_id)
        with record_change(**build_change(organization_id, "innermost", governed=False)):
            pass
        increment_generation(organization_id)
        assert not any("ledger_head" in query["sql"] for query in queries)
    assert list_actions() == ["inner", "innermost", "outer"]
    assert load_policy_generation(organization_id) == 1
    assert verify_whole_chain(organization_id).ok
    heads = [query["sql"] for query in queries if "ledger_head" in query["sql"]]
    assert len(heads) == 2


def test_a_failed_nested_change_is_dropped_and_the_outer_one_kept(
    organization_id: UUID,
) -> None:
    with record_change(**build_change(organization_id, "outer")):
        with (
            pytest.raises(ZeroDivisionError),
            record_change(**build_change(organization_id, "inner")),
        ):
            fail_after(lambda: record_finished_change(**build_change(organization_id, "innermost")))
        record_finished_change(**build_change(organization_id, "next"))
    assert list_actions() == ["next", "outer"]
    assert verify_whole_chain(organization_id).ok


def test_a_change_of_several_organizations_is_recorded_in_each_chain(organization_id: UUID) -> None:
    other = uuid4()
    with record_change(**build_change(organization_id)):
        record_finished_change(**build_change(other, governed=False))
        increment_generation(other)
    assert (load_policy_generation(organization_id), load_policy_generation(other)) == (1, 1)
    assert (verify_whole_chain(organization_id).rows, verify_whole_chain(other).rows) == (1, 1)


def test_the_generation_is_incremented_in_the_callers_transaction(organization_id: UUID) -> None:
    increment_generation(organization_id)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        fail_after(lambda: increment_generation(organization_id))
    assert load_policy_generation(organization_id) == 1


def test_a_change_is_rolled_back_with_its_transaction(organization_id: UUID) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        fail_after(lambda: record_finished_change(**build_change(organization_id)))
    assert verify_whole_chain(organization_id).rows == 0


def test_the_yielded_change_has_the_id_of_its_entry(organization_id: UUID) -> None:
    with record_change(**build_change(organization_id)) as change:
        assert isinstance(change, AdminChange)
        inner = record_finished_change(**build_change(organization_id, "inner"))
    assert set(AuditRow.objects.values_list("id", flat=True)) == {change.id, inner}


@pytest.mark.django_db(transaction=True)
def test_concurrent_changes_and_calls_form_one_chain(
    writer: LedgerWriter, opening: Callable[..., Opening], organization_id: UUID
) -> None:
    def make_calls() -> None:
        for _ in range(50):
            writer.admit_call(Admission(opening())).result(WAIT_S)

    def make_changes() -> None:
        try:
            for _ in range(50):
                record_finished_change(**build_change(organization_id))
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        for future in [
            threads.submit(work) for work in (make_calls, make_changes, make_calls, make_changes)
        ]:
            future.result(WAIT_S)
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows) == (True, 200)
    assert load_policy_generation(organization_id) == 100
