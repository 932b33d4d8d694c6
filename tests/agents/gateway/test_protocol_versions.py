"""Results of modern servers are translated for clients of the handshake era."""

from collections.abc import Iterator
from typing import Any

import pytest

from agents.gateway.protocol_versions import translate_declaration, translate_result
from agents.models import Agent
from bonobot.accounts.models import Organization
from tests.agents.gateway.conftest import GatewayClient
from tests.agents.gateway.upstream_server import Upstream, attach_upstream

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
OBJECT = {"type": "object"}
LIST = {"type": "array", "items": {"type": "string"}}
TOOLS = [
    {"name": "names", "inputSchema": OBJECT, "outputSchema": LIST},
    {"name": "person", "inputSchema": {}, "outputSchema": OBJECT},
]
CALL = {"name": "mcp_anew_names", "arguments": {}}


@pytest.fixture
def upstream(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    """A modern server with a tool that returns a list."""
    server = Upstream("anew")
    server.overrides["tools/list"] = {"tools": TOOLS}
    with server.listening():
        attach_upstream(server, acme, helper)
        yield server


def list_schemas(result: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        tool["name"].removeprefix("mcp_anew_"): (tool["inputSchema"], tool.get("outputSchema"))
        for tool in result["tools"]
    }


def test_schemas_that_describe_no_object_are_only_listed_in_the_modern_era(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    modern = list_schemas(gateway_client.modern(AGENT, "tools/list").result)
    assert modern == {"names": (OBJECT, LIST), "person": ({}, OBJECT)}
    handshake = list_schemas(gateway_client.handshake(AGENT).ask("tools/list").result)
    assert handshake == {"names": (OBJECT, None), "person": (OBJECT, OBJECT)}


def test_a_list_becomes_text_in_a_result_of_the_handshake_era(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    upstream.overrides["tools/call"] = {"content": [], "structuredContent": ["Ada", "Björn"]}
    assert gateway_client.modern(AGENT, "tools/call", CALL).result["structuredContent"] == [
        "Ada",
        "Björn",
    ]
    result = gateway_client.handshake(AGENT).ask("tools/call", CALL).result
    assert "structuredContent" not in result
    assert result["content"] == [{"type": "text", "text": '["Ada", "Björn"]'}]


def test_a_url_elicitation_has_an_id_in_the_handshake_era(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    params = {"mode": "url", "message": "Sign in", "url": "https://example.com/start"}
    requests = {"login": {"method": "elicitation/create", "params": params}}
    upstream.overrides["tools/call"] = {
        **{"resultType": "input_required", "inputRequests": requests},
        "requestState": "s",
    }
    session = gateway_client.handshake(AGENT, capabilities={"elicitation": {"url": {}}})
    stream = session.begin("tools/call", CALL)
    request = stream.next()
    assert request is not None
    assert request["params"].pop("elicitationId")
    assert request["params"] == params
    session.answer(request, error={"code": -1, "message": "No."})
    assert (stream.next() or {})["error"]["code"] == -1
    stream.close()


def test_what_the_handshake_era_supports_is_unchanged() -> None:
    tool = {"name": "x", "inputSchema": OBJECT, "outputSchema": OBJECT, "title": "X"}
    assert translate_declaration(tool) == tool
    result = {"content": [], "structuredContent": {"a": 1}, "isError": False}
    assert translate_result({**result, "resultType": "complete", "ttlMs": 0}) == result
