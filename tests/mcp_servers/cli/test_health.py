"""`bonobot mcp history`."""

from bonobot.core.problems import Problem
from mcp_servers.health.server_status import record_contact, record_failure
from mcp_servers.models import HealthCheck, Server
from tests import admin_client


def test_the_history_of_a_server_is_printed(bonobot, acme):
    server = admin_client.create_web_server(acme)
    assert "No checks in this period" in bonobot("mcp", "history", "web").out
    record_contact(server, HealthCheck.Kind.HEALTH, 12)
    problem = Problem("Nobody listens.", code="server_unreachable")
    record_failure(Server.objects.get().pk, HealthCheck.Kind.HEALTH, problem)
    data = bonobot("mcp", "history", "web", "--since", "24h", "--json").json
    assert [row["ok"] for row in data["checks"]] == [False, True]
    assert data["outages"][0]["ended_at"] is None
    assert data["windows"][0]["p50"] == 12
    output = bonobot("mcp", "history", "web").out
    assert "ongoing" in output
    assert "Nobody listens." in output
