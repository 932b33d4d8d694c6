"""Verification of the audit log in the admin: started, in progress, and finished."""

from datetime import UTC, datetime

import pytest
import time_machine
from django.db import connection

from agents.admin.audit import START_TIMEOUT
from bonobot.accounts.roles import Role
from bonobot.ledger import tasks
from bonobot.ledger.audit import verify_chain
from bonobot.ledger.models import AuditRow
from bonobot.ledger.tasks import CONTINUE_VERIFICATION, continue_verification
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
IN_PROGRESS = 'id="verification" data-running'
LIST, VERIFY = "ledger_auditrow_changelist", "ledger_auditrow_verify"


@pytest.fixture
def acme():
    organization = factories.create_organization()
    for number in range(5):
        factories.create_agent(organization, f"agent-{number}")
    return organization


@pytest.fixture
def queued_tasks(monkeypatch, django_capture_on_commit_callbacks):
    tasks = []
    monkeypatch.setattr(
        "bonobot.core.celery_tasks._send_task",
        lambda task, arguments: tasks.append((task, *arguments)),
    )
    return tasks


def test_a_worker_verifies_and_the_page_shows_the_result(
    acme, queued_tasks, django_capture_on_commit_callbacks
):
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    assert "Integrity not verified" in admin_client.get_text(auditor.get(LIST))
    with django_capture_on_commit_callbacks(execute=True):
        auditor.post(VERIFY)
    assert queued_tasks == [(CONTINUE_VERIFICATION, str(acme.pk), "")]
    assert IN_PROGRESS in auditor.get("ledger_auditrow_verification"), "the worker hasn't started"
    with time_machine.travel(datetime.now(UTC) + START_TIMEOUT):
        assert "No worker has started the verification" in admin_client.get_text(auditor.get(LIST))
    assert continue_verification(str(acme.pk))
    last = AuditRow.objects.for_organization(acme.pk).first().seq
    page = admin_client.get_text(auditor.get("ledger_auditrow_verification"))
    assert f"Verified up to entry {last}" in page
    assert "Integrity verified just now" in page, "the toolbar above it is updated, too"
    assert "Integrity not verified" not in page
    assert IN_PROGRESS not in auditor.get(LIST)
    assert "Verify new entries" in admin_client.get_text(auditor.get(LIST))


def test_a_long_verification_continues_in_steps_and_shows_its_progress(
    acme, queued_tasks, monkeypatch, django_capture_on_commit_callbacks
):
    monkeypatch.setattr(tasks, "MAX_RUN_S", 0.0)
    monkeypatch.setattr(
        tasks, "verify_step", lambda pk, **options: verify_chain.verify_step(pk, rows=2, **options)
    )
    with django_capture_on_commit_callbacks(execute=True):
        assert not continue_verification(str(acme.pk))
    assert queued_tasks == [(CONTINUE_VERIFICATION, str(acme.pk))]
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    page = auditor.get(LIST)
    assert IN_PROGRESS in page
    assert "Continue verification" not in admin_client.get_text(page), (
        "the verification is still running"
    )
    with time_machine.travel(datetime.now(UTC) + START_TIMEOUT):
        page = auditor.get(LIST)
        assert IN_PROGRESS not in page
        assert "Continue verification" in admin_client.get_text(page)
    while not continue_verification(str(acme.pk)):
        pass
    finished = admin_client.get_text(auditor.get("ledger_auditrow_verification"))
    assert "verified Verified up to entry" in finished


def test_an_error_links_to_its_entry(acme):
    row = AuditRow.objects.for_organization(acme.pk)[2]
    altered = row.opened.replace("agent", "tnega")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE ledger_auditrow SET opened = %s WHERE seq = %s", [altered, row.seq])
    assert continue_verification(str(acme.pk))
    page = admin_client.sign_in(acme, Role.AUDITOR).get("ledger_auditrow_verification")
    assert f"Entry {row.seq} ·" in admin_client.get_text(page)
    assert admin_client.find_links(page, admin_client.build_url("ledger_auditrow_change", row.pk))


def test_a_member_can_neither_start_nor_see_a_verification(acme, queued_tasks):
    member = admin_client.sign_in(acme, Role.MEMBER)
    member.post(VERIFY, status=403)
    member.get("ledger_auditrow_verification", status=403)
    assert queued_tasks == []
