"""Snippets as people and programs find them: in the admin, over REST, on the command line."""

import json

import pytest

from bonobot.accounts.models import Organization, Token
from bonobot.accounts.roles import Role
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.mark.parametrize("let_in", [True, False])
def test_snippets_of_an_agent_are_listed_for_roles_that_can_view_it(acme, settings, let_in):
    settings.BONOBOT_OAUTH = let_in
    agent, other = factories.create_agent(acme), factories.create_agent(acme, "other")
    member = rest.as_role(acme, Role.MEMBER, agent)
    found = member.get(f"agents/{agent.slug}/snippets")
    assert found.json["url"] == f"{settings.BONOBOT_URL}/mcp/agents/{agent.slug}"
    cursor = next(one for one in found.json["snippets"] if one["client"] == "cursor")
    entry = json.loads(cursor["text"])["mcpServers"][f"bonobot-{agent.slug}"]
    header = {"headers": {"Authorization": "Bearer YOUR_TOKEN"}}
    assert entry == {"url": found.json["url"]} | ({} if let_in else header)
    assert member.get(f"agents/{other.slug}/snippets").status == 404


def test_a_pool_server_has_snippets_and_a_private_one_those_of_its_agent(acme):
    pooled = admin_client.web_server(acme)
    auditor = rest.as_role(acme, Role.AUDITOR)
    found = auditor.get(f"mcp-servers/{pooled.pk}/snippets")
    assert found.json["url"].endswith(f"/mcp/servers/{pooled.slug}")
    agent = factories.create_agent(acme)
    type(pooled).objects.filter(pk=pooled.pk).update(scope_id=agent.pk)
    refused = auditor.get(f"mcp-servers/{pooled.pk}/snippets")
    assert (refused.status, refused.code) == (404, "private_server")


def test_the_admin_shows_them_on_an_agent_and_on_a_server(acme):
    agent, server = factories.create_agent(acme), admin_client.web_server(acme)
    seat = admin_client.sit(acme, Role.OPERATOR)
    page = seat.get("agents_agent_programs", agent.pk)
    assert f"/mcp/agents/{agent.slug}" in page
    assert 'data-copies="snippet-codex"' in page
    assert f"/mcp/servers/{server.slug}" in seat.get("mcp_servers_server_programs", server.pk)


def test_a_new_token_is_shown_in_its_snippets_only_once(acme):
    agent = factories.create_agent(acme)
    seat = admin_client.sit(acme, Role.OWNER)
    said = {"name": "ide", "role": "member", "agents": str(agent.pk), "lasting": ""}
    page = seat.post("tenancy_token_add", **said)
    token = Token.objects.get()
    assert page.count(f"bnb_{token.key}_") > 10
    assert f"/mcp/agents/{agent.slug}" in page
    assert f"bnb_{token.key}_" not in seat.get("tenancy_token_change", token.pk)
    assert "YOUR_TOKEN" in seat.get("agents_agent_programs", agent.pk)
