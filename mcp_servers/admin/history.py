"""What happened to a server: its health over time, and the calls made to it."""

from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _

from bonobot.ledger.models import AuditRow
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.models import Server

CHECKS_SHOWN = 100
CALLS_SHOWN = 50


@ServerAdmin.add_page("health", _("Health"), order=40)
def health(visit: Visit) -> HttpResponseBase:
    """Show the latest contacts, and how many of them succeeded."""
    server: Server = visit.object
    checks = list(server.checks.all()[:CHECKS_SHOWN])
    good = [check for check in checks if check.ok]
    latencies = sorted(check.latency_ms for check in good if check.latency_ms is not None)
    return visit.show(
        "servers/health.html",
        server=server,
        checks=checks,
        strip=checks[::-1],
        share=round(100 * len(good) / len(checks)) if checks else None,
        median=latencies[len(latencies) // 2] if latencies else None,
        slowest=latencies[-1] if latencies else None,
    )


@ServerAdmin.add_page("calls", _("Calls"), order=50, needs=Action.VIEW_AUDIT)
def calls(visit: Visit) -> HttpResponseBase:
    """Show the audit of this server's latest calls."""
    server: Server = visit.object
    rows = AuditRow.objects.of(server.organization_id).filter(server_id=server.pk)
    return visit.show("servers/calls.html", server=server, rows=rows[:CALLS_SHOWN])
