from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection

from bonobot.ledger.audit import verify_chain as verification
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.models import AuditRow, Head
from bonobot.ledger.writer.writer_thread import LedgerWriter
from tests.bonobot.ledger.factories import ALICE, opening_of, record_call
from tests.ledger_chain import verify_whole_chain

WAIT_S = 30.0
TEXT_COLUMNS = [
    "opened",
    "digest",
    "action",
    "actor_label",
    "resource_id",
    "code",
    "decision",
    "outcome",
]

pytestmark = pytest.mark.django_db


@pytest.fixture
def chain(organization_id: UUID) -> UUID:
    """Record ten changes; return the ID of their organization."""
    for number in range(10):
        record_finished_change(
            organization_id=organization_id,
            actor=ALICE,
            action="server_created",
            resource_type="mcp_server",
            resource_id=str(number),
        )
    return organization_id


def tamper(sql: str, *values: Any) -> None:
    """Change rows directly in the database."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


def list_fault_kinds(organization_id: UUID) -> list[str]:
    report = verify_whole_chain(organization_id)
    assert report.ok is not bool(report.faults)
    return [fault.kind for fault in report.faults]


def test_an_organization_without_entries_is_valid(organization_id: UUID) -> None:
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows, report.seq) == (True, 0, 0)


def test_a_valid_chain_is_read_to_its_end_page_by_page(
    chain: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "PAGE_SIZE", 3)
    monkeypatch.setattr(verification, "STEP_ROWS", 4)
    report = verify_whole_chain(chain)
    assert (report.ok, report.rows, report.seq) == (True, 10, 10)
    assert report.digest == Head.objects.get().digest


@pytest.mark.parametrize("name", TEXT_COLUMNS)
def test_a_flipped_byte_is_detected(chain: UUID, name: str) -> None:
    (text,) = AuditRow.objects.filter(seq=5).values_list(name, flat=True)
    flipped = "~" + text[1:]
    tamper(f"UPDATE ledger_auditrow SET {name} = %s WHERE seq = 5", flipped)  # noqa: S608
    assert list_fault_kinds(chain)
    assert all(fault.seq in {5, 6} for fault in verify_whole_chain(chain).faults)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("opened_at", "2020-01-01 00:00:00+00:00"),
        ("agent_id", str(UUID(int=5))),
        ("duration_ms", 5),
        ("cost_microusd", 5),
        ("repeats", 5),
        ("closed", "{}"),
    ],
)
def test_a_changed_column_is_detected(chain: UUID, name: str, value: object) -> None:
    tamper(f"UPDATE ledger_auditrow SET {name} = %s WHERE seq = 5", value)  # noqa: S608
    assert set(list_fault_kinds(chain)) <= {"columns", "unreadable"}
    assert list_fault_kinds(chain)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("opened_at", "(opened_at AT TIME ZONE 'UTC')::text || ' BC'"),
        ("opened_at", "'infinity'"),
        ("closed_at", "'infinity'"),
        ("closed_at", "'-infinity'"),
    ],
)
def test_impossible_times_are_detected(chain: UUID, name: str, value: str) -> None:
    tamper(f"UPDATE ledger_auditrow SET {name} = ({value})::timestamptz WHERE seq = 5")  # noqa: S608
    assert list_fault_kinds(chain) == ["columns"]


def test_a_deleted_entry_is_detected(chain: UUID) -> None:
    tamper("DELETE FROM ledger_auditrow WHERE seq = 5")
    assert list_fault_kinds(chain) == ["missing"]


def test_a_deleted_entry_is_detected_after_renumbering(chain: UUID) -> None:
    tamper("DELETE FROM ledger_auditrow WHERE seq = 5")
    for seq in range(6, 11):
        tamper("UPDATE ledger_auditrow SET seq = %s WHERE seq = %s", seq - 1, seq)
    tamper("UPDATE ledger_head SET seq = 9")
    assert list_fault_kinds(chain) == ["altered"]


def test_an_inserted_entry_is_detected(chain: UUID) -> None:
    columns = [field.column for field in AuditRow._meta.fields]
    for place in (0, 11):
        copied = ", ".join(
            {"id": "%s", "seq": str(place)}.get(column, column) for column in columns
        )
        identifier = uuid4()
        tamper(
            f"INSERT INTO ledger_auditrow ({', '.join(columns)}) "  # noqa: S608
            f"SELECT {copied} FROM ledger_auditrow WHERE seq = 5",
            identifier.hex if connection.vendor == "sqlite" else str(identifier),
        )
    assert {"misplaced", "beyond"} <= set(list_fault_kinds(chain))


def test_swapped_entries_are_detected(chain: UUID) -> None:
    for old, new in ((4, 99), (5, 4), (99, 5)):
        tamper("UPDATE ledger_auditrow SET seq = %s WHERE seq = %s", new, old)
    assert "altered" in list_fault_kinds(chain)


def test_a_truncated_chain_is_detected(chain: UUID) -> None:
    tamper("DELETE FROM ledger_auditrow WHERE seq > 8")
    assert list_fault_kinds(chain) == ["truncated"]


def test_a_truncated_chain_with_a_matching_end_is_detected_by_the_digest(chain: UUID) -> None:
    tamper("DELETE FROM ledger_auditrow WHERE seq > 8")
    tamper("UPDATE ledger_head SET seq = 8")
    assert list_fault_kinds(chain) == ["head"]


def test_a_chain_end_that_was_set_back_is_detected(chain: UUID) -> None:
    digest = AuditRow.objects.get(seq=8).digest
    tamper("UPDATE ledger_head SET seq = 8, digest = %s", digest)
    assert list_fault_kinds(chain) == ["beyond"]


def test_an_entry_moved_to_another_organization_is_detected_in_both(chain: UUID) -> None:
    other = uuid4()
    value = other.hex if connection.vendor == "sqlite" else str(other)
    tamper("UPDATE ledger_auditrow SET organization_id = %s WHERE seq = 5", value)
    assert list_fault_kinds(chain) == ["missing"]
    assert list_fault_kinds(other) == ["beyond"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["closed", "closed_digest", "outcome"])
def test_a_changed_outcome_is_detected(
    writer: LedgerWriter, organization_id: UUID, name: str
) -> None:
    call = opening_of(organization_id)
    record_call(writer, call)
    denied_call = opening_of(organization_id, decision="deny", code="denied")
    for _ in range(3):
        writer.record_refusal(denied_call).result(WAIT_S)
    writer.close()
    assert verify_whole_chain(organization_id).ok
    tamper(f"UPDATE ledger_auditrow SET {name} = 'x' WHERE closed_seq IS NOT NULL")  # noqa: S608
    assert list_fault_kinds(organization_id)


@pytest.mark.django_db(transaction=True)
def test_a_reverted_closing_is_detected(writer: LedgerWriter, organization_id: UUID) -> None:
    for code in ("not_found", "rate_limited"):
        other_call = opening_of(organization_id, decision="deny", code=code)
        writer.record_refusal(other_call).result(WAIT_S)
    denied_call = opening_of(organization_id, decision="deny", code="denied")
    for _ in range(3):
        writer.record_refusal(denied_call).result(WAIT_S)
    writer.close()
    tamper(
        "UPDATE ledger_auditrow SET closed_seq = NULL, closed = '', closed_digest = '', "
        "closed_at = NULL, repeats = 0 WHERE closed_seq IS NOT NULL"
    )
    assert list_fault_kinds(organization_id) == ["truncated"]
