"""Calls that are canceled while they wait for approval are recorded once, as canceled."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from agents import services
from agents.approvals.services import withdraw_approval
from agents.calls.pipeline import ApprovalRequired
from agents.models import Agent, Approval, Session
from agents.policies.services import PolicySpec, set_policy
from agents.sessions import services as sessions
from bonobot.accounts.deletions import restore_deletion
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.actor_names import get_actor_name
from bonobot.ledger.models import AuditRow
from bonobot.ledger.usage.build_rollups import count_organization, find_first_uncounted
from bonobot.ledger.usage.query_rollups import ReportSpan, open_reader
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
