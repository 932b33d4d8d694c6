"""Tokens over REST: scopes, agents, networks and updates."""

import pytest

from agents.models import Agent
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from tests import factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def owner(acme: Organization) -> RestClient:
    return rest.as_role(acme, Role.OWNER)


@pytest.fixture
def agents(acme: Organization) -> list[Agent]:
    return [factories.create_agent(acme, name) for name in ("one", "two", "three")]


def test_a_token_for_several_agents_reaches_only_these(owner, agents):
    body = {"name": "ide", "role": "member", "agents": ["one", str(agents[1].pk)]}
    response = owner.post("tokens", body)
    assert set(response.json["agents"]) == {str(agent.pk) for agent in agents[:2]}
    assert response.json["agent_id"] is None
    client = RestClient(response.json["token"])
    statuses = {client.get(f"agents/{agent.slug}").status for agent in agents[:2]}
    assert (statuses, client.get("agents/three").status) == ({200}, 404)
    assert {agent["slug"] for agent in client.get("agents").json["results"]} == {"one", "two"}


def test_the_token_of_a_deleted_agent_gains_no_access(owner, agents):
    response = owner.post("tokens", {"name": "ide", "role": "operator", "agents": ["one"]})
    agent_id = str(agents[0].pk)
    agents[0].delete()
    client = RestClient(response.json["token"])
    assert client.get("agents").json["results"] == []
    assert client.get("agents/two").status == 404
    assert owner.get(f"tokens/{response.json['id']}").json["agents"] == [agent_id]


def test_rest_needs_the_scope_api(owner, agents):
    body = {"name": "ide", "role": "operator", "scopes": ["mcp:manage", "mcp:tools"]}
    response = owner.post("tokens", body)
    assert response.json["scopes"] == ["mcp:tools", "mcp:manage"]
    forbidden = RestClient(response.json["token"]).get("agents")
    assert (forbidden.status, forbidden.code) == (403, "insufficient_scope")
    assert forbidden.json["scopes"] == ["api"]
    address = f"tokens/{response.json['id']}"
    assert owner.patch(address, {"scopes": ["api"]}).json["scopes"] == ["api"]
    assert RestClient(response.json["token"]).get("agents").status == 200


def test_a_patch_changes_only_its_fields_and_keeps_the_secret(owner, agents):
    response = owner.post("tokens", {"name": "ide", "role": "operator", "client": "claude-code"})
    address = f"tokens/{response.json['id']}"
    data = {"networks": ["127.0.0.1"], "calls_per_minute": 5, "agents": ["one"]}
    changed = owner.patch(address, data)
    expected = {
        "networks": ["127.0.0.1/32"],
        "calls_per_minute": 5,
        "agents": [str(agents[0].pk)],
        "agent_id": str(agents[0].pk),
        "client": "claude-code",
        "name": "ide",
    }
    assert changed.json.items() >= expected.items()
    assert "token" not in changed.json
    assert RestClient(response.json["token"]).get("agents/one").status == 200
    widened = owner.patch(address, {"agents": [], "calls_per_minute": None})
    assert (widened.json["agents"], widened.json["calls_per_minute"]) == ([], None)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"role": "owner"}, 400, "role"),
        ({"agent": "one"}, 400, "agent"),
        ({"agents": ["nobody"]}, 404, "agents"),
        ({"scopes": ["all"]}, 400, "scopes"),
        ({"networks": ["10.0.0.1/8"]}, 400, "networks"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, 400, "expires_at"),
        ({"name": ""}, 400, "name"),
    ],
)
def test_an_invalid_update_is_refused(acme, owner, body, status, field):
    token, _ = create_token(factories.build_administrator(acme), name="ci", role=Role.MEMBER)
    response = owner.patch(f"tokens/{token.pk}", body)
    assert response.status == status, response
    assert response.json["field"].partition("[")[0].partition(".")[0] == field
    stored = Token.objects.get(pk=token.pk)
    assert (stored.name, stored.scopes, stored.networks) == ("ci", [], [])


def test_an_agent_is_specified_by_one_field_only(owner, agents):
    body = {"name": "ide", "role": "member", "agent": "one", "agents": ["two"]}
    assert owner.post("tokens", body).status == 400
