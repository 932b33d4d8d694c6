"""Tools of the handshake era that require a task are called as one, for every caller."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agents.calls.pipeline import CallOutcome
from agents.models import Agent
from bonobot.accounts.models import Organization
from tests.agents.gateway.conftest import GatewayClient, gateway_client
from tests.agents.gateway.upstream_server import CREATED_AT, OBJECT, Upstream, attach_upstream

__all__ = ["gateway_client"]
pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
RELATED = "io.modelcontextprotocol/related-task"
TASK = {
    "taskId": "t1",
    "status": "working",
    "createdAt": CREATED_AT,
    "lastUpdatedAt": CREATED_AT,
    "ttl": 1_000,
}
TOOL = {"name": "research", "inputSchema": OBJECT, "execution": {"taskSupport": "required"}}
REPORT = {"content": [{"type": "text", "text": "report"}], "_meta": {RELATED: {"taskId": "t1"}}}


@pytest.fixture
def upstream(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    upstream = Upstream("old", handshake=True)
    upstream.overrides = {
        "tools/list": {"tools": [TOOL]},
        "tools/call": {"task": TASK},
        "tasks/result": REPORT,
    }
    with upstream.listening():
        attach_upstream(upstream, acme, helper)
        yield upstream


def list_sent(upstream: Upstream) -> list[tuple[str, dict[str, Any]]]:
    return [
        (asked.method, asked.message["params"])
        for asked in upstream.http.asked
        if asked.method in ("tools/call", "tasks/result", "tasks/cancel")
    ]


def test_the_task_is_created_and_its_result_returned(
    upstream: Upstream, call: Callable[..., CallOutcome]
) -> None:
    outcome = call("mcp_old_research")
    assert (outcome.outcome, outcome.text, "_meta" in outcome.result) == ("ok", "report", False)
    (_, called), (_, collected) = list_sent(upstream)
    assert called["task"]["ttl"] > 0
    assert collected["taskId"] == "t1"


def test_a_failed_task_is_a_failed_call(
    upstream: Upstream, call: Callable[..., CallOutcome]
) -> None:
    upstream.overrides["tasks/result"] = {"code": -32603}
    outcome = call("mcp_old_research")
    assert (outcome.outcome, outcome.code) == ("error", "upstream_error")
    assert [method for method, _ in list_sent(upstream)] == ["tools/call", "tasks/result"]


def test_a_server_that_answers_at_once_needs_no_task(
    upstream: Upstream, call: Callable[..., CallOutcome]
) -> None:
    upstream.overrides["tools/call"] = {"content": [{"type": "text", "text": "now"}]}
    assert call("mcp_old_research").text == "now"


@pytest.mark.parametrize("era", ["modern", "handshake"])
def test_gateway_clients_call_it_like_any_other_tool(
    upstream: Upstream, gateway_client: GatewayClient, era: str
) -> None:
    ask = (
        gateway_client.handshake(AGENT).ask
        if era == "handshake"
        else lambda method, params=None: gateway_client.modern(AGENT, method, params)
    )
    (tool,) = ask("tools/list").result["tools"]
    assert "execution" not in tool
    called = ask("tools/call", {"name": tool["name"], "arguments": {}})
    assert "report" in json.dumps(called.result)
