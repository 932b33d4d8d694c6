"""`bonobot mcp history`."""

from bonobot.core.problems import Problem
from mcp_servers.health.services import record_contact, record_failure
from mcp_servers.models import HealthCheck, Server
from tests import admin_client


def test_the_history_of_a_server_is_printed(bonobot, acme):
    server = admin_client.web_server(acme)
    assert "No checks in this period" in bonobot("mcp", "history", "web").out
    record_contact(server, HealthCheck.Kind.HEALTH, 12)
    away = Problem("Nobody listens.", code="server_unreachable")
    record_failure(Server.objects.get().pk, HealthCheck.Kind.HEALTH, away)
    found = bonobot("mcp", "history", "web", "--since", "24h", "--json").json
    assert [one["ok"] for one in found["checks"]] == [False, True]
    assert found["outages"][0]["ended_at"] is None
    assert found["windows"][0]["p50"] == 12
    drawn = bonobot("mcp", "history", "web").out
    assert "ongoing" in drawn
    assert "Nobody listens." in drawn
