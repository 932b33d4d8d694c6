"""The pages with a server's health history and its calls."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base import ObjectRequest
from bonobot.accounts.roles import Action
from bonobot.ledger.audit.action_titles import format_action
from bonobot.ledger.models import AuditRow
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.admin.uptime_bar import render_uptime_bar
from mcp_servers.health.outages import (
    OUTAGES_SHOWN,
    list_recent_outages,
    list_unmonitored_periods,
    list_unmonitored_spans,
    to_spans,
)
from mcp_servers.health.server_status import build_connection_status
from mcp_servers.health.uptime import build_uptime_segments
from mcp_servers.health.uptime_windows import find_first_check, load_uptime_windows
from mcp_servers.models import HealthCheck, Server
from mcp_servers.stderr_log import list_error_outputs

CHECKS_SHOWN = 100
CALLS_SHOWN, EVENTS_SHOWN = 50, 20
# Busy servers have millions of entries: connections are rare among them.
EVENTS_PERIOD = timedelta(days=7)
HALF_HOURS = 48
DAYS = 30
# Size of the latency chart in SVG units; the page stretches it.
CHART_WIDTH, CHART_HEIGHT = 600, 80


@ServerAdmin.add_page("health", _("History"), order=40)
def show_health(visit: ObjectRequest) -> HttpResponseBase:
    """Show the server's uptime, latency and outages with their causes."""
    server: Server = visit.object
    now = timezone.now()
    checks = list(server.checks.all()[:CHECKS_SHOWN])
    outages = list_recent_outages(server, now)
    spans = to_spans(outages)
    first_check = find_first_check(server, spans)
    bars = ((timedelta(days=1), HALF_HOURS), (timedelta(days=DAYS), DAYS))
    unmonitored = list_unmonitored_spans(server, now, list_unmonitored_periods(server, now))
    day, month = (
        build_uptime_segments(
            spans, now - period, now, count, known_since=first_check, unmonitored=unmonitored
        )
        for period, count in bars
    )
    return visit.render_tab(
        "servers/history.html",
        server=server,
        checks=checks,
        windows=load_uptime_windows(server, outages, now),
        connection=build_connection_status(server, outages),
        outages=outages[:OUTAGES_SHOWN],
        day=render_uptime_bar(day),
        month=render_uptime_bar(month),
        curve=build_latency_curve(checks[::-1]),
        now=now,
        events=_list_connection_events(server, now)
        if visit.principal.may(Action.VIEW_AUDIT)
        else (),
        outputs=list_error_outputs(server)[::-1] if _can_read_output(visit) else None,
    )


def _list_connection_events(server: Server, now: datetime) -> list[tuple[str, AuditRow]]:
    """Return the latest changes of the server's connection, with their titles, newest first."""
    rows = AuditRow.objects.for_organization(server.organization_id).filter(
        server_id=server.pk, event_type="connection", opened_at__gte=now - EVENTS_PERIOD
    )
    return [(capfirst(format_action(row.action)), row) for row in rows[:EVENTS_SHOWN]]


def build_latency_curve(checks: Sequence[HealthCheck]) -> dict[str, Any] | None:
    """Return the latencies of checks (oldest first) as line points and failures as marks."""
    latencies = [check.latency_ms for check in checks if check.ok and check.latency_ms is not None]
    if len(latencies) < 2:
        return None
    top, step = max(*latencies, 1), CHART_WIDTH / max(len(checks) - 1, 1)
    points, marks = [], []
    for index, check in enumerate(checks):
        x = round(index * step, 1)
        if check.ok and check.latency_ms is not None:
            points.append(
                f"{x},{round(CHART_HEIGHT - check.latency_ms / top * (CHART_HEIGHT - 4) - 2, 1)}"
            )
        else:
            marks.append(x)
    return {
        "points": " ".join(points),
        "marks": marks,
        "top": top,
        "wide": CHART_WIDTH,
        "high": CHART_HEIGHT,
    }


def _can_read_output(visit: ObjectRequest) -> bool:
    """Return whether the user may read stderr, which can contain details of the host."""
    stdio = visit.object.transport_type == Server.Transport.STDIO
    return stdio and visit.principal.may(Action.MANAGE_SERVERS)


@ServerAdmin.add_page("calls", _("Calls"), order=50, required_actions=Action.VIEW_AUDIT)
def show_calls(visit: ObjectRequest) -> HttpResponseBase:
    """Show the audit entries of this server's latest calls."""
    server: Server = visit.object
    rows = AuditRow.objects.for_organization(server.organization_id).filter(
        server_id=server.pk, event_type="call"
    )
    return visit.render_tab("servers/latest_calls.html", server=server, rows=rows[:CALLS_SHOWN])
