"""Agents over REST, with their policies and budgets, model endpoints, and tokens."""

import pytest

from agents.models import Agent, AgentServer, ModelEndpoint
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.roles import Role
from bonobot.core.text.masking import MASK
from bonobot.ledger.models import AuditRow, BudgetCell
from mcp_servers.models import Server
from tests import factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db

ENDPOINT_BODY = {
    "name": "Models",
    "base_url": "https://models.example.com/v1",
    "model": "large",
    "api_key": "sk-in-the-clear-0123456789",
}

DENY_ALL = {"mode": "none", "allow": [], "ask": [], "deny": []}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def operator(acme: Organization, helper: Agent) -> RestClient:
    return rest.as_role(acme, Role.OPERATOR)


@pytest.fixture
def owner(acme: Organization, helper: Agent) -> RestClient:
    return rest.as_role(acme, Role.OWNER)


# -- agents --------------------------------------------------------------------------------------


def test_an_agent_is_created_with_a_slug_and_a_policy_that_denies_all(operator):
    created = operator.post("agents", {"name": "Release Helper", "instructions": "Help."})
    assert (created.status, created.json["slug"]) == (201, "release-helper")
    policy = operator.get(f"agents/{created.json['id']}/tool-policy")
    assert policy.json == DENY_ALL | {"version": policy.json["version"], "warnings": []}


def test_an_agent_is_found_by_id_and_by_slug(operator, helper):
    assert operator.get("agents/helper").json == operator.get(f"agents/{helper.pk}").json


def test_a_patch_changes_only_its_fields(operator, helper):
    response = operator.patch(
        "agents/helper", {"max_turns": 7, "tool_search_above": 0, "tools_in_prompt": True}
    )
    assert (response.json["max_turns"], response.json["name"]) == (7, "Helper")
    assert response.json["tool_search_above"] == 0
    assert response.json["tools_in_prompt"] is True


def test_a_deleted_agent_isnt_found_and_stays_in_the_audit_log(operator):
    assert operator.delete("agents/helper").status == 204
    assert operator.get("agents/helper").status == 404
    assert AuditRow.objects.filter(action="agent_deleted", resource_name="Helper").exists()


def test_a_duplicate_slug_is_a_conflict(operator):
    response = operator.post("agents", {"name": "Another", "slug": "helper"})
    assert (response.status, response.code) == (409, "name_taken")


def test_a_model_endpoint_of_another_organization_isnt_found(operator):
    foreign = factories.create_agent(factories.create_organization("other")).model_endpoint
    missing = "0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a11"
    for endpoint in (str(foreign.pk), missing):
        response = operator.post("agents", {"name": "x", "model_endpoint": endpoint})
        assert (response.status, response.json["field"]) == (404, "model_endpoint")


def test_without_a_model_endpoint_the_error_has_a_remedy(acme):
    response = rest.as_role(acme, Role.OWNER).post("agents", {"name": "x"})
    assert response.code == "no_model_endpoint"
    assert "offline" in response.json["remedy"]


def test_a_member_sees_only_their_agents(acme, helper):
    factories.create_agent(acme, "secret")
    person = factories.create_member(acme, Role.MEMBER, "mia")
    helper.members.add(person.id)
    client = RestClient(user=helper.members.get())
    assert [agent["slug"] for agent in client.get("agents").json["results"]] == ["helper"]
    assert client.get("agents/secret").status == 404
    assert client.get("agents/secret/tools").status == 404


def test_the_list_uses_the_same_queries_for_any_number_of_agents(
    acme, operator, django_assert_num_queries
):
    operator.get("agents")
    for number in range(10):
        factories.create_agent(acme, f"agent-{number}")
    with django_assert_num_queries(3):  # the token, the agents, their labels
        assert len(operator.get("agents").json["results"]) == 11


# -- policies and budgets ------------------------------------------------------------------------


def test_a_policy_is_written_in_the_names_that_models_see(acme, operator, helper):
    server = Server.objects.create(
        organization=acme, scope_id=acme.pk, name="GitHub", slug="github", transport_type="http"
    )
    AgentServer.objects.create(organization=acme, agent=helper, server=server)
    body = {"mode": "allowlist", "allow": ["mcp_github_*", "read_result"], "deny": []}
    saved = operator.put("agents/helper/tool-policy", body)
    assert (saved.status, saved.json["mode"]) == (200, "allowlist")
    assert sorted(saved.json["allow"]) == ["mcp_github_*", "read_result"]
    assert operator.get("agents/helper/tool-policy").json == saved.json


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"mode": "sometimes"}, "unknown_mode", "mode"),
        ({"mode": "allowlist", "allow": ["mcp_nowhere_x"]}, "rule_unknown_server", "allow[0]"),
        ({"mode": "denylist", "deny": ["read_result", " "]}, "invalid", "deny[1]"),
        ({"allow": []}, "invalid", "mode"),
        ({"mode": "all", "allow": "x"}, "invalid", "allow"),
    ],
)
def test_an_invalid_policy_changes_nothing(operator, body, code, field):
    before = operator.get("agents/helper/tool-policy").json
    response = operator.put("agents/helper/tool-policy", body)
    assert (response.status, response.code, response.json["field"]) == (400, code, field)
    assert operator.get("agents/helper/tool-policy").json == before


def test_budgets_are_replaced_and_show_the_spent_amount(acme, operator, helper):
    lines = [
        {"unit": "tokens", "period": "total", "limit": 1000},
        {"unit": "calls", "period": "day", "limit": 5},
    ]
    operator.put("agents/helper/budgets", {"budgets": lines})
    key = f"budget:{acme.pk}:agent:{helper.pk}:tokens:total:"
    bucket = get_bucket(helper)
    BudgetCell.objects.create(key=f"{key}{bucket}", organization_id=acme.pk, spent=40, reserved=2)
    budgets = operator.get("agents/helper/budgets").json["budgets"]
    uses = {line["unit"]: (line["limit"], line["spent"], line["reserved"]) for line in budgets}
    assert uses == {"tokens": (1000, 40, 2), "calls": (5, 0, 0)}
    assert operator.put("agents/helper/budgets", {"budgets": []}).json["budgets"] == []


def get_bucket(agent: Agent) -> str:
    """Return the last part of the cell key of a total budget, as calls are charged."""
    from django.utils import timezone

    from agents.budgets.limits import BudgetLimit, build_budget_key

    limit = BudgetLimit("agent", str(agent.pk), "tokens", "total", 1)
    return build_budget_key(agent.organization_id, limit, timezone.now()).rpartition(":")[2]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ({"unit": "apples", "period": "day", "limit": 1}, "budgets[0].unit"),
        ({"unit": "calls", "period": "week", "limit": 1}, "budgets[0].period"),
        ({"unit": "calls", "period": "day", "limit": -1}, "budgets[0].limit"),
        ({"unit": "calls", "period": "day", "limit": 2**60}, "budgets[0].limit"),
        ({"unit": "calls", "period": "day"}, "budgets[0].limit"),
    ],
)
def test_an_invalid_budget_is_refused(operator, line, field):
    response = operator.put("agents/helper/budgets", {"budgets": [line]})
    assert (response.status, response.json["field"]) == (400, field)


def test_duplicate_budgets_are_refused(operator):
    line = {"unit": "calls", "period": "day", "limit": 1}
    response = operator.put("agents/helper/budgets", {"budgets": [line, line]})
    assert (response.status, response.json["field"]) == (400, "budgets[1]")


# -- model endpoints -----------------------------------------------------------------------------


def test_the_key_of_a_model_endpoint_is_never_returned(operator):
    created = operator.post("model-endpoints", ENDPOINT_BODY)
    assert (created.status, created.json["api_key"]) == (201, MASK)
    url = f"model-endpoints/{created.json['id']}"
    for response in (created, operator.get(url), operator.get("model-endpoints")):
        assert "in-the-clear" not in response.text


@pytest.mark.parametrize(
    ("fields", "is_kept"), [({}, True), ({"api_key": MASK}, True), ({"api_key": ""}, False)]
)
def test_a_key_is_kept_unless_another_one_is_sent(operator, fields, is_kept):
    created = operator.post("model-endpoints", ENDPOINT_BODY).json
    fields = {"model": "small", "context_window": 9_000} | fields
    response = operator.patch(f"model-endpoints/{created['id']}", fields)
    assert (created["context_window"], response.json["context_window"]) == (None, 9_000)
    assert (response.json["model"], response.json["api_key"]) == ("small", MASK if is_kept else "")
    key = ModelEndpoint.objects.get(pk=created["id"]).api_key
    assert (key.open() if key else "") == (ENDPOINT_BODY["api_key"] if is_kept else "")


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"base_url": "http://127.0.0.1:11434/v1"}, "private_address", "base_url"),
        ({"base_url": "nonsense"}, "bad_url", "base_url"),
        ({"model": " "}, "invalid", "model"),
        ({"kind": "magic"}, "invalid", "kind"),
        ({"timeout_s": 0}, "invalid", "timeout_s"),
        ({"allow_private": True}, "forbidden", None),
    ],
)
def test_an_invalid_model_endpoint_is_refused(operator, fields, code, field):
    response = operator.post("model-endpoints", ENDPOINT_BODY | fields)
    assert (response.code, response.json.get("field")) == (code, field)
    assert not ModelEndpoint.objects.filter(name="Models").exists()


def test_a_model_endpoint_in_use_cant_be_deleted(operator, helper):
    response = operator.delete(f"model-endpoints/{helper.model_endpoint_id}")
    assert (response.status, response.code) == (409, "in_use")
    assert "Helper" in response.json["detail"]
    created = operator.post("model-endpoints", ENDPOINT_BODY).json
    assert operator.delete(f"model-endpoints/{created['id']}").status == 204


# -- tokens --------------------------------------------------------------------------------------


def test_the_secret_of_a_token_is_returned_once_and_works(owner):
    created = owner.post("tokens", {"name": "pipeline", "role": "auditor"})
    assert created.status == 201
    assert created.headers["Cache-Control"] == "no-store"
    secret = created.json["token"]
    assert RestClient(secret).get("audit").status == 200
    url = f"tokens/{created.json['id']}"
    for response in (owner.get("tokens"), owner.get(url)):
        assert secret.split("_", 2)[2] not in response.text
    assert owner.delete(url).status == 204
    assert owner.get(url).json["revoked_at"]
    assert RestClient(secret).get("audit").code == "bad_token"


def test_a_token_is_limited_to_an_agent_of_the_organization(owner, helper):
    body = {"name": "one", "role": "member", "agent": "helper"}
    assert owner.post("tokens", body).json["agent_id"] == str(helper.pk)
    foreign = factories.create_agent(factories.create_organization("other"), "theirs")
    for name in (str(foreign.pk), "theirs", "nobody"):
        response = owner.post("tokens", body | {"agent": name})
        assert (response.status, response.json["field"]) == (404, "agent")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"role": "king"}, "role"),
        ({"name": ""}, "name"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"calls_per_minute": 0}, "calls_per_minute"),
    ],
)
def test_an_invalid_token_is_refused(owner, fields, field):
    before = Token.objects.count()
    response = owner.post("tokens", {"name": "x", "role": "member"} | fields)
    assert (response.status, response.json["field"]) == (400, field)
    assert Token.objects.count() == before


def test_the_output_schema_of_an_agent_is_set_and_deleted(operator, helper):
    schema = {"type": "object", "required": ["count"]}
    updated = operator.patch("agents/helper", {"output_schema": schema})
    assert (updated.status, updated.json["output_schema"]) == (200, schema)
    assert operator.patch("agents/helper", {"max_turns": 7}).json["output_schema"] == schema
    refused = operator.patch("agents/helper", {"output_schema": {"type": "array"}})
    assert (refused.status, refused.code) == (400, "unusable_output_schema")
    assert operator.patch("agents/helper", {"output_schema": None}).json["output_schema"] is None
