import csv
import io
import json
from uuid import UUID

import pytest

from bonobot.ledger.audit import export as audit_export
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.audit.verify_chain import verify_exported
from bonobot.ledger.models import AuditRow
from tests.bonobot.ledger.factories import ALICE

pytestmark = pytest.mark.django_db


@pytest.fixture
def chain(organization_id: UUID, monkeypatch: pytest.MonkeyPatch) -> UUID:
    monkeypatch.setattr(audit_export, "PAGE_SIZE", 2)
    for number, name in enumerate(["plain", "=1+1", "Ünïcode\n", "x", "y"]):
        record_finished_change(
            organization_id=organization_id,
            actor=ALICE,
            action="server_created",
            resource_type="mcp_server",
            resource_id=str(number),
            resource_name=name,
            details={"why": name},
        )
    return organization_id


def export_lines(organization_id: UUID) -> list[str]:
    text = "".join(
        audit_export.export_pages(AuditRow.objects.for_organization(organization_id), "jsonl")
    )
    return text.splitlines(keepends=True)


def test_an_exported_chain_can_be_verified_without_the_database(chain: UUID) -> None:
    report = verify_exported(audit_export.parse_lines(export_lines(chain)))
    assert (report.ok, report.rows, report.seq) == (True, 5, 5)


def test_a_partial_export_is_verified_from_its_first_entry(chain: UUID) -> None:
    report = verify_exported(audit_export.parse_lines(export_lines(chain)[2:]))
    assert (report.ok, report.rows) == (True, 3)


def test_a_changed_or_missing_exported_entry_is_detected(chain: UUID) -> None:
    exported = export_lines(chain)
    changed = [*exported[:2], exported[2].replace("server_created", "server_moved"), *exported[3:]]
    assert not verify_exported(audit_export.parse_lines(changed)).ok
    assert not verify_exported(audit_export.parse_lines(exported[:2] + exported[3:])).ok


def test_an_empty_export_verifies_no_entries() -> None:
    assert verify_exported(audit_export.parse_lines(["\n"])).rows == 0


@pytest.mark.parametrize("line", ["{", "[]", "{}", json.dumps({"columns": {}})])
def test_a_line_that_isnt_an_entry_is_reported_with_its_number(line: str) -> None:
    with pytest.raises(ValueError, match="Line 1"):
        list(audit_export.parse_lines([line]))


def test_a_csv_export_has_a_header_and_no_formulas(chain: UUID) -> None:
    text = "".join(audit_export.export_pages(AuditRow.objects.for_organization(chain), "csv"))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["seq"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[1]["resource_name"] == "'=1+1"
    assert json.loads(rows[1]["details"]) == {"why": "=1+1"}
