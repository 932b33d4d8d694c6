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
from mcp_servers.health.queries import (
    OUTAGES_SHOWN,
    build_connection_status,
    get_outage_duration,
    list_recent_outages,
    load_uptime_windows,
)
from mcp_servers.models import HealthCheck, Outage, Server


class HealthCheckFilter(StrictFilterSet):
    """Filters of the health check list."""

    ok = StrictBooleanFilter()
    kind = django_filters.ChoiceFilter(choices=HealthCheck.Kind.choices)
    since = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    until = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lt")


class HealthCheckSerializer(StrictSerializer):
    """One contact with a server."""

    id = serializers.UUIDField()
    created_at = serializers.DateTimeField()
    kind = serializers.ChoiceField(HealthCheck.Kind.choices)
    ok = serializers.BooleanField()
    latency_ms = serializers.IntegerField(allow_null=True)
    code = serializers.CharField()
    detail = serializers.CharField()


class UptimeWindowSerializer(StrictSerializer):
    """What happened in a stretch of time up to now."""

    name = serializers.ChoiceField(["24h", "7d", "30d"])
    since = serializers.DateTimeField()
    uptime = serializers.FloatField(
        allow_null=True, help_text="Percent of the time without an outage; null: never asked."
    )
    checks = serializers.IntegerField()
    failures = serializers.IntegerField()
    outages = serializers.IntegerField()
    calls = serializers.IntegerField()
    p50 = serializers.IntegerField(allow_null=True, help_text="Median latency in milliseconds.")
    p95 = serializers.IntegerField(allow_null=True, help_text="95th percentile in milliseconds.")


class ServerConnectionSerializer(StrictSerializer):
    """Where a server stands."""

    status = serializers.ChoiceField(Server.Status.choices)
    connected_at = serializers.DateTimeField(allow_null=True)
    disconnected_at = serializers.DateTimeField(allow_null=True)
    pinged_at = serializers.DateTimeField(allow_null=True)
    error_code = serializers.CharField(help_text="Of the last outage.")
    error = serializers.CharField()
    error_at = serializers.DateTimeField(allow_null=True)
    failures = serializers.IntegerField(help_text="In a row, up to now.")
    next_check_at = serializers.DateTimeField(allow_null=True)


class OutageSerializer(StrictSerializer):
    """A time in which a server was away, and why."""

    began_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True, help_text="Null while it lasts.")
    seconds = serializers.SerializerMethodField()
    failures = serializers.IntegerField(help_text="Contacts that failed.")
    code = serializers.CharField()
    detail = serializers.CharField()

    def get_seconds(self, outage: Outage) -> int:
        """Return the duration so far, in whole seconds."""
        return round(get_outage_duration(outage).total_seconds())


class ServerUptimeSerializer(StrictSerializer):
    """A server's connection, its last day, week and month, and the latest outages."""

    connection = ServerConnectionSerializer()
    windows = UptimeWindowSerializer(many=True)
    outages = OutageSerializer(many=True, help_text=f"The latest {OUTAGES_SHOWN} of thirty days.")


class HealthCheckListView(ServerView):
    """The contacts with one server."""

    rules = {"GET": READ}
    queryset = HealthCheck.objects.none()
    filterset_class = HealthCheckFilter
    orderings = ("created_at", "code")

    @describe_operation("list_server_history", answer=HealthCheckSerializer(many=True))
    def get(self, request: object, server_id: str) -> Response:
        """List the contacts with a server in the last thirty days, the latest first."""
        return self.respond_page(self.get_server(server_id).checks.all(), HealthCheckSerializer)


class ServerUptimeView(ServerView):
    """How much of the time one server was there."""

    rules = {"GET": READ}

    @describe_operation("get_server_uptime", answer=ServerUptimeSerializer)
    def get(self, request: object, server_id: str) -> Response:
        """Show how much of the time a server was there, how fast it answered, and its outages."""
        server, now = self.get_server(server_id), timezone.now()
        outages = list_recent_outages(server, now)
        status = {
            "connection": build_connection_status(server, outages),
            "windows": load_uptime_windows(server, outages, now),
            "outages": outages[:OUTAGES_SHOWN],
        }
        return self.respond_row(status, ServerUptimeSerializer)
