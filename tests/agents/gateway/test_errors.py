"""Errors, logs and tasks of servers, as clients get them."""

from collections.abc import Iterator
from typing import Any

import pytest

from agents.gateway.client_request import LOG_LEVELS
from agents.models import Agent
from bonobot.accounts.models import Organization
from tests.agents.gateway.conftest import META, GatewayClient
from tests.agents.gateway.test_mcp_tasks import send_task_request
from tests.agents.gateway.upstream_server import (
    ABLE,
    CREATED_AT,
    TASKS,
    Json,
    Upstream,
    attach_upstream,
)
from tests.servers import raw_http_server

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
ECHO = {"name": "mcp_anew_echo", "arguments": {}}
WORK = {"name": "mcp_anew_work", "arguments": {}}
ERROR = {"code": -32050, "data": {"why": "closed", "until": 7}}
TASK = {"taskId": "anew-1", "createdAt": CREATED_AT, "lastUpdatedAt": CREATED_AT, "ttlMs": 60_000}
SAMPLE = {"a": {"method": "sampling/createMessage", "params": {}}}


@pytest.fixture
def upstream(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    with Upstream("anew").listening() as server:
        attach_upstream(server, acme, helper)
        yield server


METHODS = pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", ECHO),
        ("resources/read", {"uri": "anew+mem://anew"}),
        ("prompts/get", {"name": "mcp_anew_anew_greet"}),
    ],
)


def build_params(gateway_client: GatewayClient, method: str, params: Json) -> Json:
    """Return the parameters with the listed name or URI."""
    if method == "prompts/get":
        (item,) = gateway_client.modern(AGENT, "prompts/list").result["prompts"]
        return {"name": item["name"]}
    if method == "resources/read":
        (item,) = gateway_client.modern(AGENT, "resources/list").result["resources"]
        return {"uri": item["uri"]}
    return params


@METHODS
def test_an_error_of_the_server_is_unchanged(
    upstream: Upstream, gateway_client: GatewayClient, method: str, params: Json
) -> None:
    params = build_params(gateway_client, method, params)
    upstream.overrides[method] = ERROR
    modern = gateway_client.modern(AGENT, method, params).error
    assert (modern["code"], modern["data"]) == (ERROR["code"], ERROR["data"])
    handshake = gateway_client.handshake(AGENT).ask(method, params).error
    assert (handshake["code"], handshake["data"]) == (ERROR["code"], ERROR["data"])


def test_a_not_found_error_has_the_code_of_the_clients_era(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    params = build_params(gateway_client, "resources/read", {})
    upstream.overrides["resources/read"] = {"code": -32002}
    assert gateway_client.modern(AGENT, "resources/read", params).error["code"] == -32602
    assert gateway_client.handshake(AGENT).ask("resources/read", params).error["code"] == -32002


@METHODS
def test_an_unavailable_server_is_reported_with_our_code(
    upstream: Upstream, gateway_client: GatewayClient, method: str, params: Json
) -> None:
    params = build_params(gateway_client, method, params)
    upstream.http.respond = lambda request: raw_http_server.response(503)
    reply = gateway_client.modern(AGENT, method, params)
    # A tool call was sent, so it may have run.
    assert reply.code == ("outcome_unknown" if method == "tools/call" else "server_unreachable")
    assert reply.message.get("result", {"isError": True})["isError"] is True


def test_a_client_gets_log_messages_from_its_chosen_level(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    upstream.logs = [{"level": entry, "data": entry} for entry in (*LOG_LEVELS, "loudly", ["info"])]
    meta: Json = {f"{META}logLevel": "error"}
    notifications = gateway_client.modern(AGENT, "tools/call", ECHO, meta=meta).notifications
    assert [entry["params"]["data"] for entry in notifications] == list(
        LOG_LEVELS[LOG_LEVELS.index("error") :]
    )
    assert gateway_client.modern(AGENT, "tools/call", ECHO).notifications == []


def test_a_session_gets_log_messages_from_its_set_level(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    upstream.logs = [{"level": entry, "data": entry} for entry in LOG_LEVELS]
    session = gateway_client.handshake(AGENT)
    assert len(session.ask("tools/call", ECHO).notifications) == len(LOG_LEVELS)
    assert session.ask("logging/setLevel", {"level": "loudly"}).error["code"] == -32602
    assert session.ask("logging/setLevel", {"level": "alert"}).result == {}
    notifications = session.ask("tools/call", ECHO).notifications
    assert [entry["params"]["level"] for entry in notifications] == ["alert", "emergency"]


def test_a_resource_read_can_take_several_rounds(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    params = build_params(gateway_client, "resources/read", {})
    input_required = {
        "resultType": "input_required",
        "inputRequests": {"name": upstream.elicitation},
    }
    upstream.overrides["resources/read"] = input_required
    result = gateway_client.modern(AGENT, "resources/read", params, capabilities=ABLE).result
    assert result["resultType"] == "input_required"
    assert "cacheScope" not in result
    del upstream.overrides["resources/read"]
    retry = {"requestState": result["requestState"], "inputResponses": {}}
    completed = gateway_client.modern(
        AGENT, "resources/read", params | retry, capabilities=ABLE
    ).result
    assert (completed["resultType"], completed["cacheScope"]) == ("complete", "private")


@pytest.mark.parametrize("params", [{"name": 7}, {"name": "x", "arguments": []}, {}])
def test_parameters_of_another_type_are_refused(
    upstream: Upstream, gateway_client: GatewayClient, params: Json
) -> None:
    session = gateway_client.handshake(AGENT)
    assert session.ask("tools/call", params).error["code"] == -32602


def start_task(gateway_client: GatewayClient) -> str:
    task_id: str = gateway_client.modern(AGENT, "tools/call", WORK, capabilities=ABLE).result[
        "taskId"
    ]
    return task_id


def test_a_failed_task_has_its_error(upstream: Upstream, gateway_client: GatewayClient) -> None:
    task_id = start_task(gateway_client)
    upstream.overrides["tasks/get"] = {
        **TASK,
        "status": "failed",
        "error": {"code": -1, "message": "x"},
    }
    task = send_task_request(gateway_client, AGENT, "tasks/get", task_id, capabilities=ABLE).result
    assert (task["status"], task["error"]["code"]) == ("failed", -1)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_a_server_that_refuses_its_task_is_reported(
    upstream: Upstream, gateway_client: GatewayClient, method: str
) -> None:
    task_id = start_task(gateway_client)
    upstream.overrides[method] = ERROR
    error = send_task_request(gateway_client, AGENT, method, task_id, capabilities=ABLE).error
    assert (error["code"], error["data"]) == (ERROR["code"], ERROR["data"])
    upstream.http.respond = lambda request: raw_http_server.response(503)
    unreachable = send_task_request(gateway_client, AGENT, method, task_id, capabilities=ABLE)
    assert unreachable.code == "server_unreachable"


def test_a_task_requests_only_input_that_the_client_supports(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    task_id = start_task(gateway_client)
    waiting = {**TASK, "status": "input_required", "inputRequests": {"name": upstream.elicitation}}
    upstream.overrides["tasks/get"] = waiting
    task = send_task_request(gateway_client, AGENT, "tasks/get", task_id, capabilities=ABLE).result
    assert task["inputRequests"] == {"name": upstream.elicitation}
    unable: dict[str, Any] = {"extensions": {TASKS: {}}}
    assert (
        send_task_request(gateway_client, AGENT, "tasks/get", task_id, capabilities=unable).code
        == "protocol_error"
    )
    upstream.overrides["tasks/get"] = waiting | {"inputRequests": SAMPLE}
    assert (
        send_task_request(gateway_client, AGENT, "tasks/get", task_id, capabilities=ABLE).code
        == "protocol_error"
    )


@pytest.mark.parametrize(
    "invalid", [{"taskId": ""}, {"status": "input_required", "inputRequests": SAMPLE}]
)
def test_a_task_that_violates_the_extension_is_refused(
    upstream: Upstream, gateway_client: GatewayClient, invalid: Json
) -> None:
    task = {**TASK, "resultType": "task", "status": "working", "pollIntervalMs": 10}
    upstream.overrides["tools/call"] = task | invalid
    assert (
        gateway_client.modern(AGENT, "tools/call", WORK, capabilities=ABLE).code == "protocol_error"
    )


@METHODS
def test_forbidden_server_requests_dont_reach_the_client(
    upstream: Upstream, gateway_client: GatewayClient, method: str, params: Json
) -> None:
    params = build_params(gateway_client, method, params)
    able = ABLE | {"sampling": {}}
    for requests in ({"inputRequests": SAMPLE}, {}, {"inputRequests": SAMPLE, "requestState": "s"}):
        upstream.overrides[method] = {"resultType": "input_required", **requests}
        reply = gateway_client.modern(AGENT, method, params, capabilities=able)
        assert reply.code == "protocol_error"
        assert "inputRequests" not in reply.message.get("result", {})
        session = gateway_client.handshake(AGENT, capabilities=able)
        assert session.ask(method, params).code == "protocol_error"
