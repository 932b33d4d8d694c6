"""Chat tools at `/mcp`, with sessions of the offline model."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.gateway.organization_server.handlers import load_tools
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Agent, Session
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, token_of
from tests.agents.gateway.organization_server.conftest import PATH, Client
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

Take = Callable[[Session], str]

ECHO = '/mcp_workshop_echo {"text": "over there"}'


def load_rows() -> list[AuditRow]:
    return list(AuditRow.objects.filter(action="gateway_call").order_by("seq"))


def test_an_agent_answers_and_its_session_continues(
    helper: Agent, workshop: Server, client: Client, running_worker: None
) -> None:
    first = client.use("helper_chat", message=ECHO, wait_s=30)
    assert (first["status"], first["resting"], first["agent"]) == ("done", True, "helper")
    assert first["calls"] == [{"tool": "mcp_workshop_echo", "state": "done", "code": ""}]
    assert "over there" in first["answer"]
    assert (first["waits_for"], first["error"]["code"]) == ([], "")
    second = client.use("helper_chat", message="hello", session_id=first["session_id"], wait_s=30)
    assert second["session_id"] == first["session_id"]
    assert (second["status"], second["calls"]) == ("done", [])
    transcript = client.use("session_messages", session_id=first["session_id"])
    assert [message["from"] for message in transcript["messages"]] == [
        "person",
        "agent",
        "person",
        "agent",
    ]
    assert transcript["messages"][-1]["text"] == second["answer"]
    position = transcript["messages"][1]["seq"]
    later = client.use("session_messages", session_id=first["session_id"], after_seq=position)
    assert later["messages"] == transcript["messages"][2:]


def test_progress_reports_text_and_calls_on_request(
    helper: Agent, workshop: Server, client: Client, running_worker: None
) -> None:
    arguments = {"message": ECHO, "wait_s": 30}
    reply_without_progress = client.call("helper_chat", arguments)
    assert reply_without_progress.notifications == []
    reply = client.call("helper_chat", arguments, meta={"progressToken": "p"})
    notifications = [
        notification["params"]
        for notification in reply.notifications
        if notification["method"] == "notifications/progress"
    ]
    assert [notification["progressToken"] for notification in notifications] == ["p"] * len(
        notifications
    )
    numbers = [notification["progress"] for notification in notifications]
    assert numbers == sorted(set(numbers))
    lines = [notification["message"] for notification in notifications]
    assert any(line.startswith("[mcp_workshop_echo: done") for line in lines)
    answer = reply.result["structuredContent"]["answer"]
    assert answer in "".join(lines)


def test_a_message_can_be_sent_without_waiting_and_waited_for_later(
    helper: Agent, client: Client, run_to_rest: Take
) -> None:
    sent = client.use("helper_chat", message="hello", wait_s=0)
    assert (sent["status"], sent["resting"], sent["answer"]) == ("queued", False, "")
    assert client.use("session_status", session_id=sent["session_id"])["status"] == "queued"
    run_to_rest(Session.objects.get())
    status = client.use("session_status", session_id=sent["session_id"], wait_s=30)
    assert (status["status"], bool(status["answer"])) == ("done", True)


def test_pending_requests_are_returned_with_their_urls(
    acme: Organization, helper: Agent, workshop: Server, client: Client, running_worker: None
) -> None:
    set_policy(
        factories.build_administrator(acme), helper, PolicySpec("all", ask=("mcp_workshop_echo",))
    )
    status = client.use("helper_chat", message=ECHO, wait_s=30)
    assert (status["status"], status["resting"], status["answer"]) == ("waiting", True, "")
    [request] = status["waits_for"]
    assert request["kind"] == "approval"
    assert request["url"].endswith(f"/{request['id']}/change/")
    canceled = client.use("session_cancel", session_id=status["session_id"])
    assert canceled["cancelled"] is True
    eventually(lambda: Session.objects.get().status == "cancelled")
    final = client.use("session_status", session_id=status["session_id"])
    assert (final["status"], final["waits_for"]) == ("cancelled", [])
    assert client.use("session_cancel", session_id=status["session_id"])["cancelled"] is False


def test_a_client_that_leaves_doesnt_stop_the_session(
    helper: Agent, gateway_client: GatewayClient, run_to_rest: Take
) -> None:
    mcp_session = gateway_client.handshake(PATH)
    params = {"name": "helper_chat", "arguments": {"message": "hello", "wait_s": 60}}
    request = ("tools/call", params, mcp_session.headers, None, 777)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(gateway_client._request, PATH, *request)
        session = eventually(Session.objects.first)
        body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 777}}
        bearer = f"Bearer {gateway_client.token}"
        gateway_client.send(
            "POST", PATH, json.dumps(body).encode(), Authorization=bearer, **mcp_session.headers
        )
        future.result(30)
    eventually(lambda: [row.outcome for row in load_rows()] == ["cancelled"])
    session.refresh_from_db()
    assert session.status == "queued"
    assert run_to_rest(session) == "done"


def test_each_call_is_recorded_with_its_client_and_outcome(
    acme: Organization, helper: Agent, client: Client
) -> None:
    client.use("helper_chat", message="hello", wait_s=0)
    invalid = client.call("helper_chat", {"text": "hello"})
    assert (invalid.result["isError"], invalid.code) == (True, "invalid_arguments")
    not_found = client.call("session_status", {"session_id": str(acme.pk)})
    assert (not_found.result["isError"], not_found.code) == (True, "not_found")
    assert client.call("nothing", {"a": 1}).error["code"] == -32602
    sent, refused, failed, missing = load_rows()
    details = json.loads(sent.opened)["details"]
    assert (sent.outcome, sent.tool_name) == ("ok", "helper_chat")
    assert (sent.agent_id, details["client"], details["via"]) == (helper.pk, "tests 1", "gateway")
    assert details["arguments"]["message"] == "hello"
    assert (refused.outcome, refused.code) == ("refused", "invalid_arguments")
    assert (failed.outcome, failed.code) == ("error", "not_found")
    assert (missing.outcome, missing.code) == ("refused", "unknown_tool")
    assert json.loads(missing.opened)["details"]["arguments"] == {}


def test_only_allowed_tools_are_listed_and_others_are_unknown(
    acme: Organization, helper: Agent, client: Client
) -> None:
    factories.create_agent(acme, "other")
    disabled = factories.create_agent(acme, "resting")
    disabled.enabled = False
    disabled.save()
    administrator = factories.build_administrator(acme)
    assert {"helper_chat", "other_chat"} <= set(client.tools())
    assert "resting_chat" not in client.tools()
    limited = Client(
        client.gateway_client, token_of(administrator, Role.MEMBER, agent_ids=[helper.pk])
    )
    assert {"helper_chat", "session_status", "session_cancel"} <= set(limited.tools())
    assert "other_chat" not in limited.tools()
    for name in ("other_chat", "resting_chat", "no_chat"):
        error = limited.call(name, {"message": "hello"}).error
        assert error == {"code": -32602, "message": f"Unknown tool: {name}"}
    reader = Client(client.gateway_client, token_of(administrator, Role.AUDITOR))
    listed = set(reader.tools())
    assert "session_status" in listed
    assert not {"helper_chat", "session_cancel"} & listed
    assert reader.call("session_cancel", {"session_id": "x"}).error["code"] == -32602
    session_id = client.use("other_chat", message="hello", wait_s=0)["session_id"]
    assert limited.call("session_status", {"session_id": session_id}).code == "not_found"
    assert limited.call("session_cancel", {"session_id": session_id}).code == "not_found"
    reply = client.call("helper_chat", {"message": "hello", "session_id": session_id})
    assert reply.code == "not_found"


def test_the_rate_limit_of_a_token_applies(
    acme: Organization, helper: Agent, client: Client
) -> None:
    administrator = factories.build_administrator(acme)
    limited = Client(client.gateway_client, token_of(administrator, calls_per_minute=1))
    arguments = {"message": "hello", "wait_s": 0}
    assert not limited.call("helper_chat", arguments).result.get("isError")
    assert limited.call("helper_chat", arguments).code == "rate_limited"
    assert Session.objects.count() == 1


def test_characters_that_cant_be_stored_are_replaced(helper: Agent, client: Client) -> None:
    sent = client.use("helper_chat", message="hello\x00\ud800 there", wait_s=0)
    assert Session.objects.get(pk=sent["session_id"]).title == "hello\ufffd\ufffd there"
    assert client.call("session_status", {"session_id": "\x00\ud800"}).code == "not_found"
    assert client.call("get_agent", {"agent_id": "\x00\ud800"}).code == "not_found"
    assert (
        client.call("list_agents", {"q": "\x00\ud800"}).result["structuredContent"]["results"] == []
    )
    for method, params in (
        ("tools/call", {"name": "\x00"}),
        ("prompts/get", {"name": "\x00"}),
        ("resources/read", {"uri": "bonobot://agents/\x00"}),
    ):
        reply = client.gateway_client.handshake(PATH).ask(method, params)
        assert reply.error["code"] == -32602


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400, -1, True, "5", None])
def test_nan_and_infinity_are_refused(number: Any, helper: Agent, client: Client) -> None:
    reply = client.call("helper_chat", {"message": "hello", "wait_s": number})
    if "error" in reply.message:
        assert reply.error["code"] in (-32700, -32600, -32602)
    else:
        assert (reply.result["isError"], reply.code) == (True, "invalid_arguments")
    assert not Session.objects.exists()


def test_long_slugs_get_short_unique_names(acme: Organization, client: Client) -> None:
    slugs = [f"{'a' * 62}{tail}" for tail in "xy"]
    for slug in slugs:
        factories.create_agent(acme, slug)
    names = [name for name in client.tools() if name.endswith("_chat")]
    assert len(set(names)) == 2
    assert all(len(name) <= 64 for name in names)
    assert client.use(names[0], message="hello", wait_s=0)["agent"] in slugs


def test_the_instructions_explain_the_endpoint(
    acme: Organization, helper: Agent, gateway_client: GatewayClient
) -> None:
    discovery = gateway_client.modern(PATH, "server/discover").result
    assert "`helper` (Helper)" in discovery["instructions"]
    assert {"tools", "resources", "prompts", "completions"} <= set(discovery["capabilities"])
    session = gateway_client.handshake(PATH)
    assert session.initialization.result["instructions"] == discovery["instructions"]
    names = [tool["name"] for tool in session.ask("tools/list").result["tools"]]
    assert "helper_chat" in names


def test_the_tool_list_uses_a_fixed_number_of_queries(acme: Organization, helper: Agent) -> None:
    administrator = factories.build_administrator(acme)
    for number in range(5):
        factories.create_agent(acme, f"agent-{number}")
    with CaptureQueriesContext(connection) as queries:
        assert len([name for name in load_tools(administrator) if name.endswith("_chat")]) == 6
    assert len(queries) == 1


def test_a_model_and_an_output_schema_are_chosen_for_a_message(
    acme: Organization, helper: Agent, client: Client, running_worker: None
) -> None:
    spec = ModelEndpointSpec(name="Other model", kind="offline")
    endpoint = save_endpoint(factories.build_administrator(acme), spec)
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    chosen = {"model_endpoint": endpoint.slug, "output_schema": schema}
    status = client.use("helper_chat", message="hello", wait_s=30, **chosen)
    assert status["output"] == json.loads(status["answer"])
    session = Session.objects.get()
    assert session.model_endpoint == endpoint
    refused = client.call("helper_chat", {"message": "x", "session_id": str(session.pk)} | chosen)
    assert "can't be changed" in json.dumps(refused.result)
    plain = client.use("helper_chat", message="hi", session_id=str(session.pk), wait_s=30)
    assert plain["output"] is None
