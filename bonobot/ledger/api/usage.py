"""REST API of usage and cost."""

from datetime import datetime
from typing import Any

import django_filters
from django.http import HttpResponse
from django.utils import timezone
from django_filters.utils import translate_validation
from drf_spectacular.types import OpenApiTypes
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import ResourceView
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictFilterSet
from bonobot.core.api.serializers import StrictSerializer
from bonobot.ledger.audit.export import MEDIA_TYPES
from bonobot.ledger.models import Rollup
from bonobot.ledger.usage.report import GROUPS, UsageQuery, UsageReport, load_usage_report


class UsageFilter(StrictFilterSet):
    """The parameters of a report."""

    by = django_filters.ChoiceFilter(
        choices=[(name, name) for name in GROUPS],
        method="keep",
        label="Group lines by (default: agent)",
    )
    since = django_filters.IsoDateTimeFilter(
        method="keep_time", label="Start; default: the last 30 days, including today"
    )
    until = django_filters.IsoDateTimeFilter(method="keep_time", label="End; default: now")
    agent = django_filters.CharFilter(method="keep", label="ID or name of the agent")
    server = django_filters.CharFilter(method="keep", label="ID or name of the server")
    tool = django_filters.CharFilter(method="keep", label="Name of the tool on its server")
    model = django_filters.CharFilter(method="keep", label="Name of the model")

    def keep(self, rows: Any, name: str, value: str) -> Any:
        """Return all rows: the report applies the parameters."""
        return rows

    def keep_time(self, rows: Any, name: str, value: datetime) -> Any:
        """Return all rows: the report applies the parameters."""
        return rows


class UsageNumbersSerializer(StrictSerializer):
    """Usage totals."""

    calls = serializers.IntegerField(
        help_text="Number of calls, including denied calls and calls pending approval."
    )
    ok = serializers.IntegerField()
    errors = serializers.IntegerField(  # type: ignore[assignment]  # DRF moves it
        help_text="Calls that failed."
    )
    unknown = serializers.IntegerField(help_text="Calls that may or may not have had an effect.")
    refused = serializers.IntegerField()
    turns = serializers.IntegerField(help_text="Number of model responses.")
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    cost_microusd = serializers.IntegerField(help_text="In millionths of a dollar.")
    pending = serializers.IntegerField(
        help_text="Calls pending approval, counted when they were requested."
    )
    p50_ms = serializers.IntegerField(
        allow_null=True,
        help_text="p50 of the duration of successful calls, rounded to a histogram bucket.",
    )
    p95_ms = serializers.IntegerField(allow_null=True)


class UsageLineSerializer(UsageNumbersSerializer):
    """One line of a report."""

    id = serializers.CharField(
        help_text=(
            "ID of the organization, agent, or server; for a tool, of its server; otherwise empty."
        )
    )
    name = serializers.CharField()
    server = serializers.CharField(help_text="For a tool: its server; empty for built-in tools.")


class UsageReportSerializer(StrictSerializer):
    """A report of usage and cost."""

    by = serializers.ChoiceField([(name, name) for name in GROUPS])
    since = serializers.DateTimeField(help_text="Start of the first day or hour (UTC).")
    until = serializers.DateTimeField()
    complete = serializers.BooleanField(
        help_text="False if calls of the last minutes haven't been counted yet."
    )
    total = UsageNumbersSerializer()
    results = UsageLineSerializer(many=True)


class UsageView(ResourceView):
    """The organization's usage."""

    rules = {"GET": Action.VIEW_AUDIT}
    queryset = Rollup.objects.none()
    filterset_class = UsageFilter
    http_method_names = ["get"]

    @describe_operation("get_usage", answer=UsageReportSerializer)
    def get(self, request: object) -> Response:
        """Get a usage report of calls, tokens, and cost.

        Returns at most 1,000 lines, sorted by the number of calls.
        """
        return Response(UsageReportSerializer(self.load_report().as_dict()).data)

    def load_report(self) -> UsageReport:
        self.check_parameters()
        filters = UsageFilter(self.request.query_params, queryset=self.queryset)
        if not filters.is_valid():
            raise translate_validation(filters.errors)
        values = {name: value for name, value in filters.form.cleaned_data.items() if value}
        report = load_usage_report(self.principal, UsageQuery(**values))
        self.report_read([report])
        return report


class UsageExportView(UsageView):
    """Export of a usage report."""

    @describe_operation("export_usage", answer={(200, MEDIA_TYPES["csv"]): OpenApiTypes.STR})
    def get(self, request: object) -> HttpResponse:  # type: ignore[override]  # a file
        """Export a usage report as CSV."""
        return build_csv_response(self.load_report())


def build_csv_response(report: UsageReport) -> HttpResponse:
    response = HttpResponse(report.as_csv(), content_type=MEDIA_TYPES["csv"])
    name = f"usage-by-{report.query.by}-{timezone.now():%Y-%m-%d}.csv"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "no-store"
    return response
