"""Configuration snippets in the admin and over REST."""

import json

import pytest

from bonobot.accounts.models import Organization, Token
from bonobot.accounts.roles import Role
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.mark.parametrize("oauth", [True, False])
def test_snippets_of_an_agent_are_listed_for_roles_that_can_view_it(acme, settings, oauth):
    settings.BONOBOT_OAUTH = oauth
    agent, other_agent = factories.create_agent(acme), factories.create_agent(acme, "other")
    member = rest.as_role(acme, Role.MEMBER, agent)
    reply = member.get(f"agents/{agent.slug}/snippets")
    assert reply.json["url"] == f"{settings.BONOBOT_URL}/mcp/agents/{agent.slug}"
    cursor = next(snippet for snippet in reply.json["snippets"] if snippet["client"] == "cursor")
    entry = json.loads(cursor["text"])["mcpServers"][f"bonobot-{agent.slug}"]
    header = {"headers": {"Authorization": "Bearer YOUR_TOKEN"}}
    assert entry == {"url": reply.json["url"]} | ({} if oauth else header)
    assert member.get(f"agents/{other_agent.slug}/snippets").status == 404


def test_a_pool_server_has_snippets_and_a_private_one_those_of_its_agent(acme):
    server = admin_client.create_web_server(acme)
    auditor = rest.as_role(acme, Role.AUDITOR)
    reply = auditor.get(f"mcp-servers/{server.pk}/snippets")
    assert reply.json["url"].endswith(f"/mcp/servers/{server.slug}")
    agent = factories.create_agent(acme)
    type(server).objects.filter(pk=server.pk).update(scope_id=agent.pk)
    rejected = auditor.get(f"mcp-servers/{server.pk}/snippets")
    assert (rejected.status, rejected.code) == (404, "private_server")


def test_the_admin_shows_snippets_of_agents_and_servers(acme):
    agent, server = factories.create_agent(acme), admin_client.create_web_server(acme)
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    page = operator.get("agents_agent_clients", agent.pk)
    assert f"/mcp/agents/{agent.slug}" in page
    assert 'data-copies="snippet-codex"' in page
    assert f"/mcp/servers/{server.slug}" in operator.get("mcp_servers_server_clients", server.pk)


def test_the_first_step_of_a_client_is_its_token_unless_it_signs_in(acme, settings):
    agent = factories.create_agent(acme)
    owner = admin_client.sign_in(acme, Role.OWNER)
    create_url = admin_client.build_url("tenancy_token_add")
    for signs_in in (True, False):
        settings.BONOBOT_OAUTH = signs_in
        page = owner.get("agents_agent_clients", agent.pk)
        assert ("Sign in with a browser" in page) is signs_in
        links = admin_client.find_links(page, f"{create_url}?scopes=mcp:tools&agents={agent.pk}")
        assert bool(links) is not signs_in


def test_a_new_token_is_shown_in_its_snippets_only_once(acme):
    agent = factories.create_agent(acme)
    owner = admin_client.sign_in(acme, Role.OWNER)
    fields = {"name": "ide", "role": "member", "agents": str(agent.pk), "lifetime": ""}
    page = owner.post("tenancy_token_add", **fields)
    token = Token.objects.get()
    assert page.count(f"bnb_{token.key}_") > 10
    assert f"/mcp/agents/{agent.slug}" in page
    assert f"bnb_{token.key}_" not in owner.get("tenancy_token_change", token.pk)
    assert "YOUR_TOKEN" in owner.get("agents_agent_clients", agent.pk)
