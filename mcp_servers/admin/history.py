"""What happened to a server: its health over time, and the calls made to it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from bonobot.ledger.models import AuditRow
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.admin.timeline import timeline
from mcp_servers.history import (
    OUTAGES_SHOWN,
    connection,
    first_asked,
    recent_gaps,
    recent_outages,
    spans_of,
    unasked_spans,
    windows,
)
from mcp_servers.models import Check, Server
from mcp_servers.outputs import of_server
from mcp_servers.uptime import segments

CHECKS_SHOWN = 100
CALLS_SHOWN = 50
HALF_HOURS = 48
DAYS = 30
# The picture of latencies, in its own units: it is stretched to the width of the page.
WIDE, HIGH = 600, 80


@ServerAdmin.add_page("health", _("History"), order=40)
def health(visit: Visit) -> HttpResponseBase:
    """Show when the server was there, how fast it answered, and each outage with its cause."""
    server: Server = visit.object
    now = timezone.now()
    checks = list(server.checks.all()[:CHECKS_SHOWN])
    outages = recent_outages(server, now)
    spans, known = spans_of(outages), first_asked(server)
    pictures = ((timedelta(days=1), HALF_HOURS), (timedelta(days=DAYS), DAYS))
    unknown = unasked_spans(server, now, recent_gaps(server, now))
    day, month = (
        segments(spans, now - back, now, count, known=known, unknown=unknown)
        for back, count in pictures
    )
    return visit.show(
        "servers/health.html",
        server=server,
        checks=checks,
        windows=windows(server, outages, now),
        connection=connection(server, outages),
        outages=outages[:OUTAGES_SHOWN],
        day=timeline(day),
        month=timeline(month),
        curve=curve(checks[::-1]),
        now=now,
        outputs=of_server(server)[::-1] if _may_read(visit) else None,
    )


def curve(checks: Sequence[Check]) -> dict[str, Any] | None:
    """Return the latencies of contacts as points of a line, oldest first; failures as marks."""
    good = [check.latency_ms for check in checks if check.ok and check.latency_ms is not None]
    if len(good) < 2:
        return None
    top, step = max(*good, 1), WIDE / max(len(checks) - 1, 1)
    points, marks = [], []
    for number, check in enumerate(checks):
        x = round(number * step, 1)
        if check.ok and check.latency_ms is not None:
            points.append(f"{x},{round(HIGH - check.latency_ms / top * (HIGH - 4) - 2, 1)}")
        else:
            marks.append(x)
    return {"points": " ".join(points), "marks": marks, "top": top, "wide": WIDE, "high": HIGH}


def _may_read(visit: Visit) -> bool:
    """Tell who sees what programs complained of: it may name what is private to the machine."""
    stdio = visit.object.transport_type == Server.Transport.STDIO
    return stdio and visit.principal.may(Action.MANAGE_SERVERS)


@ServerAdmin.add_page("calls", _("Calls"), order=50, needs=Action.VIEW_AUDIT)
def calls(visit: Visit) -> HttpResponseBase:
    """Show the audit of this server's latest calls."""
    server: Server = visit.object
    rows = AuditRow.objects.of(server.organization_id).filter(server_id=server.pk)
    return visit.show("servers/calls.html", server=server, rows=rows[:CALLS_SHOWN])
