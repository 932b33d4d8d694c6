"""The integration's specification: REST paths and shapes, secrets, policies, the audit trail."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from agents.calls.pipeline import CallRefused
from agents.models import Agent
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.principals import build_token_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.problems import Forbidden
from mcp_servers.models import Server
from tests import factories, rest
from tests.rest import RestClient
from tests.seeds.conftest import ATTACK, BUCKETS, WEATHER, tool
from tests.servers import minimal_server
from tests.servers.raw_http_server import response

pytestmark = pytest.mark.django_db(transaction=True)

AWS = {
    "name": "aws-s3",
    "transport_type": "stdio",
    "endpoint_config": {
        "command": "npx",
        "args": ["-y", "@aws/mcp-server-s3"],
        "env": {"AWS_REGION": "us-east-1"},
    },
    "auth_config": {"type": "none"},
    "enabled": True,
}
REMOTE = {
    "name": "remote",
    "transport_type": "http",
    "endpoint_config": {
        "url": "https://mcp.example.com/sse",
        "headers": {"X-Custom-Header": "value"},
    },
    "auth_config": {"type": "bearer_token", "token": "xxxxx"},
}


@pytest.fixture
def path(helper: Agent) -> str:
    return f"agents/{helper.pk}/mcp-servers"


@pytest.fixture
def operator(acme: Organization, helper: Agent) -> RestClient:
    return rest.as_role(acme, Role.OPERATOR)


def test_a_platform_administrators_token_can_add_the_example(platform, path):
    created = platform.post(path, AWS)
    assert created.status == 201
    server = platform.get(f"{path}/{created.json['id']}").json
    assert server["endpoint_config"]["args"] == AWS["endpoint_config"]["args"]
    assert server["auth_config"] == {"type": "none", "configured": False}


def test_other_callers_are_refused_with_the_required_role(acme, operator, path):
    for caller in (operator, rest.as_role(acme, Role.OWNER)):
        response = caller.post(path, AWS)
        assert (response.status, response.code) == (403, "platform_admin_only")
        assert "preset" in response.json["remedy"]
        assert "scope `platform`" in response.json["remedy"]


def test_only_a_platform_administrator_creates_such_a_token(acme, platform):
    owner = factories.create_member(acme, Role.OWNER)
    token = build_token_principal(Token.objects.get(name="platform"))
    for principal in (owner, token):
        with pytest.raises(Forbidden) as caught:
            create_token(principal, name="mine", role=Role.OWNER, scopes=["platform"])
        assert caught.value.code == "platform_admin_only"
    token_id = Token.objects.get(name="platform").pk
    response = rest.as_role(acme, Role.OWNER).patch(f"tokens/{token_id}", {"name": "mine"})
    assert response.code == "platform_admin_only"
    body = {"name": "mine", "role": "owner", "scopes": ["platform"]}
    assert rest.as_role(acme, Role.OWNER).post("tokens", body).code == "platform_admin_only"


def test_the_scope_is_for_rest_only(platform):
    token = Token.objects.get(name="platform")
    assert build_token_principal(token).platform_admin
    over_mcp = build_token_principal(token, with_platform=False)
    assert not over_mcp.platform_admin
    assert over_mcp.scopes == frozenset()


@pytest.mark.parametrize("body", [AWS, REMOTE], ids=["stdio", "http"])
def test_a_put_accepts_what_a_get_returned(platform, path, body):
    created = platform.post(path, body)
    server_path = f"{path}/{created.json['id']}"
    fetched = platform.get(server_path)
    response = platform.put(server_path, fetched.json)
    assert response.status == 200
    volatile = {"updated_at", "version"}
    assert {name: response.json[name] for name in response.json.keys() - volatile} == {
        name: fetched.json[name] for name in fetched.json.keys() - volatile
    }


def test_a_put_changes_what_its_agent_can_use(platform, path, helper):
    created = platform.post(path, REMOTE)
    response = platform.put(
        f"{path}/{created.json['id']}", created.json | {"denied_tools": ["delete_*"]}
    )
    assert (response.status, response.json["denied_tools"]) == (200, ["delete_*"])
    assert helper.agent_servers.get().denied_tools == ["delete_*"]


def test_a_put_still_refuses_unknown_fields(platform, path):
    created = platform.post(path, REMOTE)
    response = platform.put(f"{path}/{created.json['id']}", created.json | {"colour": "blue"})
    assert (response.status, response.json["errors"][0]["code"]) == (400, "unknown_field")


def test_attaching_again_changes_only_the_named_fields(operator, path, declare, helper):
    server = declare("aws-s3", BUCKETS).server
    choice = {"allowed_tools": ["list_buckets"], "denied_tools": ["get_object"]}
    assert operator.post(path, {"server_id": str(server.pk)} | choice).status == 200
    response = operator.post(path, {"server_id": str(server.pk), "enabled": False})
    assert {name: response.json[name] for name in choice} == choice
    assert not response.json["enabled"]


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"auth_config": {"type": "bearer_token", "token": "x"}}, "no_effect", "auth_config.type"),
        ({"enabled": "yes"}, "invalid", "enabled"),
    ],
)
def test_an_input_without_effect_is_refused(platform, path, change, code, field):
    response = platform.post(path, AWS | change)
    error = response.json["errors"][0] if "errors" in response.json else response.json
    assert (response.status, error["code"], error["field"]) == (400, code, field)


def test_an_api_key_needs_the_header_it_is_sent_in(platform, path):
    response = platform.post(path, REMOTE | {"auth_config": {"type": "api_key", "key": "x"}})
    assert (response.status, response.code, response.json["field"]) == (
        *(400, "missing_value"),
        "auth_config.header",
    )


def test_a_missing_folder_is_named_as_the_cause(platform, path):
    config = {"command": "python3", "args": ["-V"], "cwd": "/opt/mcp-servers/missing"}
    created = platform.post(path, AWS | {"endpoint_config": config})
    result = platform.post(f"{path}/{created.json['id']}/test").json
    assert result["status"] == "error"
    assert "`/opt/mcp-servers/missing` doesn't exist" in result["detail"]
    assert "cwd" in result["remedy"]


def test_a_silent_server_is_distinguished_from_an_unreachable_one(
    settings, platform, path, declare
):
    """The remedy mentions no firewall if the connection was accepted."""
    settings.BONOBOT_READ_S = settings.BONOBOT_CONNECT_S = settings.BONOBOT_START_S = 0.2
    declared = declare("silent", BUCKETS, approve=False)
    declared.http.respond = lambda request: b""
    body = {"name": "mute", "transport_type": "http", "allow_private": True}
    created = platform.post(path, body | {"endpoint_config": {"url": declared.http.url}})
    result = platform.post(f"{path}/{created.json['id']}/test").json
    assert result["status"] == "error"
    assert "firewall" not in result["remedy"]
    assert "accepted the connection" in result["detail"]


def test_a_rule_for_a_tool_that_doesnt_exist_is_a_warning(bonobot, helper, declare):
    declare("aws-s3", BUCKETS)
    rules = ("mcp_aws_s3_list_buckets", "mcp_aws_s3_put_object", "no_such_tool", "mcp_aws_s3_x*")
    options = [part for rule in rules for part in ("--allow", rule)]
    result = bonobot("agents", "policy", "helper", "--mode", "allowlist", *options)
    assert result.status == 0
    names = [line.split("`")[1] for line in result.err.splitlines() if line.startswith("!")]
    assert names == ["mcp_aws_s3_put_object", "no_such_tool"]


def test_explain_distinguishes_a_detached_server_from_an_unknown_tool(
    acme, helper, declare, bonobot
):
    declare("aws-s3", BUCKETS)
    declare("weather", WEATHER, approve=False)
    operator = rest.as_role(acme, Role.OPERATOR)
    cases = {
        "mcp_weather_get_weather": ("not_attached", "mcp connect weather --agent helper"),
        "mcp__weather__get_weather": ("not_attached", "mcp connect weather --agent helper"),
        "mcp_aws_s3_put_object": ("unknown_tool", "mcp refresh aws-s3"),
        "mcp_nothing_at_all": ("unknown_tool", "List the agent's tools"),
    }
    for name, (code, remedy) in cases.items():
        response = operator.get(f"agents/{helper.pk}/tools/{name}/explain")
        assert (response.status, response.code) == (404, code)
        assert remedy in response.json["remedy"]
        result = bonobot("agents", "explain", "helper", name, "--json")
        assert result.error["code"] == code


def test_a_servers_state_follows_its_last_call_at_once(acme, helper, declare, call):
    declared = declare("aws-s3", BUCKETS)
    operator, path = rest.as_role(acme, Role.OPERATOR), f"mcp-servers/{declared.server.pk}"
    answer, declared.http.respond = declared.http.respond, lambda request: response(401)
    assert call("mcp_aws_s3_list_buckets").outcome == "error"
    assert operator.get(path).json["status"] == "needs_reauth"
    declared.http.respond = answer
    assert call("mcp_aws_s3_list_buckets").outcome == "ok"
    assert operator.get(path).json["status"] == "connected"


def add(url, **more):
    config = {"name": "aws-s3", "transport_type": "http", "endpoint_config": {"url": url}}
    return config | {"allow_private": True} | more


def test_a_server_is_usable_at_once_if_its_review_is_part_of_adding(platform, path, listen, call):
    declared = listen((*BUCKETS, tool("odd", ATTACK)))
    made = platform.post(path, add(declared.http.url, approve=True))
    assert (made.status, made.json["status"], made.json["pending_review"]) == (201, "connected", 1)
    assert call("mcp_aws_s3_list_buckets").outcome == "ok"
    with pytest.raises(CallRefused) as refused:
        call("mcp_aws_s3_odd")
    assert refused.value.code == "not_approved"


def test_the_result_of_a_failed_discovery_is_in_the_answer(platform, listen):
    declared = listen(BUCKETS)
    declared.http.respond = lambda asked: response(401)
    made = platform.post("mcp-servers", add(declared.http.url, approve=True))
    assert (made.status, made.json["status"], made.json["tools"]) == (201, "needs_reauth", 0)


def test_review_as_part_of_adding_needs_the_permission_to_review(acme, path, platform, listen):
    url = listen(BUCKETS).http.url
    operator = rest.as_role(acme, Role.OPERATOR)
    body = REMOTE | {"approve": True}
    for where in (path, "mcp-servers"):
        answer = operator.post(where, body)
        assert (answer.status, answer.code) == (403, "forbidden")
    refused = platform.post(path, add(url, approve=True, enabled=False))
    assert (refused.status, refused.code, refused.json["field"]) == (400, "no_effect", "approve")
    assert not Server.objects.exists()
    made = platform.post("mcp-servers", add(url))
    platform.post(f"mcp-servers/{made.json['id']}/refresh")
    assert platform.get(f"mcp-servers/{made.json['id']}").json["pending_review"] == len(BUCKETS)


def test_a_template_is_usable_at_once(acme, platform, path, call):
    script = Path(minimal_server.__file__)
    preset = {
        "name": "Greeter",
        "transport_type": "stdio",
        "endpoint_config": {"command": sys.executable, "args": [str(script)]},
    }
    slug = platform.post("presets", preset).json["slug"]
    made = platform.post(path, {"preset": slug, "approve": True})
    assert (made.status, made.json["status"], made.json["pending_review"]) == (201, "connected", 0)
    assert call("mcp_greeter_greet", name="Ada").text == "Hello, Ada."


def test_a_session_refreshes_an_expired_catalog_and_warns_of_servers_that_are_away(declare, run):
    buckets, weather = declare("aws-s3", BUCKETS), declare("weather", WEATHER)
    buckets.tools = (*BUCKETS, tool("put_object"))
    weather.http.respond = lambda asked: response(503)
    Server.objects.update(discovered_at=timezone.now() - timedelta(days=2))
    session = run("hello")
    notices = session.steps.filter(kind="notice").values_list("payload__text", flat=True)
    assert list(notices) == ["The server weather is not reachable now."]
    assert buckets.server.definitions.awaiting_review().get().name == "put_object"


def test_a_calls_parent_is_the_entry_of_the_turn_that_requested_it(
    acme, helper, declare, runner, run
):
    declare("aws-s3", BUCKETS)
    run("call mcp_aws_s3_list_buckets")
    auditor = rest.as_role(acme, Role.AUDITOR)
    entries = auditor.get("audit?ordering=seq").json["results"]
    turns = [entry["id"] for entry in entries if entry["action"] == "agent_model_turn"]
    (call_id,) = [entry["id"] for entry in entries if entry["action"] == "agent_tool_call"]
    call = auditor.get(f"audit/{call_id}").json
    assert call["details"]["parent_execution"] == call["parent_id"]
    assert call["parent_id"] in turns
    assert call["resource_type"] == "mcp_tool"
