"""The browser extension's specification: pasted JSON, names with two underscores, the prompt."""

import json
import re

import pytest

from agents.admin.attach_servers import build_destination
from agents.calls.snapshots import get_snapshot_cache
from agents.llm.xml_tool_calls import insert_tools
from agents.policies.services import PolicySpec, load_policy_spec, set_policy
from agents.services import AgentSpec, update_agent
from agents.sessions.system_prompt import build_instructions, build_tool_specs
from bonobot.accounts.roles import Role
from mcp_servers.admin.review_new_servers import build_added_url
from mcp_servers.models import Definition, Server
from tests import admin_client, factories, rest
from tests.seeds.conftest import ATTACK, BUCKETS, WEATHER, tool
from tests.servers.raw_http_server import response

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = ("mcp_weather_get_weather", "mcp__weather__get_weather")


@pytest.fixture(params=["single", "double"])
def style(request, settings):
    settings.BONOBOT_TOOL_NAME_STYLE = request.param
    return request.param


def test_a_pasted_server_is_usable_after_one_button(acme, helper, listen, call):
    config = {"weather": {"url": listen((*WEATHER, tool("odd", ATTACK))).http.url}}
    root = admin_client.sign_in(acme, None)
    root.post(
        "agents_agent_paste",
        helper.pk,
        text=json.dumps(config),
        do="add",
        seen="1",
        add=["weather"],
        private=["weather"],
    )
    server = Server.objects.get()
    address = build_added_url(build_destination(helper), [server])
    root.post("mcp_servers_server_connect", server.pk)
    boxes = re.findall('name="seen" value="([^"]+)"', root.open(address))
    assert len(boxes) == 1
    root.send(address, {"seen": boxes})
    assert call(NAMES[0], city="San Francisco").text == '{"city": "San Francisco"}'
    assert server.definitions.awaiting_review().get().name == "odd"


def test_an_import_over_rest_can_approve_while_it_adds(platform, listen, acme):
    odd, gone = listen((*WEATHER, tool("odd", ATTACK))), listen(WEATHER)
    gone.http.respond = lambda request: response(503)
    urls = {"weather": odd.http.url, "gone": gone.http.url}
    config = {name: {"url": url} for name, url in urls.items()}
    off = {"url": "https://mcp.example.com/mcp", "enabled": False}
    body = {"text": json.dumps(config | {"off": off}), "allow_private": list(urls)}
    for caller, change, code in (
        (platform, {}, "no_effect"),
        (rest.as_role(acme, Role.OPERATOR), {"apply": True, "allow_private": []}, "forbidden"),
    ):
        refused = caller.post("mcp-servers/import", body | {"approve": True} | change)
        assert refused.code == code
    assert not Server.objects.exists()
    answer = platform.post("mcp-servers/import", body | {"apply": True, "approve": True})
    discoveries = {entry["name"]: entry["discovery"] for entry in answer.json["entries"]}
    weather = discoveries.pop("weather")
    assert [weather[name] for name in ("status", "tools", "pending_review")] == ["connected", 2, 1]
    assert (discoveries["gone"]["status"], discoveries["gone"]["code"]) == (
        "error",
        "server_unreachable",
    )
    assert discoveries["off"] is None
    assert [row.name for row in Definition.objects.awaiting_review()] == ["odd"]


def test_a_tool_is_called_by_names_of_both_styles(style, declare, call, helper):
    declare("weather", WEATHER)
    for name in NAMES:
        assert call(name, city="San Francisco").text == '{"city": "San Francisco"}'


def test_a_call_by_another_style_is_audited_under_the_listed_name(settings, declare, call, acme):
    settings.BONOBOT_TOOL_NAME_STYLE = "double"
    declare("weather", WEATHER)
    call(NAMES[0], city="Berlin")
    auditor = rest.as_role(acme, Role.AUDITOR)
    entries = auditor.get("audit?action=agent_tool_call").json["results"]
    assert [entry["resource_id"] for entry in entries] == [NAMES[1]]


def test_the_setting_changes_the_listed_names_of_known_tools(settings, declare, helper, acme):
    declare("weather", WEATHER)
    operator = rest.as_role(acme, Role.OPERATOR)
    path = f"agents/{helper.pk}/tools"
    listed = {}
    for style in ("single", "double", "single"):
        settings.BONOBOT_TOOL_NAME_STYLE = style
        get_snapshot_cache().load("agent", helper.pk)
        listed[style] = [t["name"] for t in operator.get(path).json["results"] if t["server"]]
    assert listed == {"single": [NAMES[0]], "double": [NAMES[1]]}


def test_rest_explains_and_calls_a_tool_by_both_names(style, declare, helper, acme):
    declare("weather", WEATHER)
    operator = rest.as_role(acme, Role.OPERATOR)
    for name in NAMES:
        explanation = operator.get(f"agents/{helper.pk}/tools/{name}/explain")
        assert (explanation.status, explanation.json["decision"]) == (200, "allow")
        response = operator.post(
            f"agents/{helper.pk}/tools/{name}/call", {"arguments": {"city": "Rome"}}
        )
        assert (response.status, response.json["outcome"]) == (200, "ok")


def test_rules_in_both_styles_decide_the_same_call(style, declare, helper, acme):
    declare("aws-s3", BUCKETS)
    administrator = factories.build_administrator(acme)
    patterns = ("mcp_aws_s3_list_buckets", "mcp__aws-s3__list_buckets", "mcp__aws-s3__list_*")
    for pattern in patterns:
        set_policy(administrator, helper, PolicySpec("allowlist", allow=(pattern,)))
        snapshot = get_snapshot_cache().load("agent", helper.pk)
        callable_names = {t.facts.own_name for t in snapshot.list_searchable_tools()}
        assert callable_names == {"list_buckets"}
    listed = {"single": "mcp_aws_s3_list_*", "double": "mcp__aws-s3__list_*"}
    assert load_policy_spec(helper).allow == (listed[style],)


def test_a_name_that_two_tools_could_have_names_neither(settings, declare, helper):
    """`list-buckets` and `list_buckets` differ only in the style that keeps `-`."""
    settings.BONOBOT_TOOL_NAME_STYLE = "double"
    tools = tuple({**BUCKETS[0], "name": name} for name in ("list-buckets", "list_buckets"))
    declare("aws-s3", tools)
    snapshot = get_snapshot_cache().load("agent", helper.pk)
    assert snapshot.find_tool("mcp_aws_s3_list_buckets") is None
    assert {snapshot.find_tool(name).facts.own_name for name in snapshot.tools if "s3" in name} == {
        "list-buckets",
        "list_buckets",
    }


def test_tools_are_listed_in_the_prompt_when_the_agent_enables_it(helper, declare, acme):
    declare("weather", WEATHER)
    administrator = factories.build_administrator(acme)
    set_policy(administrator, helper, PolicySpec("all"))
    update_agent(administrator, helper, AgentSpec(name=helper.name, tools_in_prompt=True))
    prompt = build_instructions("", get_snapshot_cache().load("agent", helper.pk), ())
    assert "## MCP Tools" in prompt
    assert "- mcp_weather_get_weather: The weather of a city.\n  - city (string)" in prompt


def test_the_tools_of_the_xml_form_are_listed_above_the_disabled_ones(helper, declare, acme):
    declare("weather", WEATHER)
    administrator = factories.build_administrator(acme)
    declare("aws-s3", BUCKETS)
    set_policy(administrator, helper, PolicySpec("allowlist", allow=("mcp_weather_*",)))
    snapshot = get_snapshot_cache().load("agent", helper.pk)
    tools = snapshot.list_searchable_tools()
    prompt = insert_tools(build_instructions("Be kind.", snapshot, ()), build_tool_specs(tools))
    places = [
        prompt.index(text)
        for text in (
            "## MCP Tools",
            '<invoke name="TOOL">',
            "- mcp_weather_get_weather: The weather of a city.",
            "Disabled, do not use: mcp_aws_s3_get_object, mcp_aws_s3_list_buckets.",
        )
    ]
    assert places == sorted(places)
