"""Tool calls over REST to a real server: of an agent, and without one."""

import json

import pytest

from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.calls.explain import DECISION_STAGES
from agents.models import Agent
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.definition_reviews import reset_review
from mcp_servers.models import Server
from tests import factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = "agents/helper/tools/mcp_workshop_echo"


@pytest.fixture
def operator(acme: Organization, helper: Agent) -> RestClient:
    return rest.as_role(acme, Role.OPERATOR)


@pytest.fixture
def owner(acme: Organization, helper: Agent) -> RestClient:
    return rest.as_role(acme, Role.OWNER)


def last_call() -> AuditRow:
    return AuditRow.objects.filter(event_type="call").order_by("seq").last()


def create_unreachable_server(acme: Organization, *agents: Agent) -> Server:
    return factories.create_http_server(acme, "http://127.0.0.1:9/mcp", "silent")


# -- with an agent -------------------------------------------------------------------------------


def test_an_agents_tools_are_listed_with_the_decision(operator, workshop):
    tools = {tool["name"]: tool for tool in operator.get("agents/helper/tools").json["results"]}
    echo = tools["mcp_workshop_echo"]
    assert (echo["server"], echo["tool"], echo["source"]) == ("workshop", "echo", "mcp")
    assert (echo["allowed"], echo["rule"], echo["code"]) == (True, "policy:all", "")
    assert echo["input_schema"]["required"] == ["text"]
    assert tools["read_result"]["source"] == "builtin"


def test_tools_are_paginated(operator, workshop):
    names, url = [], "agents/helper/tools?limit=4"
    while url:
        response = operator.get(url)
        names += [tool["name"] for tool in response.json["results"]]
        url = response.json["next"]
    assert names == sorted(set(names))
    assert len(names) > 8


def test_a_denied_tool_has_its_rule_and_remedy(acme, operator, helper, workshop):
    set_policy(factories.build_administrator(acme), helper, PolicySpec("none"))
    tools = operator.get("agents/helper/tools").json["results"]
    codes = {tool["code"] for tool in tools if tool["name"] not in BUILTIN_TOOLS}
    assert codes == {"denied_by_policy"}
    assert not any(tool["allowed"] for tool in tools)
    assert all(tool["remedy"] and tool["reason"] for tool in tools)


def test_every_stage_of_a_decision_is_explained(operator, workshop):
    response = operator.get(f"{ECHO}/explain").json
    assert response["allowed"]
    stages = [stage["stage"] for stage in response["stages"]]
    assert stages == [
        "resolve",
        "arguments",
        *DECISION_STAGES,
        "approval",
        "flow",
        "rate",
        "budgets",
    ]


def test_an_unknown_tool_cant_be_explained(operator, workshop):
    response = operator.get("agents/helper/tools/mcp_workshop_nothing/explain")
    assert (response.status, response.code) == (404, "unknown_tool")


def test_a_call_returns_its_outcome_and_is_recorded(operator, workshop):
    response = operator.post(f"{ECHO}/call", {"arguments": {"text": "hello"}})
    assert response.status == 200
    assert response.json["outcome"] == "ok"
    assert (response.json["text"], response.json["server"]) == ("hello", "workshop")
    assert response.json["result"]["content"] == [{"type": "text", "text": "hello"}]
    row = last_call()
    assert str(row.pk) == response.json["call_id"]
    details = json.loads(row.opened)["details"]
    assert details["arguments"] == {"text": "hello"}
    assert details["via"] == "rest"


def test_a_tool_error_is_a_result(operator, workshop):
    response = operator.post(
        "agents/helper/tools/mcp_workshop_fail/call", {"arguments": {"reason": "no luck"}}
    )
    assert (response.status, response.json["is_error"], response.json["code"]) == (
        200,
        True,
        "tool_error",
    )


def test_a_denied_call_is_a_problem_and_recorded(acme, operator, helper, workshop):
    set_policy(factories.build_administrator(acme), helper, PolicySpec("none"))
    response = operator.post(f"{ECHO}/call", {"arguments": {"text": "x"}})
    assert (response.status, response.code, response.json["rule"]) == (
        403,
        "denied_by_policy",
        "policy:none",
    )
    assert (last_call().outcome, last_call().code) == ("refused", "denied_by_policy")


def test_invalid_arguments_are_reported(operator, workshop):
    response = operator.post(f"{ECHO}/call", {"arguments": {"text": 7}})
    assert (response.code, response.json["field"]) == ("invalid_arguments", "$.text")
    assert operator.post(f"{ECHO}/call", {"arguments": []}).json["field"] == "arguments"


def test_a_built_in_tool_is_called_like_others(operator, helper):
    body = {"arguments": {"result_id": "0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a11"}}
    response = operator.post("agents/helper/tools/read_result/call", body)
    assert (response.json["outcome"], response.json["tool"]) == ("error", "read_result")


def test_a_member_can_call_tools_only_of_their_agents(acme, helper, workshop):
    factories.create_agent(acme, "secret")
    factories.create_member(acme, Role.MEMBER, "mia")
    user = User.objects.get(username="mia")
    helper.members.add(user)
    client = RestClient(user=user)
    body = {"arguments": {"text": "x"}}
    assert client.post(f"{ECHO}/call", body).json["outcome"] == "ok"
    assert client.post("agents/secret/tools/mcp_workshop_echo/call", body).status == 404


def test_a_token_rate_limit_returns_the_time_to_wait(acme, helper, workshop):
    owner = rest.as_role(acme, Role.OWNER)
    body = {"name": "slow", "role": "member", "agent": "helper", "calls_per_minute": 1}
    client = RestClient(owner.post("tokens", body).json["token"])
    responses = [client.post(f"{ECHO}/call", {"arguments": {"text": "x"}}) for _ in range(3)]
    response = responses[-1]
    assert (response.status, response.code) == (429, "rate_limited")
    assert int(response.headers["Retry-After"]) > 0


def test_a_call_sent_twice_with_one_key_runs_once(operator, workshop, effects):
    path = "agents/helper/tools/mcp_workshop_count/call"
    first, second = (
        operator.post(path, {"arguments": {"what": "x"}}, Idempotency_Key="k") for _ in range(2)
    )
    assert first.json == second.json
    assert effects.read_text() == "x\n"


# -- a server's test -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["mcp-servers", "agents/helper/mcp-servers"])
def test_a_server_test_returns_the_discovered_tools(operator, workshop, path):
    response = operator.post(f"{path}/{workshop.pk}/test")
    assert response.status == 200
    assert set(response.json) == {"status", "tools_discovered", "tools", "latency_ms"}
    assert (response.json["status"], response.json["tools_discovered"]) == ("connected", 8)
    assert {"name": "echo", "description": "Return the text."} in response.json["tools"]
    assert response.json["latency_ms"] >= 0
    assert operator.get(f"{path}/{workshop.pk}").json["last_connected_at"]


def test_a_failed_test_is_a_result_with_a_remedy(acme, operator, helper):
    server = create_unreachable_server(acme)
    response = operator.post(f"mcp-servers/{server.pk}/test")
    assert response.status == 200
    assert (response.json["status"], response.json["code"]) == ("error", "server_unreachable")
    assert response.json["detail"]
    assert response.json["remedy"]
    assert operator.get(f"mcp-servers/{server.pk}").json["status_code"] == "server_unreachable"


def test_a_refresh_returns_the_changes(operator, workshop):
    response = operator.post(f"mcp-servers/{workshop.pk}/refresh").json
    counts = ("new", "changed", "removed", "pending_review")
    assert [response[name] for name in counts] == [0, 0, 0, 0]


# -- without an agent ----------------------------------------------------------------------------


def execute(client: RestClient, server: Server, method: str, **body: object) -> rest.RestResponse:
    return client.post(f"mcp-servers/{server.pk}/execute", {"method": method} | body)


def test_a_server_accepts_initialize(operator, workshop):
    response = execute(operator, workshop, "initialize")
    assert (response.json["outcome"], response.json["call_id"]) == ("ok", None)
    assert response.json["result"]["serverInfo"]["name"]
    assert "tools" in response.json["result"]["capabilities"]


def test_a_server_lists_callable_tools(acme, operator, workshop):
    reset_review(factories.build_administrator(acme), workshop.definitions.get(name="echo"))
    tools = execute(operator, workshop, "tools/list").json["result"]["tools"]
    assert "add" in [tool["name"] for tool in tools]
    assert "echo" not in [tool["name"] for tool in tools]
    assert tools[0]["inputSchema"]


def test_a_servers_tool_is_called_by_its_own_name(operator, workshop):
    params = {"name": "add", "arguments": {"a": 2, "b": 3}}
    response = execute(operator, workshop, "tools/call", params=params)
    assert response.json["result"]["structuredContent"] == {"result": 5}
    row = last_call()
    assert (row.action, row.agent_id, row.tool_name) == ("tool_call", None, "add")
    get_runtime().call(get_connection_pool().forget_server, workshop.pk)


def test_a_pending_tool_can_be_tried_by_reviewers(acme, operator, owner, workshop):
    reset_review(factories.build_administrator(acme), workshop.definitions.get(name="echo"))
    body = {"params": {"name": "echo", "arguments": {"text": "x"}}}
    assert execute(owner, workshop, "tools/call", **body).code == "not_approved"
    assert execute(owner, workshop, "tools/call", **body, unapproved=True).json["outcome"] == "ok"
    response = execute(operator, workshop, "tools/call", **body, unapproved=True)
    assert (response.status, response.code) == (403, "not_approved")


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"method": "logging/setLevel"}, 400, "unknown_method", "method"),
        ({"method": "tools/call"}, 400, "invalid", "params.name"),
        (
            {"method": "tools/call", "params": {"name": "x", "a": 1}},
            400,
            "unknown_field",
            "params.a",
        ),
        ({"method": "tools/call", "params": {"name": "nothing"}}, 404, "unknown_tool", "tool"),
        ({"params": {}}, 400, "invalid", "method"),
    ],
)
def test_an_unsupported_method_of_a_server_is_reported(
    operator, workshop, body, status, code, field
):
    response = operator.post(f"mcp-servers/{workshop.pk}/execute", body)
    assert (response.status, response.code, response.json["field"]) == (status, code, field)


def test_a_server_that_doesnt_respond_is_an_outcome(acme, operator, helper):
    response = execute(operator, create_unreachable_server(acme), "initialize")
    assert (response.status, response.json["outcome"], response.json["code"]) == (
        200,
        "error",
        "server_unreachable",
    )
    assert response.json["remedy"]
