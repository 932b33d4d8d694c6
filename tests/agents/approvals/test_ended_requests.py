"""Calls that end while they wait for approval are recorded once: canceled, denied, or expired."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.utils import timezone

from agents import services
from agents.approvals.services import expire_overdue, resolve_approval, withdraw_approval
from agents.calls.pipeline import ApprovalRequired, CallRefused
from agents.models import Agent, Approval, Session
from agents.policies.services import PolicySpec, set_policy
from agents.sessions import services as sessions
from bonobot.accounts.deletions import restore_deletion
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.actor_names import get_actor_name
from bonobot.ledger.models import AuditRow
from bonobot.ledger.usage import build_rollups
from bonobot.ledger.usage.build_rollups import count_organization, find_first_uncounted
from bonobot.ledger.usage.query_rollups import ReportSpan, open_reader
from bonobot.ledger.usage.report import UsageQuery, load_usage_report
from mcp_servers.models import Server
from tests import admin_client, factories
from tests.ledger_chain import verify_whole_chain

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = "mcp_workshop_echo"


@pytest.fixture
def waiting_session(
    acme: Organization, helper: Agent, workshop: Server, run_to_rest: Callable[[Session], str]
) -> Session:
    """A session whose call of `echo` waits for approval."""
    administrator = factories.build_administrator(acme)
    set_policy(administrator, helper, PolicySpec("all", ask=(ECHO,)))
    session = sessions.start_session(administrator, helper, f'/{ECHO} {{"text": "Europe/Madrid"}}')
    assert run_to_rest(session) == Session.Status.WAITING
    return session


def get_canceled_entry() -> AuditRow:
    row: AuditRow = AuditRow.objects.get(event_type="call", outcome="cancelled")
    return row


def read_details(row: AuditRow) -> dict[str, Any]:
    details: dict[str, Any] = json.loads(row.opened)["details"]
    return details


def test_a_call_whose_session_is_stopped_is_listed_once_as_canceled_with_who_and_why(
    acme: Organization, waiting_session: Session, run_to_rest: Callable[[Session], str]
) -> None:
    requests = list(AuditRow.objects.values_list("pk", "opened", "closed", "outcome", "code"))
    assert sessions.cancel_session(factories.build_administrator(acme), waiting_session)
    assert run_to_rest(waiting_session) == Session.Status.CANCELLED
    call = get_canceled_entry()
    assert (call.tool_name, call.agent_id, call.session_id, call.code, call.decision) == (
        "echo",
        waiting_session.agent_id,
        waiting_session.pk,
        "approval_cancelled",
        "ask",
    )
    assert read_details(call)["reason"] == "The session was canceled."
    stored = AuditRow.objects.filter(pk__in=[pk for pk, *_ in requests])
    assert set(stored.values_list("pk", "opened", "closed", "outcome", "code")) == set(requests)
    verify_whole_chain(acme.pk)

    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    approval = Approval.objects.get()
    queries: list[dict[str, Any]] = [
        {"q": "Europe/Madrid"},
        {"q": str(approval.pk)},
        {"outcome__in": "cancelled"},
    ]
    for query in queries:
        page = auditor.get("ledger_auditrow_changelist", kind="call", **query)
        assert page.count("data-entry=") == 1
        assert str(call.pk) in page
    assert "Canceled" in admin_client.get_text(page)
    assert "1 call " in admin_client.get_text(page)
    panel = auditor.get("ledger_auditrow_changelist", entry=str(call.pk))
    text = admin_client.get_text(panel)
    assert f"Canceled by {get_actor_name('cli', '', read_details(call)['canceled_by'])}" in text
    assert "Reason The session was canceled." in text


def test_a_canceled_call_counts_once_in_usage_and_doesnt_block_pruning(
    acme: Organization, waiting_session: Session, run_to_rest: Callable[[Session], str]
) -> None:
    sessions.cancel_session(factories.build_administrator(acme), waiting_session)
    run_to_rest(waiting_session)
    count_organization(acme.pk)
    opened_at = get_canceled_entry().opened_at
    span = ReportSpan(opened_at.replace(minute=0, second=0, microsecond=0), None, "hour")
    assert open_reader(acme.pk, span).load_total(event_type="call").calls == 1
    first_uncounted = find_first_uncounted(acme.pk)
    assert first_uncounted is None or first_uncounted > get_canceled_entry().seq


def test_a_call_whose_agent_is_deleted_is_canceled_and_stays_so_after_undo(
    acme: Organization, helper: Agent, waiting_session: Session
) -> None:
    browser = admin_client.sign_in(acme, Role.OPERATOR)
    page = admin_client.get_text(browser.get("agents_agent_delete", helper.pk))
    assert (
        "1 pending approval is canceled. 1 unfinished session is canceled. "
        "If you undo the deletion, they stay canceled."
    ) in page
    administrator = factories.build_administrator(acme)
    deletion = services.delete_agent(administrator, helper)
    call = get_canceled_entry()
    assert read_details(call)["reason"] == "The agent was deleted."
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    page = auditor.get("ledger_auditrow_changelist", q="Europe/Madrid", kind="call")
    assert page.count("data-entry=") == 1
    assert str(call.pk) in page
    assert deletion is not None
    restore_deletion(administrator, deletion)
    assert Approval.objects.get().state == Approval.State.WITHDRAWN
    assert get_canceled_entry() == call


def test_a_call_whose_request_a_client_cancels_is_recorded(
    acme: Organization, helper: Agent, workshop: Server, call: Callable[..., Any]
) -> None:
    administrator = factories.build_administrator(acme)
    set_policy(administrator, helper, PolicySpec("all", ask=(ECHO,)))
    with pytest.raises(ApprovalRequired):
        call(ECHO, {"text": "hello"})
    assert withdraw_approval(administrator, Approval.objects.get())
    assert not withdraw_approval(administrator, Approval.objects.get())
    assert read_details(get_canceled_entry())["arguments"] == {"text": "hello"}


@pytest.fixture
def request_approval(
    acme: Organization, helper: Agent, workshop: Server, call: Callable[..., Any]
) -> Callable[[], Approval]:
    """Calls `echo` without a session; returns the pending approval."""
    set_policy(factories.build_administrator(acme), helper, PolicySpec("all", ask=(ECHO,)))

    def request() -> Approval:
        with pytest.raises(ApprovalRequired) as caught:
            call(ECHO, {"text": "hello"})
        return Approval.objects.get(pk=caught.value.approval_id)

    return request


def list_calls(browser: admin_client.AdminClient, **query: str) -> list[tuple[str, str]]:
    """Return the IDs and outcomes of the calls that the audit log lists, oldest first."""
    page = browser.get("ledger_auditrow_changelist", kind="call", **query)
    rows = re.findall(r'<tr data-entry="([^"]+)".*?bb-state-word">([^<]+)<', page, re.DOTALL)
    return rows[::-1]


def get_listed_entry(browser: admin_client.AdminClient, outcome: str) -> AuditRow:
    """Return the entry of the only listed call, which has this outcome."""
    [(pk, shown_outcome)] = list_calls(browser)
    assert shown_outcome == outcome
    row: AuditRow = AuditRow.objects.get(pk=pk)
    return row


def count_calls(organization: Organization) -> dict[str, int]:
    """Return the calls as the dashboard counts them."""
    build_rollups.count_organization(organization.pk)
    principal = factories.build_administrator(organization)
    total = load_usage_report(principal, UsageQuery(by="tool")).total
    return {"calls": total.calls, "denied": total.refused, "pending": total.pending}


def test_a_denied_call_over_mcp_is_listed_as_denied_without_a_retry(
    acme: Organization, request_approval: Callable[[], Approval]
) -> None:
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    approval = request_approval()
    assert get_listed_entry(auditor, "Pending approval").pk == approval.request_entry_id
    assert count_calls(acme) == {"calls": 1, "denied": 0, "pending": 1}
    resolve_approval(factories.build_administrator(acme), approval, "deny", "Not today")
    entry = get_listed_entry(auditor, "Denied")
    assert (entry.pk, entry.code) == (approval.call_id, "approval_denied")
    assert read_details(entry)["arguments"] == {"text": "hello"}
    assert list_calls(auditor, outcome__in="refused") == [(str(entry.pk), "Denied")]
    assert list_calls(auditor, decided_by="acme") == []
    assert count_calls(acme) == {"calls": 1, "denied": 1, "pending": 0}
    panel = admin_client.get_text(auditor.get("ledger_auditrow_changelist", entry=str(entry.pk)))
    assert "Denied" in panel
    assert "View approval" in panel
    verify_whole_chain(acme.pk)


def test_the_retry_of_a_denied_call_isnt_recorded_again_but_further_calls_are(
    acme: Organization, request_approval: Callable[[], Approval], call: Callable[..., Any]
) -> None:
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    approval = request_approval()
    resolve_approval(factories.build_administrator(acme), approval, "deny")
    for expected in (1, 2):
        with pytest.raises(CallRefused, match="denied this call") as caught:
            call(ECHO, {"text": "hello"})
        assert caught.value.code == "approval_denied"
        assert [outcome for _pk, outcome in list_calls(auditor)] == ["Denied"] * expected
        assert count_calls(acme) == {"calls": expected, "denied": expected, "pending": 0}


def test_an_approved_call_over_mcp_is_listed_until_and_when_the_client_retries_it(
    acme: Organization, request_approval: Callable[[], Approval], call: Callable[..., Any]
) -> None:
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    approval = request_approval()
    resolve_approval(factories.build_administrator(acme), approval, "approve")
    assert get_listed_entry(auditor, "Approved, not run yet").pk == approval.request_entry_id
    assert len(list_calls(auditor, outcome__in="pending")) == 1
    assert count_calls(acme) == {"calls": 1, "denied": 0, "pending": 1}
    page = admin_client.get_text(auditor.get("agents_approval_change", approval.pk))
    assert "It runs when the client retries it" in page
    call(ECHO, {"text": "hello"})
    assert get_listed_entry(auditor, "Succeeded").outcome == "ok"
    assert count_calls(acme) == {"calls": 1, "denied": 0, "pending": 0}
    page = admin_client.get_text(auditor.get("agents_approval_change", approval.pk))
    assert "It runs when the client retries it" not in page


@pytest.mark.parametrize("is_approved", [True, False])
def test_a_call_over_mcp_whose_approval_expires_is_denied_and_can_request_another(
    acme: Organization, request_approval: Callable[[], Approval], *, is_approved: bool
) -> None:
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    approval = request_approval()
    if is_approved:
        resolve_approval(factories.build_administrator(acme), approval, "approve")
    an_hour_ago = timezone.now() - timedelta(hours=1)
    Approval.objects.filter(pk=approval.pk).update(expires_at=an_hour_ago)
    for _ in range(2):
        expire_overdue()
        entry = get_listed_entry(auditor, "Denied")
        assert (entry.pk, entry.code) == (approval.call_id, "approval_expired")
        assert count_calls(acme) == {"calls": 1, "denied": 1, "pending": 0}
    page = admin_client.get_text(auditor.get("agents_approval_change", approval.pk))
    assert ("the client didn't retry it before the approval expired" in page) == is_approved
    assert request_approval().pk != approval.pk
    assert [outcome for _pk, outcome in list_calls(auditor)] == ["Denied", "Pending approval"]


def test_a_request_that_replaces_an_overdue_one_records_that_as_expired(
    acme: Organization, request_approval: Callable[[], Approval]
) -> None:
    overdue = request_approval()
    Approval.objects.filter(pk=overdue.pk).update(expires_at=timezone.now() - timedelta(hours=1))
    assert request_approval().pk != overdue.pk
    assert AuditRow.objects.get(pk=overdue.call_id).code == "approval_expired"


def test_a_client_that_repeats_its_pending_call_is_listed_once(
    acme: Organization, request_approval: Callable[[], Approval]
) -> None:
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    first, second = request_approval(), request_approval()
    assert first.pk == second.pk
    assert get_listed_entry(auditor, "Pending approval").pk == first.request_entry_id


def test_the_upgrade_finds_the_entries_of_approvals_that_can_be_used(
    request_approval: Callable[[], Approval],
) -> None:
    approval = request_approval()
    Approval.objects.update(request_entry_id=None)
    migration = import_module("agents.migrations.0016_approval_request_entry")
    migration.set_request_entries(apps, None)
    assert Approval.objects.get().request_entry_id == approval.request_entry_id is not None
