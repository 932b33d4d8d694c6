"""Entries of the audit log about approvals, and about calls that needed one."""

from html import unescape
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from agents.models import Approval
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.audit.admin_changes import ChangeEvent, record_finished_change
from bonobot.ledger.types import Actor
from tests import admin_client, factories
from tests.agents.admin.test_audit import create_approved_call, create_call

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def auditor(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.AUDITOR)


def test_the_panel_shows_what_the_approver_changed(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    answer = {"state": "approved", "decided_by": "Jonas", "decided_at": timezone.now()}
    changes = {"requested_arguments": {"amount": 7}, "arguments": {"amount": 70}}
    call = create_approved_call(acme, **answer, **changes)[1]
    panel = auditor.get("ledger_auditrow_changelist", entry=str(call.pk))
    text = admin_client.get_text(panel)
    assert text.count("Approved with changes by Jonas") == 2  # a fact, and the decision
    assert "Jonas · with changes" in text  # in the list
    for kind, number in (("removed", 7), ("added", 70)):
        assert f'<span class="bb-{kind}">"amount": {number}</span>' in unescape(panel)


def test_the_list_tells_apart_what_was_approved_with_changes(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    answer = {"state": "approved", "decided_by": "Jonas", "decided_at": timezone.now()}
    changes = {"requested_arguments": {"amount": 7}, "arguments": {"amount": 70}}
    for number, approval_changes in enumerate(({}, changes)):
        agent = factories.create_agent(acme, f"agent{number}")
        approval = factories.create_approval(agent, **answer, **approval_changes)
        record_finished_change(
            organization_id=acme.pk,
            event=ChangeEvent("approval"),
            actor=Actor("user", str(UUID(int=number)), "Jonas"),
            action="call_approved",
            resource_type="approval",
            resource_id=str(approval.pk),
            resource_name=f"call {number}",
            details={},
        )
    text = admin_client.get_text(auditor.get("ledger_auditrow_changelist"))
    assert "Call approved call 0" in text
    assert "Call approved with changes call 1" in text


@pytest.mark.parametrize(
    ("action", "details", "answer"),
    [
        ("call_approved", {"for_session": False}, "Approved once"),
        ("call_approved", {"arguments_changed": True}, "Approved once, with changed arguments"),
        ("call_approved", {"for_session": True}, "Approved for the session"),
        ("call_denied", {"message": "Not today"}, "Denied Message to model Not today"),
        ("approval_request_expired", {}, "Expired without an answer"),
        (
            "approval_request_canceled",
            {"replaced_by": str(UUID(int=7))},
            "Canceled, because the definition changed New approval",
        ),
    ],
)
def test_the_panel_says_what_was_answered_and_links_to_the_call(
    acme: Organization,
    auditor: admin_client.AdminClient,
    action: str,
    details: dict[str, Any],
    answer: str,
) -> None:
    call = create_call(acme)
    session, approval = factories.create_waiting_session(factories.create_agent(acme))
    Approval.objects.filter(pk=approval.pk).update(call_id=call.pk)
    entry = record_finished_change(
        organization_id=acme.pk,
        actor=Actor("user", "1", "anna"),
        action=action,
        resource_type="approval",
        resource_id=str(approval.pk),
        details=details,
        event=ChangeEvent("approval"),
    )
    panel = auditor.get("ledger_auditrow_changelist", entry=str(entry)).partition("<aside")[2]
    assert f"Answer {answer}" in admin_client.get_text(panel)
    assert "Recorded data" not in panel
    for screen, pk in (
        ("ledger_auditrow_change", call.pk),
        ("agents_approval_change", approval.pk),
        ("agents_session_change", session.pk),
        ("agents_agent_change", session.agent_id),
    ):
        assert admin_client.build_url(screen, pk) in panel


def test_a_row_names_the_setting_of_an_agents_tool_that_decided_the_call(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    agent = factories.create_agent(acme)
    rule = {"rule": "policy:all:ask mcp:pay", "decision": "ask"}
    of_agent, direct = create_call(acme, agent_id=agent.pk, **rule), create_call(acme, **rule)
    for row, words, owner in (
        (of_agent, "The tool pay is set to Ask for this agent.", "Agent tools"),
        (
            direct,
            "A rule of the organization requires approval for the tool pay",
            "Organization policy",
        ),
    ):
        page = auditor.get("ledger_auditrow_changelist", entry=str(row.pk))
        assert words in admin_client.get_text(page.partition("<aside")[2])
        cells = page.partition(f'data-entry="{row.pk}"')[2].partition("</tr>")[0]
        assert owner in admin_client.get_text(cells)


def test_a_denied_call_shows_the_rule_that_asked_and_who_denied_it(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    call = create_call(acme, decision="deny", outcome="refused", code="approval_denied")
    answer = {"state": "denied", "decided_by": "Jonas", "decided_at": timezone.now()}
    approval = factories.create_approval(factories.create_agent(acme), **answer)
    Approval.objects.filter(pk=approval.pk).update(call_id=call.pk)
    assert "Jonas" in auditor.get("ledger_auditrow_changelist")
    panel = auditor.get("ledger_auditrow_changelist", entry=str(call.pk))
    assert "Denied by Jonas" in admin_client.get_text(panel)
    section = panel.partition('<ul class="bb-rules">')[2].partition("</ul>")[0]
    text = admin_client.get_text(section)
    assert text.index("Ask") < text.index("Denied Jonas View approval")
