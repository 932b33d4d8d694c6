"""Definitions and calls of servers, relayed to clients of both eras."""

import json
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
from django.utils import timezone

from agents.models import Agent, Approval
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.tokens.services import revoke_token
from bonobot.core.runtime import Runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.definition_reviews import reset_review
from mcp_servers.models import Server
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, token_of
from tests.traces import PARENT, TRACE, collect_spans

pytestmark = pytest.mark.django_db(transaction=True)

AGENT, SERVER = "/mcp/agents/helper", "/mcp/servers/workshop"
ECHO = "mcp_workshop_echo"


def get_last_call() -> AuditRow:
    return AuditRow.objects.filter(event_type="call").order_by("seq").last()


def test_agent_endpoints_prefix_tool_names_and_server_endpoints_dont(
    workshop: Server, gateway_client: GatewayClient
) -> None:
    agent_tools = gateway_client.modern(AGENT, "tools/list").result
    server_tools = gateway_client.modern(SERVER, "tools/list").result
    assert ECHO in [tool["name"] for tool in agent_tools["tools"]]
    assert "echo" in [tool["name"] for tool in server_tools["tools"]]
    assert (agent_tools["cacheScope"], agent_tools["resultType"]) == ("private", "complete")
    echo = next(tool for tool in server_tools["tools"] if tool["name"] == "echo")
    declared = workshop.definitions.get(name="echo").payload
    assert echo == declared


def test_a_call_is_governed_in_both_eras(workshop: Server, gateway_client: GatewayClient) -> None:
    params = {"name": ECHO, "arguments": {"text": "hello"}}
    modern = gateway_client.modern(AGENT, "tools/call", params).result
    assert modern["content"] == [{"type": "text", "text": "hello"}]
    assert modern["resultType"] == "complete"
    row = get_last_call()
    assert (row.outcome, json.loads(row.opened)["details"]["via"]) == ("ok", "gateway")
    assert json.loads(row.opened)["details"]["client"] == "tests 1"
    session = gateway_client.handshake(AGENT)
    assert session.initialization.result["protocolVersion"] == "2025-11-25"
    handshake = session.ask("tools/call", params).result
    assert handshake["content"] == modern["content"]
    assert "resultType" not in handshake
    assert AuditRow.objects.filter(event_type="call").count() == 2


def test_a_call_is_one_trace_from_the_client_to_the_server(
    workshop: Server, gateway_client: GatewayClient
) -> None:
    params = {"name": ECHO, "arguments": {"text": "a secret"}}
    with collect_spans() as spans:
        assert (
            gateway_client.modern(AGENT, "tools/call", params, meta={"traceparent": PARENT}).status
            == 200
        )
    by_name = {span.name: span for span in spans.get_finished_spans()}
    request, execution, server_call = (
        by_name[name] for name in (f"tools/call {ECHO}", f"execute_tool {ECHO}", "tools/call echo")
    )
    assert {f"{span.context.trace_id:032x}" for span in (request, execution, server_call)} == {
        TRACE
    }
    assert (execution.parent, server_call.parent) == (request.context, execution.context)
    assert request.attributes["mcp.protocol.version"] == "2026-07-28"
    assert request.attributes["jsonrpc.request.id"] == "1"
    assert server_call.attributes["gen_ai.operation.name"] == "execute_tool"
    assert execution.attributes["gen_ai.tool.call.id"] == str(get_last_call().pk)
    assert execution.attributes["bonobot.outcome"] == "ok"
    assert not any("a secret" in span.to_json() for span in by_name.values())


def test_structured_content_and_tool_errors_are_unchanged(
    workshop: Server, gateway_client: GatewayClient
) -> None:
    added = gateway_client.modern(
        SERVER, "tools/call", {"name": "add", "arguments": {"a": 2, "b": 3}}
    )
    assert added.result["structuredContent"] == {"result": 5}
    failed = gateway_client.modern(
        SERVER, "tools/call", {"name": "fail", "arguments": {"reason": "so"}}
    )
    assert (failed.result["isError"], failed.result["content"][0]["text"]) == (True, "so")


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_nan_and_infinity_are_refused_and_recorded(
    number: float, workshop: Server, gateway_client: GatewayClient
) -> None:
    params = {"name": "add", "arguments": {"a": number, "b": 1}}
    assert gateway_client.modern(SERVER, "tools/call", params).code == "invalid_arguments"
    row = get_last_call()
    assert (row.outcome, row.code) == ("refused", "invalid_arguments")
    assert json.loads(row.opened)["details"]["arguments"] == {"a": str(number), "b": 1}


def test_a_forbidden_tool_is_like_an_unknown_one(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient
) -> None:
    set_policy(
        factories.build_administrator(acme),
        helper,
        PolicySpec("denylist", deny=("mcp_workshop_add",)),
    )
    listed = gateway_client.modern(AGENT, "tools/list").result["tools"]
    assert "mcp_workshop_add" not in [tool["name"] for tool in listed]
    forbidden = gateway_client.modern(
        AGENT, "tools/call", {"name": "mcp_workshop_add", "arguments": {"a": 1, "b": 1}}
    )
    unknown = gateway_client.modern(AGENT, "tools/call", {"name": "mcp_workshop_nothing"})
    assert forbidden.error == {"code": -32602, "message": "Unknown tool: mcp_workshop_add"}
    assert unknown.error == {"code": -32602, "message": "Unknown tool: mcp_workshop_nothing"}
    assert forbidden.status == unknown.status


def test_a_denied_listed_tool_has_a_reason(
    acme: Organization, helper: Agent, workshop: Server, gateway_client: GatewayClient
) -> None:
    invalid = gateway_client.modern(AGENT, "tools/call", {"name": ECHO, "arguments": {"text": 1}})
    assert (invalid.result["isError"], invalid.code) == (True, "invalid_arguments")
    set_policy(factories.build_administrator(acme), helper, PolicySpec("all", ask=(ECHO,)))
    pending = gateway_client.modern(
        AGENT, "tools/call", {"name": ECHO, "arguments": {"text": "hello"}}
    )
    assert (pending.result["isError"], pending.code) == (True, "approval_required")
    approval = Approval.objects.get()
    assert str(approval.pk) == pending.result["_meta"]["bonobot/problem"]["approval_id"]


def test_a_change_applies_to_the_next_call(
    acme: Organization, workshop: Server, gateway_client: GatewayClient
) -> None:
    params = {"name": "echo", "arguments": {"text": "hello"}}
    assert "content" in gateway_client.modern(SERVER, "tools/call", params).result
    reset_review(factories.build_administrator(acme), workshop.definitions.get(name="echo"))
    assert gateway_client.modern(SERVER, "tools/call", params).error["code"] == -32602


def test_resources_are_read_by_their_listed_uris(
    library: Server, gateway_client: GatewayClient
) -> None:
    listed = gateway_client.modern("/mcp/servers/library", "resources/list").result["resources"]
    assert listed
    uri = listed[0]["uri"]
    result = gateway_client.modern("/mcp/servers/library", "resources/read", {"uri": uri}).result
    assert result["contents"][0]["uri"] == uri
    assert (result["cacheScope"], result["resultType"]) == ("private", "complete")
    unknown = gateway_client.modern(
        "/mcp/servers/library", "resources/read", {"uri": "nothing://x"}
    )
    assert (unknown.error["code"], unknown.error["data"]["uri"]) == (-32602, "nothing://x")


def test_prompts_are_returned_and_completed(library: Server, gateway_client: GatewayClient) -> None:
    path = "/mcp/servers/library"
    prompts = gateway_client.modern(path, "prompts/list").result["prompts"]
    assert prompts
    simple = next(prompt for prompt in prompts if not prompt.get("arguments"))
    assert gateway_client.modern(path, "prompts/get", {"name": simple["name"]}).result["messages"]
    assert gateway_client.modern(path, "prompts/get", {"name": "nothing"}).error["code"] == -32602


def test_a_session_is_bound_to_its_principal_and_endpoint(
    acme: Organization, workshop: Server, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(AGENT)
    other_token = token_of(factories.build_administrator(acme))
    assert session.ask("tools/list").status == 200
    assert session.ask("tools/list", token=other_token).status == 404
    assert session.ask("tools/list", path=SERVER).status == 404


def test_a_repeated_call_queries_only_its_admission(
    workshop: Server, gateway_client: GatewayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"name": ECHO, "arguments": {"text": "hello"}}
    gateway_client.modern(AGENT, "tools/call", params)
    queries: list[str] = []
    is_counted = ContextVar("is_counted", default=False)  # not for tasks that run already
    original = Runtime.run_orm

    async def count(self: Runtime, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        if is_counted.get():
            queries.append(getattr(fn, "__qualname__", repr(fn)))
        return await original(self, fn, *args, **kwargs)

    monkeypatch.setattr(Runtime, "run_orm", count)
    with_count = copy_context()
    with_count.run(is_counted.set, True)
    result = with_count.run(gateway_client.modern, AGENT, "tools/call", params).result
    assert result["content"][0]["text"] == "hello"
    assert queries == []


@pytest.mark.parametrize("change", ["revoke", "expire", "delete"])
def test_an_expired_token_is_refused_at_the_next_call(
    acme: Organization, workshop: Server, gateway_client: GatewayClient, change: str
) -> None:
    params = {"name": ECHO, "arguments": {"text": "hello"}}
    assert gateway_client.modern(AGENT, "tools/call", params).status == 200
    key = gateway_client.token.split("_")[1]
    token = Token.objects.get(key=key)
    if change == "revoke":
        revoke_token(factories.build_administrator(acme), token)
    elif change == "delete":
        token.delete()
    else:
        Token.objects.filter(pk=token.pk).update(expires_at=timezone.now())
    calls = AuditRow.objects.filter(event_type="call", outcome="ok").count()
    reply = gateway_client.modern(AGENT, "tools/call", params)
    assert (reply.result["isError"], reply.code) == (True, "bad_token")
    assert AuditRow.objects.filter(event_type="call", outcome="ok").count() == calls
    assert gateway_client.modern(AGENT, "tools/call", params).status == 401
