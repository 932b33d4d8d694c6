"""The search view of an agent's endpoint: three tools that find and call all others."""

import json
from typing import Any

import pytest

from agents.approvals.services import resolve_approval
from agents.budgets.services import BudgetLine, set_budgets
from agents.calls.snapshots import get_snapshot_cache
from agents.gateway.routes import GatewayAddress, parse_path
from agents.models import Agent, Approval
from agents.policies.services import PolicySpec, set_policy
from agents.services import AgentSpec, update_agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import Actor
from bonobot.ledger.usage.query_rollups import count_recent_successes
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import set_labels
from mcp_servers.models import Server
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, Reply, token_of
from tests.agents.gateway.test_mcp_tasks import DECLARED, wait_for_task

pytestmark = pytest.mark.django_db(transaction=True)

AGENT, VIEW = "/mcp/agents/helper", "/mcp/agents/helper?view=search"
ECHO, COUNT = "mcp_workshop_echo", "mcp_workshop_count"
VIEW_TOOLS = ["find_tools", "describe_tool", "call_tool"]


def call(client: GatewayClient, name: str, arguments: Any, **more: Any) -> Reply:
    return client.modern(VIEW, "tools/call", {"name": name, "arguments": arguments}, **more)


def call_inner(client: GatewayClient, name: str, arguments: Any, **more: Any) -> Reply:
    return call(client, "call_tool", {"name": name, "arguments": arguments}, **more)


def list_names(client: GatewayClient) -> list[str]:
    return [tool["name"] for tool in client.modern(VIEW, "tools/list").result["tools"]]


def list_calls() -> list[tuple[str, str]]:
    rows = AuditRow.objects.filter(event_type="call").order_by("seq")
    return list(rows.values_list("tool_name", "outcome"))


def test_only_an_agents_path_has_the_view() -> None:
    assert parse_path(AGENT, b"a=1&view=search") == GatewayAddress("agent", "helper", "search")
    for query in (b"", b"view=other", b"view=%ff%00", b"view=search&view=search"):
        assert parse_path(AGENT, query) == GatewayAddress("agent", "helper")
    assert parse_path("/mcp/servers/helper", b"view=search") == GatewayAddress("server", "helper")
    assert parse_path("/mcp", b"view=search") == GatewayAddress("organization")


def test_a_client_finds_describes_and_calls_a_tool(
    workshop: Server, gateway_client: GatewayClient
) -> None:
    assert list_names(gateway_client) == VIEW_TOOLS
    result = call(gateway_client, "find_tools", {"query": "echo a text", "limit": 1}).result
    assert result["structuredContent"] == {"tools": [ECHO]}
    described = call(gateway_client, "describe_tool", {"name": ECHO}).result
    assert described["structuredContent"]["tool"]["inputSchema"]["properties"]["text"]
    assert json.loads(described["content"][0]["text"])["name"] == ECHO
    result = call_inner(gateway_client, ECHO, {"text": "hello"}).result
    direct = gateway_client.modern(
        AGENT, "tools/call", {"name": ECHO, "arguments": {"text": "hello"}}
    ).result
    assert result == direct
    assert list_calls() == [
        ("find_tools", "ok"),
        ("describe_tool", "ok"),
        ("echo", "ok"),
        ("echo", "ok"),
    ]


def test_a_client_of_the_handshake_era_has_the_same_view(
    workshop: Server, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(VIEW)
    assert [tool["name"] for tool in session.ask("tools/list").result["tools"]] == VIEW_TOOLS
    params = {"name": "call_tool", "arguments": {"name": ECHO, "arguments": {"text": "hello"}}}
    meta = {"_meta": {"progressToken": 7}}
    assert session.ask("tools/call", params | meta).result["content"][0]["text"] == "hello"


def test_unknown_and_denied_tools_answer_as_without_the_view(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient
) -> None:
    set_policy(
        factories.build_administrator(acme), helper, PolicySpec("denylist", deny=(COUNT, "shell"))
    )
    for name in ("missing", COUNT, "shell", "call_tool", "find_tools"):
        inner = call_inner(gateway_client, name, {})
        direct = gateway_client.modern(AGENT, "tools/call", {"name": name, "arguments": {}})
        assert (inner.status, inner.error) == (direct.status, direct.error)
    assert call(gateway_client, ECHO, {"text": "x"}).error["code"] == -32602
    denied, missing = (
        call(gateway_client, "describe_tool", {"name": name}).result for name in (COUNT, "missing")
    )
    assert denied["isError"]
    assert denied["_meta"]["bonobot/problem"]["code"] == "unknown_tool"
    assert denied["content"] != missing["content"]
    assert str(denied["content"]).replace(COUNT, "missing") == str(missing["content"])
    assert COUNT not in call(gateway_client, "find_tools", {"query": "count"}).result["content"]


def test_built_in_tools_that_arent_listed_cant_be_called(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient
) -> None:
    administrator = factories.build_administrator(acme)
    toolsets = {"filesystem": {"read_only": False}, "notes": {}}
    update_agent(administrator, helper, AgentSpec(name=helper.name, builtin_tools=toolsets))
    set_policy(administrator, helper, PolicySpec("denylist"))
    snapshot = get_snapshot_cache().load_current("agent", helper.pk)
    names = [tool.name for tool in snapshot.list_callable_tools() if tool.builtin is not None]
    assert "write_file" in names
    for name in names:
        params = {"name": name, "arguments": {"path": "x", "content": "y"}}
        for reply in (
            gateway_client.modern(AGENT, "tools/call", params),
            call_inner(gateway_client, name, params["arguments"]),
        ):
            assert (reply.status, reply.error["code"]) == (400, -32602), name
    rows = AuditRow.objects.filter(event_type="call", resource_type="builtin_tool")
    assert not rows.exclude(outcome="refused").exists()


@pytest.mark.parametrize("arguments", [{}, {"name": 7}, {"name": ECHO, "arguments": []}])
def test_invalid_arguments_of_call_tool_are_a_failed_result(
    arguments: dict[str, Any], workshop: Server, gateway_client: GatewayClient
) -> None:
    assert call(gateway_client, "call_tool", arguments).code == "invalid_arguments"
    assert list_calls() == []


def test_a_call_that_needs_approval_waits_as_a_task(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient, effects: Any
) -> None:
    administrator = factories.build_administrator(acme)
    set_policy(administrator, helper, PolicySpec("all", ask=(COUNT,)))
    assert call_inner(gateway_client, COUNT, {"what": "x"}).code == "approval_required"
    task = call_inner(gateway_client, COUNT, {"what": "once"}, capabilities=DECLARED).result
    assert task["resultType"] == "task"
    for approval in Approval.objects.pending():
        resolve_approval(administrator, approval, "approve")
    assert wait_for_task(gateway_client, VIEW, task["taskId"])["status"] == "completed"
    assert effects.read_text() == "once\n"


def test_an_elicitation_passes_through_call_tool(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient, effects: Any
) -> None:
    set_policy(factories.build_administrator(acme), helper, PolicySpec("all", ask=(COUNT,)))
    shows: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
    params = {"name": COUNT, "arguments": {"what": "once"}}
    required = call(gateway_client, "call_tool", params, capabilities=shows).result
    assert required["resultType"] == "input_required"
    resolve_approval(factories.build_administrator(acme), Approval.objects.get(), "approve")
    retry = {
        "requestState": required["requestState"],
        "inputResponses": {"bonobot-approval": {"action": "accept"}},
    }
    result = gateway_client.modern(
        VIEW,
        "tools/call",
        {"name": "call_tool", "arguments": params} | retry,
        capabilities=shows,
    ).result
    assert (result["resultType"], effects.read_text()) == ("complete", "once\n")


def test_all_tools_are_listed_when_the_policy_denies_find_tools(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient
) -> None:
    administrator = factories.build_administrator(acme)
    set_policy(administrator, helper, PolicySpec("allowlist", allow=(ECHO,)))
    assert list_names(gateway_client) == [ECHO]
    assert call(gateway_client, ECHO, {"text": "x"}).result["content"][0]["text"] == "x"
    set_policy(administrator, helper, PolicySpec("allowlist", allow=(ECHO, "find_tools")))
    assert list_names(gateway_client) == ["find_tools", "call_tool"]
    assert call(gateway_client, "describe_tool", {"name": ECHO}).error["code"] == -32602


def test_a_principal_who_may_not_see_the_audit_log_learns_nothing_of_others_calls(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient
) -> None:
    assert call_inner(gateway_client, ECHO, {"text": "x"}).status == 200
    assert call_inner(gateway_client, ECHO, {"text": 1}).result["isError"]
    everyone = count_recent_successes(acme.pk, helper.pk)
    assert everyone == {(workshop.pk, "echo"): 1}
    assert not count_recent_successes(factories.create_organization("other").pk, helper.pk)
    assert not count_recent_successes(acme.pk, helper.pk, Actor("token", "another", ""))
    query = {"query": "text file count echo", "limit": 20}
    operator = token_of(factories.build_administrator(acme), Role.OPERATOR)
    owner_names, operator_names = (
        call(gateway_client, "find_tools", query, token=token).result["structuredContent"]["tools"]
        for token in (gateway_client.token, operator)
    )
    assert sorted(owner_names) == sorted(operator_names)


def test_calls_through_the_view_use_the_same_budget(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient
) -> None:
    set_budgets(factories.build_administrator(acme), helper, [BudgetLine("calls", "day", 2)])
    assert call(gateway_client, "find_tools", {"query": "echo"}).result["content"]
    assert call_inner(gateway_client, ECHO, {"text": "x"}).result["content"]
    inner = call_inner(gateway_client, ECHO, {"text": "x"})
    direct = gateway_client.modern(AGENT, "tools/call", {"name": ECHO, "arguments": {"text": "x"}})
    assert inner.code == direct.code == "budget_exhausted"


def test_calls_through_the_view_carry_flow_labels(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient
) -> None:
    administrator = factories.build_administrator(acme)
    for name, labels in (
        ("echo", [FlowLabel.PRIVATE_DATA, FlowLabel.UNTRUSTED_CONTENT]),
        ("count", [FlowLabel.SENDS_OUT]),
    ):
        set_labels(administrator, workshop, list(workshop.definitions.filter(name=name)), labels)
    assert call_inner(gateway_client, COUNT, {"what": "x"}).result["content"]
    assert call_inner(gateway_client, ECHO, {"text": "x"}).result["content"]
    assert call_inner(gateway_client, COUNT, {"what": "y"}).code == "approval_required"
