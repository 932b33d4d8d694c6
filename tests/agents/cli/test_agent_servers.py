"""`bonobot mcp status|connect|disconnect|tools`, with a real server and a real agent."""

import json
import sys

import pytest

from bonobot.core.cli import watch_rows
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
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
    return Server.objects.get(name="workshop")


def test_status_shows_state_latency_and_the_last_error(bonobot, workshop):
    bonobot("mcp", "add", "away", "--url", "http://127.0.0.1:9/mcp", "--allow-private")
    servers = {server["name"]: server for server in bonobot("mcp", "status", "--json").json}
    assert servers["workshop"]["status"] == "connected"
    assert servers["workshop"]["latency_ms"] >= 0
    assert (servers["away"]["status"], servers["away"]["code"]) == ("error", "server_unreachable")
    assert servers["away"]["failures"] == 1
    text = bonobot("mcp", "status").out
    assert "server_unreachable" in text
    assert "s ago" in text
    assert "never" in text


def test_status_can_be_limited_to_servers_or_an_agent(bonobot, workshop, acme):
    agent = factories.create_agent(acme)
    factories.approve_server(acme, factories.create_stdio_server(acme), agent)
    assert [server["name"] for server in bonobot("mcp", "status", "workshop", "--json").json] == [
        "workshop"
    ]
    servers = bonobot("mcp", "status", "--agent", agent.slug, "--json").json
    assert [server["name"] for server in servers] == ["time"]


def test_watch_shows_changes_until_it_is_interrupted(bonobot, workshop, monkeypatch):
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt
        Server.objects.update(status="error")

    monkeypatch.setattr(watch_rows, "pause", pause)
    result = bonobot("mcp", "status", "--watch", "--interval", "0", "--json")
    statuses = [json.loads(line)[0]["status"] for line in result.out.splitlines()]
    assert (result.status, statuses) == (0, ["connected", "error"])
    assert pauses == [watch_rows.MIN_INTERVAL_S] * 2
    pauses.clear()
    assert "workshop" in bonobot("mcp", "status", "--watch").out


def test_disconnecting_and_connecting_apply_to_the_next_call(bonobot, workshop):
    call = ("mcp", "test-tool", "workshop", "echo", '{"text": "x"}', "--json")
    assert bonobot("mcp", "disconnect", "workshop", "--json").json["status"] == "disabled"
    assert bonobot(*call).error["code"] == "server_disabled"
    connected = bonobot("mcp", "connect", "workshop", "--json").json
    assert (connected["status"], connected["discovery"]["tools"]) == ("connected", 8)
    assert bonobot(*call).json["text"] == "x"


def test_a_disabled_server_isnt_connected_to_an_agent(bonobot, workshop, acme):
    agent = factories.create_agent(acme)
    bonobot("mcp", "disable", "workshop")
    result = bonobot("mcp", "connect", "workshop", "--agent", agent.slug, "--json")
    assert (result.status, result.error["code"]) == (1, "server_disabled")
    assert result.error["remedy"] == "Disabled servers can't be attached. Enable it first."
    assert not agent.agent_servers.exists()


def test_connecting_an_unavailable_server_fails_with_its_code(bonobot):
    bonobot("mcp", "add", "away", "--url", "http://127.0.0.1:9/mcp", "--allow-private")
    result = bonobot("mcp", "connect", "away", "--json")
    assert (result.status, result.json["discovery"]["code"]) == (1, "server_unreachable")


def test_disconnecting_one_agent_disables_the_attachment_and_keeps_its_tools(
    bonobot, workshop, acme
):
    agent = factories.create_agent(acme)
    result = bonobot("mcp", "disconnect", "workshop", "--agent", agent.slug, "--json")
    assert (result.status, result.error["code"]) == (1, "not_attached")
    assert bonobot("mcp", "connect", "workshop", "--agent", agent.slug).status == 0
    agent.agent_servers.update(allowed_tools=["echo"])
    tools = bonobot("agents", "policy", agent.slug, "--json").json["tools"]
    assert "mcp_workshop_echo" in {tool["name"] for tool in tools if tool["allowed"]}
    result = bonobot("mcp", "disconnect", "workshop", "--agent", agent.slug, "--json")
    assert result.json == {"agent": agent.slug, "server": "workshop", "connected": False}
    tools = bonobot("agents", "policy", agent.slug, "--json").json["tools"]
    assert "mcp_workshop_echo" not in {tool["name"] for tool in tools if tool["allowed"]}
    bonobot("mcp", "connect", "workshop", "--agent", agent.slug)
    agent_server = agent.agent_servers.get()
    assert (agent_server.enabled, agent_server.allowed_tools) == (True, ["echo"])
    workshop.refresh_from_db()
    assert workshop.enabled


def test_tools_are_listed_enabled_and_disabled_by_name_or_pattern(bonobot, workshop):
    tools = bonobot("mcp", "tools", "workshop", "--json").json
    assert {"name": "echo", "state": "approved", "enabled": True}.items() <= next(
        tool for tool in tools if tool["name"] == "echo"
    ).items()
    result = bonobot("mcp", "tools", "workshop", "--disable", "*", "--enable", "echo", "--json")
    assert [tool["name"] for tool in result.json if tool["enabled"]] == ["echo"]
    result = bonobot("mcp", "test-tool", "workshop", "add", '{"a": 1, "b": 2}', "--json")
    assert (result.status, result.error["code"]) == (1, "tool_disabled")
    assert "disabled" in bonobot("mcp", "tools", "workshop").out
    result = bonobot("mcp", "tools", "workshop", "--enable", "nothing", "--json")
    assert (result.status, result.error["code"]) == (1, "unknown_tool")


def test_an_agent_gets_the_selected_tools_and_at_least_one(bonobot, workshop, acme):
    agent = factories.create_agent(acme)
    connect = ("mcp", "connect", "workshop", "--agent", agent.slug)
    assert bonobot(*connect, "--tools", "e*", "--without", "environment").status == 0
    tools = bonobot("agents", "policy", agent.slug, "--json").json["tools"]
    allowed = {tool["name"] for tool in tools if tool["allowed"]}
    assert "read_result" in allowed  # all built-in tools stay allowed
    assert {name for name in allowed if name.startswith("mcp_")} == {"mcp_workshop_echo"}
    result = bonobot(*connect, "--tools", "echo,nothing_*", "--json")
    assert (result.status, result.error["code"], result.error["field"]) == (
        1,
        "unknown_tool",
        "--tools",
    )
    result = bonobot(*connect, "--tools", " , ", "--json")
    assert (result.status, result.error["code"]) == (1, "nothing_selected")
    assert agent.agent_servers.get().allowed_tools == ["e*"]
    bonobot(*connect, "--tools", "add, echo")
    agent_server = agent.agent_servers.get()
    assert (agent_server.allowed_tools, agent_server.denied_tools) == (
        ["add", "echo"],
        ["environment"],
    )
    bonobot(*connect, "--tools", "*")
    assert agent.agent_servers.get().allowed_tools == []
    assert bonobot("mcp", "connect", "workshop", "--tools", "add", "--json").status == 1
