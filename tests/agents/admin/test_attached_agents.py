"""The agents of a server on its overview."""

import pytest
from pytest_django import DjangoAssertNumQueries

from agents.admin import attached_agents
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.models import Server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def seat(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OWNER)


@pytest.fixture
def server(acme: Organization) -> Server:
    server = admin_client.create_web_server(acme)
    for name in ("add", "remove", "list"):
        row = admin_client.declare_tool(server, name)
        row.pinned_digest = row.digest
        row.save()
    admin_client.declare_tool(server, "pending")
    return server


def attach_agent(acme: Organization, server: Server, name: str, policy: PolicySpec) -> None:
    administrator = factories.build_administrator(acme)
    agent = factories.create_agent(acme, name.lower())
    factories.attach_server(administrator, agent, server)
    set_policy(administrator, agent, policy)


def test_each_agent_has_the_number_of_tools_that_it_can_call(
    acme: Organization, seat: admin_client.AdminClient, server: Server
) -> None:
    attach_agent(acme, server, "All", PolicySpec("all"))
    attach_agent(
        acme, server, "Few", PolicySpec("allowlist", allow=("mcp_web_add",), ask=("mcp_web_list",))
    )
    attach_agent(acme, server, "None", PolicySpec("none"))
    text = admin_client.get_text(seat.get("mcp_servers_server_change", server.pk))
    for name, count in (("All", 3), ("Few", 2), ("None", 0)):
        assert f"{name} can call {count} of 4 tools" in text


def test_the_number_of_queries_doesnt_depend_on_the_number_of_agents(
    acme: Organization,
    seat: admin_client.AdminClient,
    server: Server,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    attach_agent(acme, server, "first", PolicySpec("allowlist", allow=("mcp_web_add",)))
    seat.get("mcp_servers_server_change", server.pk)
    with django_assert_max_num_queries(100) as captured:
        seat.get("mcp_servers_server_change", server.pk)
        query_count = len(captured)
    for number in range(5):
        attach_agent(
            acme, server, f"agent{number}", PolicySpec("allowlist", allow=("mcp_web_add",))
        )
    seat.get("mcp_servers_server_change", server.pk)
    with django_assert_max_num_queries(query_count):
        seat.get("mcp_servers_server_change", server.pk)


def test_agents_beyond_the_decisions_of_a_page_have_no_number(
    acme: Organization,
    seat: admin_client.AdminClient,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attached_agents, "MAX_DECISIONS", 5)
    for name in ("first", "second"):
        attach_agent(acme, server, name, PolicySpec("all"))
    text = admin_client.get_text(seat.get("mcp_servers_server_change", server.pk))
    assert text.count("can call 3 of 4 tools") == 1
