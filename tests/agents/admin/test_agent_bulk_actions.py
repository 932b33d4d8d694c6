"""Bulk actions on the list of agents: what they confirm, change, and restore."""

import pytest

from agents.admin import agent_bulk_actions
from agents.models import Agent, Session
from agents.sessions.services import start_session
from bonobot.accounts.models import Deletion, Organization
from bonobot.accounts.roles import Role
from mcp_servers.models import Server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def operator(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


@pytest.fixture
def agents(acme: Organization) -> list[Agent]:
    return [factories.create_agent(acme, name) for name in ("Anna", "Bert", "Carl")]


def run_action(
    browser: admin_client.AdminClient, action: str, agents: list[Agent], **fields: str
) -> str:
    selected = [str(agent.pk) for agent in agents]
    page = browser.post(
        "agents_agent_changelist", action=action, _selected_action=selected, **fields
    )
    return admin_client.get_text(page)


def test_selected_agents_are_disabled_after_confirmation_and_enabled(
    acme: Organization, operator: admin_client.AdminClient, agents: list[Agent]
) -> None:
    start_session(factories.build_administrator(acme), agents[0], "hello")
    text = run_action(operator, "disable_chosen", agents[:2])
    assert "1 unfinished session is canceled." in text
    assert "2 agents" in text
    assert Agent.objects.filter(enabled=True).count() == 3
    assert "2 agents disabled." in run_action(operator, "disable_chosen", agents[:2], confirmed="1")
    assert [agent.name for agent in Agent.objects.filter(enabled=True)] == ["Carl"]
    assert Session.objects.get().status == "cancelled"
    assert "2 agents enabled." in run_action(operator, "enable_chosen", agents[:2])
    assert Agent.objects.filter(enabled=True).count() == 3


def test_selected_agents_are_deleted_after_confirmation_and_restored_at_once(
    acme: Organization, operator: admin_client.AdminClient, agents: list[Agent]
) -> None:
    server = admin_client.create_web_server(acme)
    Server.objects.filter(pk=server.pk).update(scope_id=agents[0].pk)
    text = run_action(operator, "remove_chosen", agents[:2])
    assert "You can undo this for ten minutes." in text
    assert "1 private server web" in text
    assert Agent.objects.count() == 3
    text = run_action(operator, "remove_chosen", agents[:2], confirmed="1")
    assert "2 agents were deleted. Undo" in text
    assert [agent.name for agent in Agent.objects.all()] == ["Carl"]
    deletions = [str(row.pk) for row in Deletion.objects.all()]
    operator.post(
        "tenancy_deletion_changelist", action="restore_chosen", _selected_action=deletions
    )
    assert Agent.objects.count() == 3
    assert Server.objects.get().scope_id == agents[0].pk


def test_too_many_agents_for_one_request_are_refused(
    operator: admin_client.AdminClient,
    agents: list[Agent],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_bulk_actions, "MAX_AGENTS", 2)
    for action in ("enable_chosen", "disable_chosen", "remove_chosen"):
        text = run_action(operator, action, agents, confirmed="1")
        assert "Select up to 2 agents." in text
    assert Agent.objects.filter(enabled=True).count() == 3


def test_a_member_cant_change_several_agents(acme: Organization, agents: list[Agent]) -> None:
    member = admin_client.sign_in(acme, Role.MEMBER)
    member.post(
        "agents_agent_changelist",
        status=403,
        action="disable_chosen",
        _selected_action=[str(agent.pk) for agent in agents],
        confirmed="1",
    )
    assert Agent.objects.filter(enabled=True).count() == 3
