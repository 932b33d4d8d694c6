"""The audit log on the command line: list, verify, export, prune."""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from bonobot.accounts.models import Organization
from bonobot.core.telemetry.logging import JSONFormatter, TextFormatter
from bonobot.ledger.audit import search as audit_search
from bonobot.ledger.audit.admin_changes import ChangeEvent, record_finished_change
from bonobot.ledger.models import AuditRow, Verification
from bonobot.ledger.tasks import export_signed_checkpoints
from bonobot.ledger.types import Actor
from tests import factories
from tests.command_line import Bonobot, acme, bonobot

__all__ = ["acme", "bonobot"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def checkpoint_folder(tmp_path: Path, settings: Any) -> Path:
    settings.BONOBOT_AUDIT_HEADS = tmp_path / "heads"
    return tmp_path / "heads"


@pytest.fixture(autouse=True)
def _create_entries(acme: Organization) -> None:
    factories.create_agent(acme)


def test_entries_are_listed_and_filtered(bonobot: Bonobot) -> None:
    actions = [row["action"] for row in bonobot("audit", "list", "--json").json]
    assert "agent_created" in actions
    assert bonobot("audit", "list", "--outcome", "refused", "--json").json == []


def test_entries_are_searched_with_the_filters_of_rest(bonobot: Bonobot) -> None:
    (row,) = bonobot(
        "audit", "list", "--search", "helper", "--action", "agent_created", "--json"
    ).json
    assert row["resource"] == "Helper"
    assert bonobot("audit", "list", "--search", "helper", "--until", "1d", "--json").json == []
    result = bonobot("audit", "list", "--outcome", "great", "--json")
    assert (result.status, result.error["field"]) == (1, "--outcome")
    assert "succeeded, failed, denied" in result.error["remedy"]


def test_outcomes_are_filtered_by_the_words_of_the_table_or_their_codes(bonobot: Bonobot) -> None:
    entries = bonobot("audit", "list", "--json").json
    assert entries
    for outcome in ("succeeded", "Succeeded", "ok"):
        assert bonobot("audit", "list", "--outcome", outcome, "--json").json == entries


def test_calls_are_filtered_by_a_flow_label_of_their_tool(
    bonobot: Bonobot, acme: Organization
) -> None:
    record_finished_change(
        organization_id=acme.pk,
        actor=Actor("user", "1", "anna"),
        action="server_created",
        resource_type="mcp_server",
        resource_id="1",
        details={"labels": ["sends_out"]},
    )
    (row,) = bonobot("audit", "list", "--flow-label", "sends_out", "--json").json
    assert row["action"] == "server_created"
    assert bonobot("audit", "list", "--flow-label", "private_data", "--json").json == []
    result = bonobot("audit", "list", "--flow-label", "secret", "--json")
    assert (result.status, result.error["field"]) == (1, "--flow-label")


def test_a_search_prints_how_to_continue(
    bonobot: Bonobot, acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories.create_agent(acme, "another")
    monkeypatch.setattr(audit_search, "MAX_ROWS_SCANNED", 1)
    resources: list[str] = []
    arguments: list[str] = []
    while len(arguments) < 20:
        result = bonobot("audit", "list", "--search", "helper", *arguments[-2:], "--json")
        assert len(result.json) <= 1
        resources += [row["resource"] for row in result.json]
        if not result.err:
            break
        arguments += ["--until", json.loads(result.err)["looked_to"]]
    assert "Helper" in resources
    assert len(arguments) > 2


def test_a_valid_audit_log_is_compared_with_stored_checkpoints(
    bonobot: Bonobot, checkpoint_folder: Path
) -> None:
    export_signed_checkpoints()
    result = bonobot("audit", "verify", "--json")
    assert (result.status, result.json["ok"]) == (0, True)
    (file,) = checkpoint_folder.iterdir()
    assert bonobot("audit", "verify", "--checkpoints", str(file)).status == 0


@pytest.mark.parametrize("formatter", [JSONFormatter(), TextFormatter()])
def test_checkpoints_in_a_log_file_are_compared(
    bonobot: Bonobot, acme: Organization, tmp_path: Path, formatter: logging.Formatter
) -> None:
    file = tmp_path / "bonobot.log"
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(formatter)
    logger = logging.getLogger("bonobot.ledger")
    logger.addHandler(handler)
    try:
        logging.getLogger("bonobot.ledger.queries").setLevel("INFO")
        export_signed_checkpoints()
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert bonobot("audit", "verify", "--checkpoints", str(file)).status == 0
    text = file.read_text(encoding="utf-8")
    assert str(acme.pk) in text
    assert "********" not in text
    file.write_text(text.replace('"seq": ', '"seq": 1'), encoding="utf-8")
    result = bonobot("audit", "verify", "--checkpoints", str(file), "--json")
    assert (result.status, result.error["code"]) == (1, "unusable_file")
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM ledger_auditrow")
        cursor.execute("DELETE FROM ledger_head")
    file.write_text(text, encoding="utf-8")
    assert bonobot("audit", "verify", "--checkpoints", str(file)).status == 1


def test_a_file_without_checkpoints_of_the_organization_is_refused(
    bonobot: Bonobot, tmp_path: Path
) -> None:
    file = tmp_path / "bonobot.log"
    file.write_text(
        '{"logger": "bonobot.jobs.celery_beat", "message": "beat leads"}\n', encoding="utf-8"
    )
    result = bonobot("audit", "verify", "--checkpoints", str(file), "--json")
    assert (result.status, result.error["code"]) == (1, "unusable_file")
    assert "no signed checkpoints" in result.error["detail"]


def test_an_invalid_audit_log_exits_with_1_and_prints_the_entry(bonobot: Bonobot) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE ledger_auditrow SET action = 'x' WHERE seq = 1")
    result = bonobot("audit", "verify", "--json")
    assert (result.status, result.json["ok"]) == (1, False)
    assert "columns at 1" in result.json["faults"][0]


def test_a_verification_continues_where_the_last_one_ended(bonobot: Bonobot) -> None:
    assert bonobot("audit", "verify").status == 0
    with connection.cursor() as cursor:
        cursor.execute("UPDATE ledger_auditrow SET action = 'x' WHERE seq = 1")
    assert bonobot("audit", "verify", "--continue").status == 0  # verified before the change
    assert bonobot("audit", "verify").status == 1
    assert bonobot("audit", "verify", "--continue").status == 1  # the fault is kept
    Verification.objects.update(statement={"seq": 10_000})
    result = bonobot("audit", "verify", "--continue", "--json")
    assert "standing at 0" in result.json["faults"][0]


def test_a_truncated_audit_log_is_detected_by_its_checkpoints(bonobot: Bonobot) -> None:
    export_signed_checkpoints()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM ledger_auditrow")
        cursor.execute("DELETE FROM ledger_head")
    assert bonobot("audit", "verify").status == 1


def test_an_unusable_file_is_reported_with_its_name(bonobot: Bonobot, tmp_path: Path) -> None:
    invalid_file = tmp_path / "strange.jsonl"
    invalid_file.write_text("{}\nhello\n", encoding="utf-8")
    for option in ("--file", "--checkpoints"):
        result = bonobot("audit", "verify", option, str(invalid_file), "--json")
        assert (result.status, result.error["code"], result.error["field"]) == (
            1,
            "unusable_file",
            option,
        )


def test_checkpoints_are_signed_and_the_public_key_is_printed(
    bonobot: Bonobot, acme: Organization
) -> None:
    (head,) = bonobot("audit", "checkpoint", "--json").json
    assert head["organization_id"] == str(acme.pk)
    assert f"Public key {head['key']}" in bonobot("audit", "checkpoint").out


def test_an_export_can_be_verified_by_itself(bonobot: Bonobot, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    result = bonobot("audit", "export", "--output", str(file), "--json").json
    assert result["rows"] == AuditRow.objects.count()
    assert bonobot("audit", "verify", "--file", str(file)).status == 0
    file.write_text(file.read_text(encoding="utf-8").replace("agent_created", "agent_moved"))
    assert bonobot("audit", "verify", "--file", str(file)).status == 1


def test_an_export_is_written_to_stdout_and_can_be_csv(bonobot: Bonobot) -> None:
    lines = bonobot("audit", "export", "--since", "1d").out.splitlines()
    assert json.loads(lines[0])["seq"] == 1
    assert bonobot("audit", "export", "--until", "2020-01-01").out == ""
    assert bonobot("audit", "export", "--format", "csv").out.startswith("seq,id,")


def test_a_file_that_cant_be_written_is_reported_with_its_name(
    bonobot: Bonobot, tmp_path: Path
) -> None:
    result = bonobot("audit", "export", "--output", str(tmp_path / "no" / "file"), "--json")
    assert (result.status, result.error["field"]) == (1, "--output")


def test_the_table_has_the_outcomes_of_the_admin_and_json_their_codes(bonobot: Bonobot) -> None:
    assert "Succeeded" in bonobot("audit", "list").out
    assert bonobot("audit", "list", "--json").json[0]["outcome"] == "ok"


def test_the_table_tells_requests_for_approval_from_denied_calls(
    bonobot: Bonobot, acme: Organization
) -> None:
    for code in ("approval_required", "denied_by_policy"):
        record_finished_change(
            organization_id=acme.pk,
            actor=Actor("user", "1", "anna"),
            action="tool_call",
            resource_type="mcp_tool",
            resource_id="pay",
            event=ChangeEvent("call", outcome="refused", code=code),
        )
    table = bonobot("audit", "list", "--action", "tool_call").out
    assert [table.count(word) for word in ("Approval requested", "Denied")] == [1, 1]


def test_pruning_asks_for_confirmation_and_keeps_the_chain_valid(bonobot: Bonobot) -> None:
    cutoff = f"{datetime.now(UTC).isoformat()}"
    result = bonobot("audit", "prune", "--before", cutoff, "--json")
    assert (result.status, result.error["code"]) == (1, "not_confirmed")
    pruned = bonobot("audit", "prune", "--before", cutoff, "--yes", "--json").json
    assert pruned["rows"] > 0
    report = bonobot("audit", "verify", "--json").json
    assert (report["ok"], report["start"], report["rows"]) == (True, pruned["seq"], 1)


def test_an_invalid_time_is_a_usage_error(bonobot: Bonobot) -> None:
    assert bonobot("audit", "prune", "--before", "soon").status == 2
