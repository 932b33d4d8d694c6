"""The connector's specification: its three methods over REST, and a selection of capabilities."""

import pytest

from bonobot.accounts.roles import Role
from tests import rest
from tests.seeds.conftest import BUCKETS, WEATHER
from tests.servers.raw_http_server import response

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_three_methods_are_executed_under_access_control(acme, declare):
    server = declare("abc123", WEATHER).server
    path = f"mcp-servers/{server.pk}/execute"
    operator = rest.as_role(acme, Role.OPERATOR)
    for method in ("initialize", "tools/list"):
        assert operator.post(path, {"method": method}).status == 200
    call = {
        "method": "tools/call",
        "params": {"name": "get_weather", "arguments": {"city": "Oslo"}},
    }
    response = operator.post(path, call)
    assert (response.status, '"city": "Oslo"' in response.json["text"]) == (200, True)
    assert rest.as_role(acme, Role.AUDITOR).post(path, call).status == 403


def test_selected_capabilities_become_tools_one_to_one(acme, helper, declare):
    server = declare("aws-s3", BUCKETS).server
    operator, path = rest.as_role(acme, Role.OPERATOR), f"agents/{helper.pk}/mcp-servers"
    body = {"server_id": str(server.pk)}
    assert operator.post(path, body | {"allowed_tools": []}).code == "nothing_selected"
    assert operator.post(path, body | {"allowed_tools": ["list_buckets"]}).status == 200
    tools = operator.get(f"agents/{helper.pk}/tools").json["results"]
    allowed = {tool["tool"] for tool in tools if tool["server"] and tool["allowed"]}
    assert allowed == {"list_buckets"}


def test_a_tools_id_is_the_connector_and_its_own_name(declare, call):
    declare("abc123", WEATHER)
    assert call("mcp_abc123_get_weather", city="Oslo").text == '{"city": "Oslo"}'


def test_an_authentication_error_asks_for_valid_credentials(acme, declare):
    declared = declare("abc123", WEATHER)
    declared.http.respond = lambda request: response(401)
    result = rest.as_role(acme, Role.OPERATOR).post(f"mcp-servers/{declared.server.pk}/test").json
    assert (result["status"], result["code"]) == ("needs_reauth", "needs_reauth")
    assert result["remedy"]


def test_a_filter_names_its_values_when_it_refuses_one(acme):
    answer = rest.as_role(acme, Role.AUDITOR).get("audit?event_type=tool_call")
    assert (answer.status, answer.json["errors"][0]["code"]) == (400, "invalid_choice")
    assert "call, model, change, approval, connection" in answer.json["detail"]
