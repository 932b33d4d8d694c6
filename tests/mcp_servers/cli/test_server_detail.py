"""`bonobot mcp show`, and lists that are watched."""

import json

import pytest

from agents.services import attach_server
from bonobot.core.cli import command_group
from tests import admin_client, factories

pytestmark = pytest.mark.django_db(transaction=True)


def test_all_details_of_a_server_are_printed(bonobot, acme):
    server = admin_client.web_server(acme)
    admin_client.offer(server, "hidden", description="Adds.\u200b\u202e")
    attach_server(
        factories.build_administrator(acme),
        factories.create_agent(acme),
        server,
        allowed_tools=["add_*"],
    )
    found = bonobot("mcp", "show", "web", "--json").json
    assert (found["transport_type"], found["approval"], found["era"]) == ("http", "manual", "")
    assert (found["allow_private"], found["sign_in"], found["only_tools"]) == (True, None, [])
    assert found["change_notices"]["state"] == "not_told"
    [bound] = found["agent_servers"]
    assert (bound["agent"], bound["allowed_tools"]) == ("helper", ["add_*"])
    assert sum(found["states"].values()) == 1
    assert found["definitions"][0]["findings"]
    assert [one["name"] for one in found["history"]["windows"]] == ["24h", "7d", "30d"]
    told = bonobot("mcp", "show", "web").out
    for text in ("http://127.0.0.1:9/mcp", "manual", "private address allowed", "helper", "add_*"):
        assert text in told
    assert found["definitions"][0]["findings"][0]["rule"] in told
    assert "\u202e" not in told


def test_an_unavailable_server_shows_code_and_remedy(bonobot, acme):
    admin_client.web_server(acme)
    bonobot("mcp", "test", "web")
    shown = bonobot("mcp", "show", "web", "--json").json
    assert (shown["status"], shown["status_code"]) == ("error", "server_unreachable")
    assert shown["status_detail"][:60] in bonobot("mcp", "show", "web").out
    assert shown["history"]["connection"]["error_code"] == "server_unreachable"


@pytest.mark.parametrize("group", ["mcp", "agents"])
def test_a_list_is_watched_until_it_is_ended(bonobot, acme, monkeypatch, group):
    factories.create_agent(acme)
    admin_client.web_server(acme)
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) % 2 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(command_group, "pause", pause)
    ran = bonobot(group, "list", "--watch", "--interval", "9", "--json")
    looks = [json.loads(line) for line in ran.out.splitlines()]
    assert (ran.status, len(looks), pauses) == (0, 2, [9, 9])
    assert looks[0] == looks[1]
    told = bonobot(group, "list", "--watch").out
    assert told.count("NAME") == 2, "in a pipe one look stands below the other"
