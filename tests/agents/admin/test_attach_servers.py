"""An agent's servers: disabled, detached, and private."""

import json
from uuid import UUID

import pytest

from agents.models import Agent, AgentServer
from agents.services import attach_server
from bonobot.accounts.models import Deletion, Organization
from bonobot.accounts.roles import Role
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def server(acme: Organization) -> Server:
    server = admin_client.create_web_server(acme)
    for name in ("add", "echo", "a*b"):
        admin_client.declare_tool(server, name)
    approve_definitions(factories.build_administrator(acme), server)
    return server


@pytest.fixture
def agent_server(acme: Organization, helper: Agent, server: Server) -> AgentServer:
    return attach_server(factories.build_administrator(acme), helper, server)


@pytest.fixture
def operator(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


def test_a_server_is_disabled_for_one_agent(
    agent_server: AgentServer, operator: admin_client.AdminClient
) -> None:
    AgentServer.objects.update(allowed_tools=["add"])
    fields = {"server": str(agent_server.server_id), "enabled": "0"}
    page = operator.post("agents_agent_toggle_server", agent_server.agent_id, **fields)
    agent_server.refresh_from_db()
    assert (agent_server.enabled, agent_server.allowed_tools) == (False, ["add"])
    assert agent_server.server.enabled
    assert "Disabled for this agent" in page


def test_a_server_is_detached_and_stays_in_the_pool(
    agent_server: AgentServer, operator: admin_client.AdminClient
) -> None:
    operator.post(
        "agents_agent_detach_server", agent_server.agent_id, server=str(agent_server.server_id)
    )
    assert not AgentServer.objects.exists()
    assert Server.objects.count() == 1


def detach_and_undo(
    operator: admin_client.AdminClient, agent_id: UUID, server_id: UUID, *, deleted: bool = False
) -> str:
    """Detach a server, press *Undo* in the message about it, and return the page after that.

    `deleted` deletes the server before.
    """
    page = operator.post("agents_agent_detach_server", agent_id, server=str(server_id))
    deletion = Deletion.objects.get()
    assert admin_client.build_url("tenancy_deletion_restore", deletion.pk) in page
    if deleted:
        Server.objects.all().delete()
    page = operator.post("tenancy_deletion_restore", deletion.pk)
    return admin_client.get_text(page) + " ".join(operator.messages)


def test_detaching_a_server_can_be_undone_with_its_settings(
    agent_server: AgentServer, operator: admin_client.AdminClient
) -> None:
    AgentServer.objects.update(denied_tools=["add"], enabled=False)
    agent_id, server_id = agent_server.agent_id, agent_server.server_id
    assert "was restored" in detach_and_undo(operator, agent_id, server_id)
    restored = AgentServer.objects.get()
    assert (restored.pk, restored.denied_tools, restored.enabled) == (
        agent_server.pk,
        ["add"],
        False,
    )


def test_a_server_that_was_deleted_meanwhile_isnt_attached_again(
    agent_server: AgentServer, operator: admin_client.AdminClient
) -> None:
    agent_id, server_id = agent_server.agent_id, agent_server.server_id
    page = detach_and_undo(operator, agent_id, server_id, deleted=True)
    assert "Something that the object needs was deleted, too." in page
    assert Deletion.objects.exists()


def test_a_pasted_private_server_is_deleted_when_detached(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    text = json.dumps({"own": {"url": "https://93.184.215.14/mcp"}})
    operator.post("agents_agent_paste", helper.pk, text=text, do="add", seen="1", add=["own"])
    private = Server.objects.get()
    assert private.scope_id == helper.pk
    assert helper.agent_servers.get().server == private
    assert "private" in admin_client.get_text(operator.get("agents_agent_servers", helper.pk))
    detach_and_undo(operator, helper.pk, private.pk)
    assert helper.agent_servers.get().server == private


def test_a_private_server_can_have_the_name_of_a_pool_server(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    factories.create_http_server(acme, "http://127.0.0.1:9/mcp", "own")
    text = json.dumps({"own": {"url": "https://93.184.215.14/mcp"}})
    operator.post("agents_agent_paste", helper.pk, text=text, do="add", seen="1", add=["own"])
    assert helper.agent_servers.get().server.private_to_agent


def test_a_private_server_is_added_by_form(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    operator.post(
        "agents_agent_form",
        helper.pk,
        name="own",
        transport_type="http",
        url="https://mcp.example.com/mcp",
        auth_type="none",
        approval="manual",
        enabled="on",
    )
    assert helper.agent_servers.get().server.private_to_agent


def test_a_reviewer_sees_the_servers_and_cant_change_them(
    acme: Organization, agent_server: AgentServer
) -> None:
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    assert "Detach" not in reviewer.get("agents_agent_servers", agent_server.agent_id)
    reviewer.post(
        "agents_agent_detach_server",
        agent_server.agent_id,
        server=str(agent_server.server_id),
        status=403,
    )
    assert AgentServer.objects.exists()


def test_the_server_page_lists_its_agents(
    agent_server: AgentServer, operator: admin_client.AdminClient
) -> None:
    page = admin_client.get_text(operator.get("mcp_servers_server_change", agent_server.server_id))
    assert "Agents Helper" in page
