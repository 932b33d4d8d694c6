"""`bonobot mcp show`, and lists with `--watch`."""

import json

import pytest

from agents.services import attach_server
from bonobot.core.cli import watch_rows
from tests import admin_client, factories

pytestmark = pytest.mark.django_db(transaction=True)


def test_all_details_of_a_server_are_printed(bonobot, acme):
    server = admin_client.create_web_server(acme)
    admin_client.declare_tool(server, "hidden", description="Adds.\u200b\u202e")
    attach_server(
        factories.build_administrator(acme),
        factories.create_agent(acme),
        server,
        allowed_tools=["add_*"],
    )
    data = bonobot("mcp", "show", "web", "--json").json
    assert (data["transport_type"], data["approval"], data["era"]) == ("http", "manual", "")
    assert (data["allow_private"], data["sign_in"], data["only_tools"]) == (True, None, [])
    assert data["change_notices"]["state"] == "not_told"
    [agent_server] = data["agent_servers"]
    assert (agent_server["agent"], agent_server["allowed_tools"]) == ("helper", ["add_*"])
    assert sum(data["states"].values()) == 1
    assert data["definitions"][0]["findings"]
    assert [window["name"] for window in data["history"]["windows"]] == ["24h", "7d", "30d"]
    output = bonobot("mcp", "show", "web").out
    for text in ("http://127.0.0.1:9/mcp", "manual", "private address allowed", "helper", "add_*"):
        assert text in output
    assert data["definitions"][0]["findings"][0]["rule"] in output
    assert "\u202e" not in output


def test_an_unavailable_server_shows_code_and_remedy(bonobot, acme):
    admin_client.create_web_server(acme)
    bonobot("mcp", "test", "web")
    data = bonobot("mcp", "show", "web", "--json").json
    assert (data["status"], data["status_code"]) == ("error", "server_unreachable")
    assert data["status_detail"][:60] in bonobot("mcp", "show", "web").out
    assert data["history"]["connection"]["error_code"] == "server_unreachable"


@pytest.mark.parametrize("group", ["mcp", "agents"])
def test_a_list_is_watched_until_it_is_ended(bonobot, acme, monkeypatch, group):
    factories.create_agent(acme)
    admin_client.create_web_server(acme)
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) % 2 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(watch_rows, "pause", pause)
    result = bonobot(group, "list", "--watch", "--interval", "9", "--json")
    updates = [json.loads(line) for line in result.out.splitlines()]
    assert (result.status, len(updates), pauses) == (0, 2, [9, 9])
    assert updates[0] == updates[1]
    output = bonobot(group, "list", "--watch").out
    assert output.count("NAME") == 2, "in a pipe, updates are printed below each other"
