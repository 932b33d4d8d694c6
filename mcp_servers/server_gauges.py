"""Gauges computed from rows: server status, due checks, subscription leases."""

from collections.abc import Iterator

from django.db.models import Count, Min

from bonobot.monitoring.extension_points import (
    GaugeFamily,
    GaugeSample,
    RowGauges,
    build_backlog_samples,
    build_lease_samples,
)
from mcp_servers.models import Server
from mcp_servers.subscriptions import leases

SERVERS = GaugeFamily("bonobot_servers", "Enabled servers by status.", ("status",))


def build_row_gauges() -> RowGauges:
    return RowGauges((SERVERS,), _collect_samples)


def _collect_samples() -> Iterator[GaugeSample]:
    due_servers = Server.objects.due_for_check()
    oldest = due_servers.aggregate(at=Min("next_check_at"))
    yield from build_backlog_samples("checks", due_servers.count(), oldest["at"])
    yield from build_lease_samples(
        "watch",
        leases.query_wanted_subscriptions().count(),
        leases.query_unclaimed_subscriptions().count(),
    )
    enabled = Server.objects.enabled().order_by().values_list("status")
    for status, number in enabled.annotate(number=Count("pk")):
        yield GaugeSample(SERVERS.name, (status,), number)
