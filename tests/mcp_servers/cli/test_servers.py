"""`bonobot mcp …`, against a real server."""

import sys

import pytest

from agents.builtin_tools.registry import BUILTIN_TOOLS
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Secret, Server
from tests import factories
from tests.agents.conftest import WORKSHOP

pytestmark = pytest.mark.django_db(transaction=True)

COMMAND = f"{sys.executable} {WORKSHOP} stdio"


@pytest.fixture(autouse=True)
def _close(acme):
    yield
    for server in Server.objects.all():
        get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def workshop(bonobot):
    result = bonobot("mcp", "add", "workshop", "--command", COMMAND, "--approve", "--json")
    assert result.status == 0, result.err
    return result.json


def test_a_server_is_added_discovered_and_approved_in_one_step(workshop):
    assert (workshop["status"], workshop["scope"], workshop["pending_review"]) == (
        "connected",
        "pool",
        0,
    )
    assert workshop["tools"] == 8


def test_without_approve_the_definitions_are_pending_review(bonobot):
    result = bonobot("mcp", "add", "workshop", "--command", COMMAND, "--json")
    assert result.json["pending_review"] == 9
    assert "bonobot mcp approve workshop" in bonobot("mcp", "refresh", "workshop").out
    assert len(bonobot("mcp", "approve", "workshop", "echo", "--json").json["approved"]) == 1
    assert len(bonobot("mcp", "approve", "workshop", "--json").json["approved"]) == 8


def test_a_server_of_an_agent_is_private_and_attached(bonobot, acme):
    agent = factories.create_agent(acme)
    result = bonobot("mcp", "add", "own", "--command", COMMAND, "--agent", agent.slug, "--json")
    assert result.json["scope"] == "agent"
    assert agent.agent_servers.get().server.name == "own"


def test_environment_variables_are_expanded_and_encrypted(bonobot, monkeypatch):
    monkeypatch.setenv("WORKSHOP_KEY", "s3cret")
    result = bonobot(
        "mcp", "add", "w", "--command", COMMAND, "--env", "KEY=${WORKSHOP_KEY}", "--json"
    )
    assert result.json["endpoint_config"]["env"] == {"KEY": "********"}
    assert Secret.objects.get(name="KEY").value.open() == "s3cret"
    assert "s3cret" not in result.out


def test_a_dangerous_variable_is_allowed_with_a_reason(bonobot):
    arguments = ("mcp", "add", "w", "--command", COMMAND, "--env", "PYTHONUTF8=1", "--json")
    assert bonobot(*arguments).error["code"] == "variable_not_allowed"
    allowed = bonobot(*arguments, "--allow-env", "PYTHONUTF8=it prints umlauts")
    assert allowed.status == 0, allowed.err
    assert allowed.json["env_exceptions"] == {"PYTHONUTF8": "it prints umlauts"}
    assert "PYTHONUTF8: it prints umlauts" in bonobot("mcp", "show", "w").out


def test_an_undefined_variable_can_have_a_default(bonobot, monkeypatch):
    monkeypatch.delenv("WORKSHOP_MODE", raising=False)
    option = "MODE=${WORKSHOP_MODE:-calm}"
    assert bonobot("mcp", "add", "w", "--command", COMMAND, "--env", option).status == 0
    assert Secret.objects.get(name="MODE").value.open() == "calm"


@pytest.mark.parametrize("value", ["${NOT_DEFINED_ANYWHERE}", "${BONOBOT_VAR}", "${DATABASE_URL}"])
def test_undefined_variables_and_those_of_bonobot_are_refused(bonobot, monkeypatch, value):
    monkeypatch.setenv("DATABASE_URL", "sqlite:///x")
    result = bonobot("mcp", "add", "w", "--command", COMMAND, "--env", f"K={value}", "--json")
    assert (result.status, result.error["code"]) == (1, "undefined_variable")
    assert not Server.objects.exists()


REFUSED = {
    "a private address": (("--url", "http://127.0.0.1:9/mcp"), "private_address"),
    "a bad url": (("--url", "nonsense"), "bad_url"),
    "a command not on the list": (("--command", "rm -rf /"), "launcher_not_allowed"),
    "a preset that isn't there": (("--preset", "nothing"), "not_found"),
    "a header without a value": (("--url", "https://e.example/mcp", "--header", "X"), "invalid"),
}


@pytest.mark.parametrize(("options", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_values_are_refused_and_nothing_is_written(bonobot, options, code):
    result = bonobot("mcp", "add", "x", *options, "--json")
    assert (result.status, result.error["code"]) == (1, code)
    assert not Server.objects.exists()


def test_an_unavailable_server_stays_registered_and_the_error_has_a_remedy(bonobot):
    result = bonobot("mcp", "add", "away", "--url", "http://127.0.0.1:9/mcp", "--allow-private")
    assert result.status == 1
    assert "server_unreachable" in result.err
    assert "bonobot mcp refresh away" in result.out
    assert bonobot("mcp", "list", "--json").json[0]["status"] == "error"


def test_a_tool_is_called_through_the_call_pipeline(bonobot, workshop):
    result = bonobot("mcp", "test-tool", "workshop", "add", '{"a": 1, "b": 2}', "--json")
    assert (result.status, result.json["outcome"], result.json["text"]) == (0, "ok", "3")
    (row,) = bonobot("audit", "list", "--limit", "1", "--json").json
    assert (row["action"], row["tool"], row["outcome"]) == ("tool_call", "add", "ok")
    assert row["actor"].startswith("cli:")


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("nothing", "{}", "unknown_tool"),
        ("echo", "{}", "invalid_arguments"),
        ("echo", "{broken", "broken_json"),
        ("echo", "[]", "invalid_arguments"),
    ],
)
def test_a_call_with_invalid_arguments_fails_with_its_code(
    bonobot, workshop, tool, arguments, code
):
    result = bonobot("mcp", "test-tool", "workshop", tool, arguments, "--json")
    assert (result.status, result.error["code"]) == (1, code)


def test_a_tool_error_has_exit_status_1(bonobot, workshop):
    result = bonobot("mcp", "test-tool", "workshop", "fail", '{"reason": "no"}', "--json")
    assert (result.status, result.json["is_error"], result.json["text"]) == (1, True, "no")


def test_a_test_prints_tools_and_latency(bonobot, workshop):
    data = bonobot("mcp", "test", "workshop", "--json").json
    assert (data["status"], data["tools_discovered"]) == ("connected", 8)
    assert data["latency_ms"] >= 0


def test_a_server_is_disabled_enabled_and_deleted(bonobot, workshop):
    assert bonobot("mcp", "disable", "workshop", "--json").json["status"] == "disabled"
    result = bonobot("mcp", "test-tool", "workshop", "echo", '{"text": "x"}', "--json")
    assert result.error["code"] == "server_disabled"
    assert bonobot("mcp", "enable", "workshop", "--json").json["enabled"] is True
    assert bonobot("mcp", "remove", "workshop", "--json").status == 0
    assert bonobot("mcp", "list", "--json").json == []
    assert "No servers yet" in bonobot("mcp", "list").out


def test_showing_a_server_lists_its_definitions(bonobot, workshop):
    data = bonobot("mcp", "show", "workshop", "--json").json
    assert {"kind": "tool", "name": "echo", "state": "approved"}.items() <= next(
        d for d in data["definitions"] if d["name"] == "echo"
    ).items()
    assert "echo" in bonobot("mcp", "show", "workshop").out


def test_an_unknown_server_is_reported(bonobot):
    result = bonobot("mcp", "show", "nothing", "--json")
    assert (result.status, result.error["code"]) == (1, "not_found")


def test_tools_of_servers_and_built_in_tools_are_listed(bonobot, workshop):
    all_tools = {tool["name"] for tool in bonobot("tools", "list", "--json").json}
    server_tools = {tool["name"] for tool in bonobot("tools", "list", "--mcp", "--json").json}
    assert all_tools - server_tools == set(BUILTIN_TOOLS)
    assert "echo" in server_tools
