"""How it stands with change notices, in every state that a person can see."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from bonobot.lib.problems import Problem
from bonobot.tenancy.roles import Role
from mcp_servers import watch_leases
from mcp_servers.models import Server, Watch
from mcp_servers.standing import standing
from tests.agents import casting

TOLD = {"tools": {"listChanged": True}, "prompts": {"listChanged": True}, "resources": {}}
ME = uuid4()


@pytest.fixture
def server(db):
    return casting.http_server(casting.organization(), "http://127.0.0.1:9/mcp")


def state(server):
    return standing(Server.objects.get(pk=server.pk)).state


def test_only_servers_that_tell_changes_are_claimed(server):
    assert state(server) == "not_told"
    watch_leases.declare(server, {"tools": {}})
    assert (state(server), Watch.objects.count()) == ("not_told", 0)
    assert watch_leases.claim(ME, 10) == []
    watch_leases.declare(server, TOLD)
    assert Watch.objects.get().asks == "prompts tools"
    assert state(server) == "unwatched"
    assert watch_leases.claim(ME, 10) == [server.pk]
    watch_leases.declare(server, {})
    assert state(server) == "not_told"
    assert watch_leases.held(ME) == []


def test_a_stdio_server_is_heard_while_it_runs(db):
    server = casting.stdio_server(casting.organization())
    watch_leases.declare(server, TOLD)
    assert (state(server), Watch.objects.count()) == ("while_running", 0)


def test_a_stream_from_its_opening_to_its_refusal(server):
    watch_leases.declare(server, TOLD)
    watch_leases.claim(ME, 1)
    assert state(server) == "opening"
    assert watch_leases.opened(ME, server.pk)
    assert state(server) == "listening"
    assert standing(Server.objects.get()).since is not None
    watch_leases.lost(ME, server.pk, Problem("Gone.", code="server_unreachable", remedy="Look."))
    found = standing(Server.objects.get())
    assert (found.state, found.code, found.detail) == ("lost", "server_unreachable", "Gone. Look.")
    assert found.since is None
    watch_leases.refuse(ME, server.pk, Problem("None.", code="not_offered"))
    assert (state(server), watch_leases.claim(ME, 1)) == ("refused", [])
    watch_leases.declare(server, TOLD)
    assert watch_leases.claim(ME, 1) == [server.pk]


def test_a_holder_that_beats_keeps_its_lease(server):
    watch_leases.declare(server, TOLD)
    watch_leases.claim(ME, 1)
    Watch.objects.update(beat_at=timezone.now() - timedelta(minutes=1))
    assert state(server) == "unwatched"
    watch_leases.beat(ME)
    assert watch_leases.claim(uuid4(), 1) == []
    watch_leases.let_go(ME)
    assert watch_leases.claim(uuid4(), 1) == [server.pk]


def test_a_server_that_is_off_is_let_go(server):
    watch_leases.declare(server, TOLD)
    watch_leases.claim(ME, 1)
    Server.objects.update(enabled=False)
    assert watch_leases.held(ME) == []
    assert (state(server), Watch.objects.get().holder) == ("disabled", None)


def test_the_api_shows_it(server, client):
    boss = casting.person(server.organization, Role.OWNER)
    client.login(username=boss.label, password="pw-for-tests")
    watch_leases.declare(server, TOLD)
    watch_leases.claim(ME, 1)
    watch_leases.opened(ME, server.pk)
    shown = client.get(f"/api/mcp-servers/{server.pk}").json()["change_notices"]
    assert (shown["state"], shown["last_notice_at"]) == ("listening", None)
    assert shown["since"]
    page = client.get(f"/admin/mcp_servers/server/{server.pk}/change/").content.decode()
    assert "listening" in page
