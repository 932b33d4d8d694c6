"""Extensions and MCP Apps through the gateway, in both eras and both directions."""

import json
from typing import Any

import pytest

from agents.calls.pipeline import make_call
from agents.calls.types import CallRequest
from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.core.problems import NotFound
from bonobot.core.runtime import get_runtime
from mcp_servers.client.jsonrpc import CAPABILITIES_KEY
from mcp_servers.client.mcp_extensions import (
    APP_MIME_TYPE,
    merge_server_extensions,
    select_relayed_extensions,
)
from tests import factories
from tests.agents.gateway.conftest import GatewayClient
from tests.agents.gateway.upstream_server import TASKS, Json, Upstream, attach_upstream
from tests.servers.raw_http_server import HandshakeHttp

UI = "io.modelcontextprotocol/ui"
OTHER = "com.example/other"
SKILLS = "io.modelcontextprotocol/skills"
AGENT, SERVER = "/mcp/agents/helper", "/mcp/servers/docs"
CAPABLE: Json = {"extensions": {UI: {"mimeTypes": [APP_MIME_TYPE]}, OTHER: {}, TASKS: {}}}
OWN_URI, EXPOSED_URI = "ui://page/app.html", "ui://docs/page/app.html"
UI_META: Json = {"resourceUri": OWN_URI, "visibility": ["model", "app"]}
PAGE_META: Json = {"ui": {"csp": {"connectDomains": ["https://api.example.com"]}, "domain": "x"}}
PAGE: Json = {
    "uri": OWN_URI,
    "mimeType": APP_MIME_TYPE,
    "text": "<!doctype html><script>parent.postMessage({}, '*')</script>",
    "_meta": PAGE_META,
}


class AppServer(Upstream):
    """A server whose tool has an app page."""

    def _capabilities(self) -> Json:
        return super()._capabilities() | {"extensions": {UI: {"v": 1}, OTHER: {}}}

    def _list_definitions(self) -> Json:
        tool = {"name": "show", "inputSchema": {"type": "object"}}
        meta = {"ui": UI_META, "ui/resourceUri": OWN_URI}
        page = {**PAGE, "name": "page"}
        return super()._list_definitions() | {
            "tools/list": {"tools": [{**tool, "_meta": meta}]},
            "resources/list": {"resources": [{k: v for k, v in page.items() if k != "text"}]},
        }


def serve(handshake: bool) -> AppServer:
    upstream = AppServer("docs", handshake=handshake)
    upstream.overrides["resources/read"] = {"resultType": "complete", "contents": [PAGE]}
    if isinstance(upstream.http.respond, HandshakeHttp):
        upstream.http.respond.capabilities = upstream._capabilities()
    else:
        upstream.overrides["server/discover"] = {
            "supportedVersions": ["2026-07-28"],
            "capabilities": upstream._capabilities(),
        }
    return upstream


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("handshake", [False, True])
def test_an_app_works_in_both_eras(
    handshake: bool, acme: Organization, helper: Agent, gateway_client: GatewayClient
) -> None:
    with serve(handshake).listening() as upstream:
        server = attach_upstream(upstream, acme, helper)
        # A tool's page needs no selection of its own.
        attach_server(factories.build_administrator(acme), helper, server, allowed_resources=[])
        session = gateway_client.handshake(AGENT, capabilities=CAPABLE)

        def modern(method: str, **params: Any) -> Json:
            return gateway_client.modern(AGENT, method, params, capabilities=CAPABLE).result

        def ask(method: str, **params: Any) -> Json:
            return session.ask(method, params).result

        for send in (modern, ask):
            (tool,) = send("tools/list")["tools"]
            assert tool["_meta"]["ui"] == {**UI_META, "resourceUri": EXPOSED_URI}
            assert tool["_meta"]["ui/resourceUri"] == EXPOSED_URI
            (page,) = send("resources/list")["resources"]
            assert (page["uri"], page["_meta"]) == (EXPOSED_URI, PAGE_META)
            (content,) = send("resources/read", uri=EXPOSED_URI)["contents"]
            assert content == {**PAGE, "uri": EXPOSED_URI}
            assert "content" in send("tools/call", name=tool["name"], arguments={})
        discovered = modern("server/discover")["capabilities"]["extensions"]
        assert discovered == {TASKS: {}, UI: {"v": 1}, SKILLS: {}}
        initialized = session.initialization.result["capabilities"]["extensions"]
        assert initialized == {UI: {"v": 1}, SKILLS: {}}
        (own_tool,) = gateway_client.modern(SERVER, "tools/list").result["tools"]
        assert own_tool["_meta"]["ui"] == UI_META
        for request in upstream.http.asked:
            params = (request.message or {}).get("params", {})
            declared = params.get("capabilities") or params.get("_meta", {}).get(CAPABILITIES_KEY)
            if not declared:
                continue
            expected: Json = {UI: {"mimeTypes": [APP_MIME_TYPE]}, SKILLS: {}}
            expected |= {} if handshake and request.method == "initialize" else {TASKS: {}}
            if request.method not in ("tools/call", "resources/read"):
                assert declared["extensions"] == expected, request.method
            else:  # as the client declared it, which isn't modern in one case
                assert declared["extensions"].keys() - {TASKS} == {UI}


@pytest.mark.django_db(transaction=True)
def test_a_page_is_unavailable_if_its_tool_is(
    acme: Organization, helper: Agent, gateway_client: GatewayClient
) -> None:
    with serve(False).listening() as upstream:
        server = attach_upstream(upstream, acme, helper)
        administrator = factories.build_administrator(acme)
        attach_server(administrator, helper, server, allowed_resources=[], denied_tools=["show"])
        refused = gateway_client.modern(AGENT, "resources/read", {"uri": EXPOSED_URI})
        assert refused.error["code"] == -32602
        assert gateway_client.modern(AGENT, "resources/list").result["resources"] == []


@pytest.mark.django_db(transaction=True)
def test_a_tool_for_a_page_only_is_callable_by_the_page_and_by_no_model(
    acme: Organization, helper: Agent, gateway_client: GatewayClient, monkeypatch: Any
) -> None:
    monkeypatch.setitem(UI_META, "visibility", ["app"])
    with serve(False).listening() as upstream:
        attach_upstream(upstream, acme, helper)
        (tool,) = gateway_client.modern(AGENT, "tools/list").result["tools"]
        params = {"name": tool["name"], "arguments": {}}
        assert "content" in gateway_client.modern(AGENT, "tools/call", params).result
        called = len(upstream.http.asked)
        find_params = {"name": "find_tools", "arguments": {"query": "show"}}
        view = f"{AGENT}?view=search"
        assert tool["name"] not in str(
            gateway_client.modern(view, "tools/call", find_params).result
        )
        inner = {"name": "call_tool", "arguments": params}
        refused = gateway_client.modern(view, "tools/call", inner)
        assert (refused.status, refused.error["code"]) == (400, -32602)
        request = CallRequest(
            principal=factories.build_administrator(acme),
            tool=tool["name"],
            arguments={},
            via="session",
            is_by_model=True,
            holder="test:app",
            agent_id=helper.pk,
        )
        with pytest.raises(NotFound, match="has no tool"):
            get_runtime().call(make_call, request)
        assert len(upstream.http.asked) == called


def test_only_allowed_extensions_are_relayed(settings: Any) -> None:
    assert select_relayed_extensions(CAPABLE) == {UI: {"mimeTypes": [APP_MIME_TYPE]}}
    settings.BONOBOT_EXTENSIONS = (OTHER,)
    assert select_relayed_extensions(CAPABLE) == {OTHER: {}}
    settings.BONOBOT_EXTENSIONS = ()
    assert select_relayed_extensions(CAPABLE) == {}


@pytest.mark.parametrize(
    "value", [None, "odd", [], {UI: None}, {UI: "x"}, {UI: {"x": "x" * 5_000}}]
)
def test_odd_extensions_arent_relayed(value: Any) -> None:
    assert select_relayed_extensions({"extensions": value}) == {}


def test_extensions_of_several_servers_are_merged() -> None:
    declared = [{"extensions": {UI: {"a": 1}}}, {}, {"extensions": {UI: {"b": 2}}}]
    assert json.loads(json.dumps(merge_server_extensions(declared))) == {UI: {"a": 1, "b": 2}}
