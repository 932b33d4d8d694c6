"""What servers answer with beside results: errors, logs and tasks, as clients get them."""

from collections.abc import Iterator
from typing import Any

import pytest

from agents.gateway.client_request import LOG_LEVELS
from agents.models import Agent
from bonobot.accounts.models import Organization
from tests.agents.gateway.conftest import META, Wire
from tests.agents.gateway.test_mcp_tasks import about
from tests.agents.gateway.upstream_server import ABLE, AT, TASKS, Json, Upstream, give
from tests.servers import raw_http_server

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
ECHO = {"name": "mcp_anew_echo", "arguments": {}}
WORK = {"name": "mcp_anew_work", "arguments": {}}
MINE = {"code": -32050, "data": {"why": "closed", "until": 7}}
TASK = {"taskId": "anew-1", "createdAt": AT, "lastUpdatedAt": AT, "ttlMs": 60_000}
SAMPLE = {"a": {"method": "sampling/createMessage", "params": {}}}


@pytest.fixture
def upstream(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    with Upstream("anew").listening() as found:
        give(found, acme, helper)
        yield found


METHODS = pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", ECHO),
        ("resources/read", {"uri": "anew+mem://anew"}),
        ("prompts/get", {"name": "mcp_anew_anew_greet"}),
    ],
)


def named(wire: Wire, method: str, params: Json) -> Json:
    """Return the parameters with the names that the lists have."""
    if method == "prompts/get":
        (one,) = wire.modern(AGENT, "prompts/list").result["prompts"]
        return {"name": one["name"]}
    if method == "resources/read":
        (one,) = wire.modern(AGENT, "resources/list").result["resources"]
        return {"uri": one["uri"]}
    return params


@METHODS
def test_an_error_of_the_server_is_unchanged(
    upstream: Upstream, wire: Wire, method: str, params: Json
) -> None:
    params = named(wire, method, params)
    upstream.instead[method] = MINE
    modern = wire.modern(AGENT, method, params).error
    assert (modern["code"], modern["data"]) == (MINE["code"], MINE["data"])
    older = wire.handshake(AGENT).ask(method, params).error
    assert (older["code"], older["data"]) == (MINE["code"], MINE["data"])


def test_a_not_found_error_has_the_code_of_the_clients_era(upstream: Upstream, wire: Wire) -> None:
    params = named(wire, "resources/read", {})
    upstream.instead["resources/read"] = {"code": -32002}
    assert wire.modern(AGENT, "resources/read", params).error["code"] == -32602
    assert wire.handshake(AGENT).ask("resources/read", params).error["code"] == -32002


@METHODS
def test_an_unavailable_server_is_reported_with_our_code(
    upstream: Upstream, wire: Wire, method: str, params: Json
) -> None:
    params = named(wire, method, params)
    upstream.http.respond = lambda asked: raw_http_server.response(503)
    reply = wire.modern(AGENT, method, params)
    # A tool call was sent, so it may have run.
    assert reply.code == ("outcome_unknown" if method == "tools/call" else "server_unreachable")
    assert reply.message.get("result", {"isError": True})["isError"] is True


def test_a_client_gets_log_messages_from_its_chosen_level(upstream: Upstream, wire: Wire) -> None:
    upstream.logs = [{"level": one, "data": one} for one in (*LOG_LEVELS, "loudly", ["info"])]
    stamp: Json = {f"{META}logLevel": "error"}
    told = wire.modern(AGENT, "tools/call", ECHO, meta=stamp).told
    assert [one["params"]["data"] for one in told] == list(LOG_LEVELS[LOG_LEVELS.index("error") :])
    assert wire.modern(AGENT, "tools/call", ECHO).told == []


def test_a_session_gets_log_messages_from_its_set_level(upstream: Upstream, wire: Wire) -> None:
    upstream.logs = [{"level": one, "data": one} for one in LOG_LEVELS]
    session = wire.handshake(AGENT)
    assert len(session.ask("tools/call", ECHO).told) == len(LOG_LEVELS)
    assert session.ask("logging/setLevel", {"level": "loudly"}).error["code"] == -32602
    assert session.ask("logging/setLevel", {"level": "alert"}).result == {}
    told = session.ask("tools/call", ECHO).told
    assert [one["params"]["level"] for one in told] == ["alert", "emergency"]


def test_a_resource_read_can_take_several_rounds(upstream: Upstream, wire: Wire) -> None:
    params = named(wire, "resources/read", {})
    asks = {"resultType": "input_required", "inputRequests": {"name": upstream.question}}
    upstream.instead["resources/read"] = asks
    asked = wire.modern(AGENT, "resources/read", params, capabilities=ABLE).result
    assert asked["resultType"] == "input_required"
    assert "cacheScope" not in asked
    del upstream.instead["resources/read"]
    back = {"requestState": asked["requestState"], "inputResponses": {}}
    done = wire.modern(AGENT, "resources/read", params | back, capabilities=ABLE).result
    assert (done["resultType"], done["cacheScope"]) == ("complete", "private")


@pytest.mark.parametrize("params", [{"name": 7}, {"name": "x", "arguments": []}, {}])
def test_parameters_of_another_type_are_refused(
    upstream: Upstream, wire: Wire, params: Json
) -> None:
    session = wire.handshake(AGENT)
    assert session.ask("tools/call", params).error["code"] == -32602


def task(wire: Wire) -> str:
    number: str = wire.modern(AGENT, "tools/call", WORK, capabilities=ABLE).result["taskId"]
    return number


def test_a_failed_task_has_its_error(upstream: Upstream, wire: Wire) -> None:
    number = task(wire)
    upstream.instead["tasks/get"] = {
        **TASK,
        "status": "failed",
        "error": {"code": -1, "message": "x"},
    }
    found = about(wire, AGENT, "tasks/get", number, capabilities=ABLE).result
    assert (found["status"], found["error"]["code"]) == ("failed", -1)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_a_server_that_refuses_its_task_is_reported(
    upstream: Upstream, wire: Wire, method: str
) -> None:
    number = task(wire)
    upstream.instead[method] = MINE
    found = about(wire, AGENT, method, number, capabilities=ABLE).error
    assert (found["code"], found["data"]) == (MINE["code"], MINE["data"])
    upstream.http.respond = lambda asked: raw_http_server.response(503)
    away = about(wire, AGENT, method, number, capabilities=ABLE)
    assert away.code == "server_unreachable"


def test_a_task_requests_only_input_that_the_client_supports(
    upstream: Upstream, wire: Wire
) -> None:
    number = task(wire)
    waits = {**TASK, "status": "input_required", "inputRequests": {"name": upstream.question}}
    upstream.instead["tasks/get"] = waits
    found = about(wire, AGENT, "tasks/get", number, capabilities=ABLE).result
    assert found["inputRequests"] == {"name": upstream.question}
    unable: dict[str, Any] = {"extensions": {TASKS: {}}}
    assert about(wire, AGENT, "tasks/get", number, capabilities=unable).code == "protocol_error"
    upstream.instead["tasks/get"] = waits | {"inputRequests": SAMPLE}
    assert about(wire, AGENT, "tasks/get", number, capabilities=ABLE).code == "protocol_error"


@pytest.mark.parametrize(
    "wrong", [{"taskId": ""}, {"status": "input_required", "inputRequests": SAMPLE}]
)
def test_a_task_that_violates_the_extension_is_refused(
    upstream: Upstream, wire: Wire, wrong: Json
) -> None:
    made = {**TASK, "resultType": "task", "status": "working", "pollIntervalMs": 10}
    upstream.instead["tools/call"] = made | wrong
    assert wire.modern(AGENT, "tools/call", WORK, capabilities=ABLE).code == "protocol_error"


@METHODS
def test_forbidden_server_requests_dont_reach_the_client(
    upstream: Upstream, wire: Wire, method: str, params: Json
) -> None:
    params = named(wire, method, params)
    able = ABLE | {"sampling": {}}
    for asks in ({"inputRequests": SAMPLE}, {}, {"inputRequests": SAMPLE, "requestState": "s"}):
        upstream.instead[method] = {"resultType": "input_required", **asks}
        reply = wire.modern(AGENT, method, params, capabilities=able)
        assert reply.code == "protocol_error"
        assert "inputRequests" not in reply.message.get("result", {})
        session = wire.handshake(AGENT, capabilities=able)
        assert session.ask(method, params).code == "protocol_error"
