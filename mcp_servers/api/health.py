"""Health checks, uptime and outages of a server."""

import django_filters
from django.utils import timezone
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ
from bonobot.core.api.filters import StrictBooleanFilter, StrictFilterSet
from bonobot.core.api.serializers import StrictSerializer
from mcp_servers.api.servers import ServerView
from mcp_servers.health.outages import OUTAGES_SHOWN, get_outage_duration, list_recent_outages
from mcp_servers.health.server_status import build_connection_status
from mcp_servers.health.uptime_windows import load_uptime_windows
from mcp_servers.models import HealthCheck, Outage, Server


class HealthCheckFilter(StrictFilterSet):
    """Filters for the list of health checks."""

    ok = StrictBooleanFilter()
    kind = django_filters.ChoiceFilter(choices=HealthCheck.Kind.choices)
    since = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    until = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lt")


class HealthCheckSerializer(StrictSerializer):
    """One health check of a server."""

    id = serializers.UUIDField()
    created_at = serializers.DateTimeField()
    kind = serializers.ChoiceField(HealthCheck.Kind.choices)
    ok = serializers.BooleanField()
    latency_ms = serializers.IntegerField(allow_null=True)
    code = serializers.CharField()
    detail = serializers.CharField()


class UptimeWindowSerializer(StrictSerializer):
    """Uptime and latency in a period that ends now."""

    name = serializers.ChoiceField(["24h", "7d", "30d"])
    since = serializers.DateTimeField()
    uptime = serializers.FloatField(
        allow_null=True, help_text="Percentage of time without an outage; null: not checked."
    )
    checks = serializers.IntegerField()
    failures = serializers.IntegerField()
    outages = serializers.IntegerField()
    calls = serializers.IntegerField()
    p50 = serializers.IntegerField(allow_null=True, help_text="p50 of the latency in milliseconds.")
    p95 = serializers.IntegerField(allow_null=True, help_text="p95 of the latency in milliseconds.")


class ServerConnectionSerializer(StrictSerializer):
    """The connection status of a server."""

    status = serializers.ChoiceField(Server.Status.choices)
    connected_at = serializers.DateTimeField(allow_null=True)
    disconnected_at = serializers.DateTimeField(allow_null=True)
    pinged_at = serializers.DateTimeField(allow_null=True)
    error_code = serializers.CharField(help_text="Code of the last outage.")
    error = serializers.CharField()
    error_at = serializers.DateTimeField(allow_null=True)
    failures = serializers.IntegerField(help_text="Number of consecutive failures.")
    next_check_at = serializers.DateTimeField(allow_null=True)


class OutageSerializer(StrictSerializer):
    """An outage of a server, and its cause."""

    began_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True, help_text="Null if the outage continues.")
    seconds = serializers.SerializerMethodField(
        help_text="Duration until now or the end, in whole seconds."
    )
    failures = serializers.IntegerField(help_text="Number of failed checks.")
    code = serializers.CharField()
    detail = serializers.CharField()

    def get_seconds(self, outage: Outage) -> int:
        return round(get_outage_duration(outage).total_seconds())


class ServerUptimeSerializer(StrictSerializer):
    """A server's connection, its uptime in the last day, week, and month, and its outages."""

    connection = ServerConnectionSerializer()
    windows = UptimeWindowSerializer(many=True)
    outages = OutageSerializer(many=True, help_text=f"The latest {OUTAGES_SHOWN} of 30 days.")


class HealthCheckListView(ServerView):
    """The health checks of a server."""

    rules = {"GET": READ}
    queryset = HealthCheck.objects.none()
    filterset_class = HealthCheckFilter
    orderings = ("created_at", "code")

    @describe_operation("list_server_history", answer=HealthCheckSerializer(many=True))
    def get(self, request: object, server_id: str) -> Response:
        """List the health checks of a server in the last 30 days, newest first."""
        return self.respond_page(self.get_server(server_id).checks.all(), HealthCheckSerializer)


class ServerUptimeView(ServerView):
    """The uptime of a server."""

    rules = {"GET": READ}

    @describe_operation("get_server_uptime", answer=ServerUptimeSerializer)
    def get(self, request: object, server_id: str) -> Response:
        """Get a server's uptime, latency, and outages."""
        server, now = self.get_server(server_id), timezone.now()
        outages = list_recent_outages(server, now)
        status = {
            "connection": build_connection_status(server, outages),
            "windows": load_uptime_windows(server, outages, now),
            "outages": outages[:OUTAGES_SHOWN],
        }
        return self.respond_row(status, ServerUptimeSerializer)
