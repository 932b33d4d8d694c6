import json
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection

from bonobot.core.crypto.key_files import generate_signing_key
from bonobot.ledger.audit import signed_checkpoints
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.tasks import export_signed_checkpoints
from tests.bonobot.ledger.factories import ALICE
from tests.ledger_chain import verify_whole_chain

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def checkpoint_file(tmp_path: Path, settings: Any) -> Path:
    settings.BONOBOT_AUDIT_HEADS = tmp_path / "heads"
    return tmp_path / "heads"


def record_entries(organization_id: UUID, times: int = 1) -> None:
    for number in range(times):
        record_finished_change(
            organization_id=organization_id,
            actor=ALICE,
            action="server_created",
            resource_type="mcp_server",
            resource_id=str(number),
        )


def read_checkpoints(organization_id: UUID) -> list[signed_checkpoints.SignedCheckpoint]:
    return list(
        signed_checkpoints.parse_checkpoints(
            organization_id, signed_checkpoints.read_checkpoint_lines()
        )
    )


def test_a_checkpoint_is_written_once_after_each_change_of_the_chain(organization_id: UUID) -> None:
    assert export_signed_checkpoints() == 0
    record_entries(organization_id, 2)
    assert export_signed_checkpoints() == 1
    assert export_signed_checkpoints() == 0
    record_entries(organization_id)
    assert export_signed_checkpoints() == 1
    assert [checkpoint.seq for checkpoint in read_checkpoints(organization_id)] == [2, 3]


def test_only_checkpoints_of_the_organization_are_compared(organization_id: UUID) -> None:
    record_entries(organization_id)
    record_entries(uuid4(), 3)
    assert export_signed_checkpoints() == 2
    assert [checkpoint.seq for checkpoint in read_checkpoints(organization_id)] == [1]
    assert verify_whole_chain(organization_id, read_checkpoints(organization_id)).ok


def test_a_truncated_chain_is_detected_by_a_checkpoint(organization_id: UUID) -> None:
    record_entries(organization_id, 5)
    export_signed_checkpoints()
    with connection.cursor() as cursor:
        cursor.execute("SELECT digest FROM ledger_auditrow WHERE seq = 3")
        (digest,) = cursor.fetchone()
        cursor.execute("DELETE FROM ledger_auditrow WHERE seq > 3")
        cursor.execute("UPDATE ledger_head SET seq = 3, digest = %s", [digest])
    assert verify_whole_chain(organization_id).ok
    assert [
        fault.kind
        for fault in verify_whole_chain(organization_id, read_checkpoints(organization_id)).faults
    ] == ["truncated"]


def test_a_rewritten_chain_is_detected_by_a_checkpoint(organization_id: UUID) -> None:
    record_entries(organization_id, 3)
    export_signed_checkpoints()
    checkpoints = read_checkpoints(organization_id)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM ledger_auditrow")
        cursor.execute("DELETE FROM ledger_head")
    record_entries(organization_id, 4)
    assert verify_whole_chain(organization_id).ok
    assert [fault.kind for fault in verify_whole_chain(organization_id, checkpoints).faults] == [
        "anchor"
    ]


@pytest.mark.parametrize("change", [{"seq": 1}, {"kind": "checkpoint"}, {"signature": "AAAA"}])
def test_a_forged_checkpoint_is_refused(organization_id: UUID, change: dict[str, object]) -> None:
    record_entries(organization_id, 2)
    (statement,) = signed_checkpoints.sign_chain_ends(organization_id)
    forged = json.dumps({**statement, **change})
    with pytest.raises(ValueError, match="not signed"):
        list(signed_checkpoints.parse_checkpoints(organization_id, ["\n", forged]))


@pytest.mark.parametrize("line", ["{", "[]", "5"])
def test_a_line_that_isnt_a_checkpoint_is_reported_with_its_number(
    organization_id: UUID, line: str
) -> None:
    with pytest.raises(ValueError, match="Line 1"):
        list(signed_checkpoints.parse_checkpoints(organization_id, [line]))


def test_a_checkpoint_of_another_installation_is_refused(
    organization_id: UUID, settings: Any
) -> None:
    record_entries(organization_id)
    lines = [
        json.dumps(statement) for statement in signed_checkpoints.sign_chain_ends(organization_id)
    ]
    settings.BONOBOT_AUDIT_KEYS = [generate_signing_key()]
    with pytest.raises(ValueError, match="not signed"):
        list(signed_checkpoints.parse_checkpoints(organization_id, lines))
