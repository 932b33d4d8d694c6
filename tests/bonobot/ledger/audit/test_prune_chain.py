from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext

from bonobot.accounts.models import Organization
from bonobot.accounts.tasks import prune_audit
from bonobot.ledger.audit import export as audit_export
from bonobot.ledger.audit import prune_chain
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.audit.prune_chain import RetentionRow, find_cut_position
from bonobot.ledger.audit.verify_chain import verify_exported
from bonobot.ledger.models import AuditRow, Checkpoint
from bonobot.ledger.types import Admission, Opening, Settlement
from bonobot.ledger.usage import build_rollups
from bonobot.ledger.writer.writer_thread import LedgerWriter
from tests.bonobot.ledger.factories import ALICE
from tests.ledger_chain import verify_whole_chain

WAIT_S = 30.0
OLD = datetime(2026, 1, 1, tzinfo=UTC)
CUT = OLD + timedelta(days=1)
OpeningFactory = Callable[..., Opening]


def record_entries(organization_id: UUID, at: datetime, times: int) -> None:
    with time_machine.travel(at, tick=False):
        for number in range(times):
            record_finished_change(
                organization_id=organization_id,
                actor=ALICE,
                action="server_created",
                resource_type="mcp_server",
                resource_id=str(number),
            )


def list_remaining(organization_id: UUID) -> list[int]:
    return sorted(AuditRow.objects.for_organization(organization_id).values_list("seq", flat=True))


@pytest.mark.django_db
def test_old_entries_are_pruned_and_the_rest_is_verified_from_the_checkpoint(
    organization_id: UUID,
) -> None:
    record_entries(organization_id, OLD, 5)
    record_entries(organization_id, CUT, 2)
    result = prune_chain.prune_entries(organization_id, before=CUT, actor=ALICE)
    assert (result.rows, result.seq) == (5, 5)
    assert list_remaining(organization_id) == [6, 7, 8]
    assert AuditRow.objects.get(seq=8).action == "audit_pruned"
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows, report.start) == (True, 3, 5)


@pytest.mark.django_db
def test_pruning_without_old_entries_changes_nothing(organization_id: UUID) -> None:
    record_entries(organization_id, CUT, 2)
    assert prune_chain.prune_entries(organization_id, before=CUT, actor=ALICE).rows == 0
    assert list_remaining(organization_id) == [1, 2]
    assert not Checkpoint.objects.exists()


@pytest.mark.django_db
def test_long_histories_are_pruned_in_batches(
    organization_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune_chain, "BATCH_SIZE", 3)
    record_entries(organization_id, OLD, 8)
    assert prune_chain.prune_entries(organization_id, before=CUT, actor=ALICE).rows == 8
    assert Checkpoint.objects.count() == 3
    assert verify_whole_chain(organization_id).ok


def test_a_call_that_was_closed_after_the_cutoff_is_kept(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    with time_machine.travel(OLD, tick=False):
        record_entries(organization_id, OLD, 2)
        call = opening()
        writer.admit_call(Admission(call)).result(WAIT_S)
        record_entries(organization_id, OLD, 2)
    record_entries(organization_id, CUT, 1)
    closing = Settlement(
        call_id=call.call_id, organization_id=organization_id, outcome="ok", duration_ms=1
    )
    assert prune_chain.prune_entries(organization_id, before=CUT, actor=ALICE).seq == 2
    assert writer.settle_call(closing).result(WAIT_S) is True
    assert prune_chain.prune_entries(organization_id, before=CUT, actor=ALICE).rows == 0
    assert list_remaining(organization_id)[0] == 3
    assert verify_whole_chain(organization_id).ok


def test_calls_are_pruned_with_both_their_hashed_texts(
    writer: LedgerWriter, opening: OpeningFactory, organization_id: UUID
) -> None:
    call = opening()
    writer.admit_call(Admission(call)).result(WAIT_S)
    writer.settle_call(
        Settlement(
            call_id=call.call_id, organization_id=organization_id, outcome="ok", duration_ms=1
        )
    ).result(WAIT_S)
    later = datetime.now(UTC) + timedelta(seconds=1)
    assert prune_chain.prune_entries(organization_id, before=later, actor=ALICE).seq == 2
    report = verify_whole_chain(organization_id)
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
def test_a_forged_first_entry_is_detected(organization_id: UUID, sql: str) -> None:
    record_entries(organization_id, OLD, 5)
    record_entries(organization_id, CUT, 2)
    prune_chain.prune_entries(organization_id, before=CUT, actor=ALICE)
    with connection.cursor() as cursor:
        cursor.execute(sql)
    assert not verify_whole_chain(organization_id).ok


@pytest.mark.django_db
def test_a_plan_reports_what_would_be_pruned_and_deletes_nothing(
    organization_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune_chain, "BATCH_SIZE", 3)
    record_entries(organization_id, OLD, 8)
    record_entries(organization_id, CUT, 2)
    planned = prune_chain.plan_pruning(organization_id, before=CUT)
    assert (planned.rows, planned.seq) == (8, 8)
    assert len(list_remaining(organization_id)) == 10
    assert prune_chain.prune_entries(organization_id, before=CUT, actor=ALICE) == planned
    assert prune_chain.plan_pruning(organization_id, before=CUT).rows == 0


@pytest.mark.django_db
def test_pruned_entries_are_archived_first_and_can_be_verified_from_the_file(
    organization_id: UUID, tmp_path: Path
) -> None:
    record_entries(organization_id, OLD, 5)
    record_entries(organization_id, CUT, 2)
    file = tmp_path / "old.jsonl"
    result = prune_chain.archive_and_prune(organization_id, before=CUT, actor=ALICE, file=file)
    assert (result.rows, list_remaining(organization_id)) == (5, [6, 7, 8])
    with file.open(encoding="utf-8") as lines:
        report = verify_exported(audit_export.parse_lines(lines))
    assert (report.ok, report.rows, report.seq) == (True, 5, 5)
    # The remaining rows continue where the file ends.
    checkpoint = prune_chain.find_latest_checkpoint(organization_id)
    assert checkpoint is not None
    assert checkpoint.digest == report.digest
    assert verify_whole_chain(organization_id).ok
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"]


@pytest.mark.django_db
def test_nothing_is_pruned_if_the_archive_cant_be_written(
    organization_id: UUID, tmp_path: Path
) -> None:
    record_entries(organization_id, OLD, 3)
    (tmp_path / "there").write_text("kept", encoding="utf-8")
    for file in (tmp_path / "there", tmp_path / "nowhere" / "x"):
        with pytest.raises(OSError, match=r"there|nowhere"):
            prune_chain.archive_and_prune(organization_id, before=CUT, actor=ALICE, file=file)
    assert list_remaining(organization_id) == [1, 2, 3]


def build_rows(*sequences: tuple[int, int | None]) -> list[RetentionRow]:
    return [RetentionRow(seq, closed, OLD, "ok") for seq, closed in sequences]


@pytest.mark.parametrize(
    ("rows", "end"),
    [
        (build_rows((1, 2), (3, 4)), 4),
        (build_rows((1, 4), (2, 3)), 4),
        (build_rows((1, None), (2, None)), 2),
        ([*build_rows((1, 2)), RetentionRow(3, None, OLD, "open"), *build_rows((4, 5))], 2),
        ([*build_rows((1, 4)), RetentionRow(2, None, CUT, "ok"), *build_rows((3, None))], 0),
        ([*build_rows((1, 2), (3, 6), (4, 5)), RetentionRow(7, 8, CUT, "ok")], 6),
        ([*build_rows((1, None), (2, 6), (3, 4)), RetentionRow(5, None, OLD, "open")], 1),
    ],
)
def test_pruning_leaves_no_partial_entry(rows: list[RetentionRow], end: int) -> None:
    assert find_cut_position(rows, CUT, None) == end


def test_entries_that_arent_counted_in_usage_are_kept() -> None:
    assert find_cut_position(build_rows((1, None), (2, None), (3, None)), CUT, 3) == 2


@pytest.mark.django_db
def test_a_batch_reads_only_the_oldest_entries(organization_id: UUID) -> None:
    record_entries(organization_id, OLD, 3)
    record_entries(organization_id, CUT, 3)
    build_rollups.count_organization(organization_id)
    with CaptureQueriesContext(connection) as captured:
        prune_chain._prune_batch(organization_id, CUT, None)
    reads = [
        query["sql"]
        for query in captured
        if query["sql"].startswith("SELECT") and "auditrow" in query["sql"]
    ]
    assert all("seq" in sql.partition("WHERE")[2] for sql in reads)
    assert not any('opened_at" >=' in sql for sql in reads)


@pytest.fixture
def tenant(transactional_db: None) -> Organization:
    """An organization with three old entries and its creation in the audit log."""
    organization: Organization = Organization.objects.create(name="Acme", slug="acme")
    record_entries(organization.pk, OLD, 3)
    return organization


def test_the_schedule_prunes_nothing_without_a_retention_setting(
    tenant: Organization, settings: Any
) -> None:
    assert prune_audit() == 0
    settings.BONOBOT_AUDIT_DAYS = 30
    assert prune_audit() == 3
    assert verify_whole_chain(tenant.pk).ok


def test_the_organizations_retention_overrides_the_setting(
    tenant: Organization, settings: Any, tmp_path: Path
) -> None:
    settings.BONOBOT_AUDIT_DAYS = 30
    Organization.objects.update(audit_days=0)
    assert prune_audit() == 0
    settings.BONOBOT_AUDIT_DAYS = 0
    settings.BONOBOT_AUDIT_ARCHIVE = str(tmp_path / "nowhere")
    Organization.objects.update(audit_days=7)
    assert prune_audit() == 0  # and logs the reason
    settings.BONOBOT_AUDIT_ARCHIVE = str(tmp_path)
    assert prune_audit() == 3
    [file] = tmp_path.iterdir()
    assert str(tenant.pk) in file.name
    assert verify_whole_chain(tenant.pk).ok
