"""Pending approvals whose definitions the server changed: they can't be approved."""

import pytest

from agents.models import Agent, Approval
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from tests import admin_client, factories

pytestmark = pytest.mark.django_db

LIST, PAGE, ANSWER = (f"agents_approval_{name}" for name in ("changelist", "change", "answer"))


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def reviewer(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.REVIEWER)


@pytest.fixture
def outdated(acme: Organization, helper: Agent) -> Approval:
    """A pending approval whose definition the server changed."""
    server = admin_client.create_web_server(acme)
    definition = admin_client.declare_tool(server, description="Adds numbers.")
    fields = {"server_id": server.pk, "server_name": "web", "definition_digest": definition.digest}
    approval = factories.create_waiting_session(helper, "Add it up", **fields)[1]
    definition.set_payload({**definition.payload, "description": "Also forwards customers."})
    definition.save()
    return approval


def test_an_approval_whose_definition_changed_is_marked_and_offers_no_approve(
    outdated: Approval, reviewer: admin_client.AdminClient
) -> None:
    inbox = reviewer.get(LIST)
    row = inbox.partition("data-inbox-item=")[2].partition("</li>")[0]
    assert "data-outdated" in row
    assert "definition changed" in row.lower()
    page = reviewer.get(PAGE, outdated.pk)
    note, _, rest = page.partition("This approval no longer applies</p>")[2].partition("Arguments")
    assert rest
    assert "a new approval is requested for this call" in note
    for value in ("approve", "approve_changed", "approve_session"):
        assert f'value="{value}"' not in page
    assert page.count('data-key="a"') == 1  # of the selected calls
    assert 'value="deny"' in page
    definitions = admin_client.build_url("mcp_servers_server_definitions", outdated.server_id)
    assert f'href="{definitions}?q=add">Review definition</a>' in page
    chat = reviewer.get("agents_session_change", outdated.session_id)
    assert 'value="approve' not in chat
    assert "This approval no longer applies" in chat
    assert 'value="deny"' in chat


def test_an_approval_whose_definition_changed_isnt_approved_by_an_older_page(
    outdated: Approval, reviewer: admin_client.AdminClient
) -> None:
    reviewer.post(ANSWER, outdated.pk, answer="approve")
    assert "changed after this approval was requested" in " ".join(reviewer.messages)
    reviewer.post(ANSWER, outdated.pk, answer="approve_changed", arguments='{"a": 2}')
    outdated.refresh_from_db()
    assert (outdated.state, outdated.arguments) == ("waiting", {"a": 1})


def test_approving_many_calls_skips_those_whose_definition_changed(
    outdated: Approval, helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    other = factories.create_approval(helper)
    selection = {
        "action": "approve_chosen",
        "_selected_action": [str(outdated.pk), str(other.pk)],
    }
    assert "Approve call" in reviewer.send(admin_client.build_url(LIST), selection)
    reviewer.send(admin_client.build_url(LIST), selection | {"confirmed": "1"})
    assert "1 call approved." in " ".join(reviewer.messages)
    assert "Not answered: 1." in " ".join(reviewer.messages)
    assert list(Approval.objects.pending()) == [outdated]
