"""REST API of the audit log: list, detail and export."""

import json
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any, ClassVar

import django_filters
from asgiref.sync import sync_to_async
from django.db.models import QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.pagination import Cursor
from rest_framework.request import Request
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import ResourceView, require_row
from bonobot.accounts.roles import Action
from bonobot.core.api.pagination import ORDERING_PARAMETER, StableCursorPagination
from bonobot.core.api.serializers import StrictSerializer
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.uuids import parse_uuid
from bonobot.ledger.api.audit_filter import AuditFilter
from bonobot.ledger.audit.export import MEDIA_TYPES, ExportedAuditLog, ExportFormat, export_pages
from bonobot.ledger.audit.search import (
    MAX_ROWS_SCANNED,
    AuditSearch,
)
from bonobot.ledger.models import AuditQuerySet, AuditRow


def build_download(
    request: HttpRequest | Request, rows: QuerySet[AuditRow], form: ExportFormat
) -> StreamingHttpResponse:
    """Return the rows as a file that is written page by page; WSGI needs an ordinary iterator."""
    pages = export_pages(rows, form)
    is_asgi = hasattr(request, "scope")
    content = _stream_pages(pages) if is_asgi else pages
    response = StreamingHttpResponse(content, content_type=MEDIA_TYPES[form])
    name = f"audit-{timezone.now():%Y-%m-%d}.{form}"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


async def _stream_pages(pages: Iterator[str]) -> AsyncIterator[str]:
    def read_page() -> str:
        return next(pages, "")

    while page := await sync_to_async(read_page)():
        yield page


class SearchCursorPagination(StableCursorPagination):
    """Pagination of searches that may scan rows: such a page may end before it is full.

    Its view needs a `search` (an `AuditSearch`) and must sort by the rows' time.
    """

    last_page_fields: ClassVar[dict[str, None]] = {"next": None, "looked_to": None}
    looked_to: datetime | None = None

    def limit_rows(self, queryset: Any, request: Any, view: Any) -> Any:
        """Return the rows up to where this page's scan stops."""
        search: AuditSearch = view.search
        if not search.criteria.needs_scan:
            return queryset
        ordering = self.get_ordering(request, queryset, view)[0]
        if ordering.removeprefix("-") != "opened_at":
            raise InvalidInput(
                "This search requires ordering by time.",
                code="unknown_ordering",
                field=ORDERING_PARAMETER,
                remedy=format_message("Order by `{by}`, or use fewer filters.", by="opened_at"),
            )
        cursor = self.decode_cursor(request)
        if cursor is not None and cursor.reverse:
            raise NotFound  # we never create reverse cursors
        is_backward = ordering.startswith("-")
        position: Any = cursor.position if cursor else None  # its stub is wrong: it is a text
        self.looked_to = search.find_stop_time(position, is_backward=is_backward)
        if self.looked_to is None:
            return queryset
        return queryset.filter(**{f"opened_at__{'gte' if is_backward else 'lte'}": self.looked_to})

    def get_next_link(self) -> str | None:
        """Return the next page's URL: more of the scanned rows, or the rows after them."""
        link = super().get_next_link()
        if link is None and self.looked_to is not None:
            position: Any = str(self.looked_to)
            link = self.encode_cursor(Cursor(0, reverse=False, position=position))
        return link

    def get_paginated_response(self, data: Any) -> Response:
        """Return the page with the time up to which it scanned."""
        answer = super().get_paginated_response(data)
        answer.data["looked_to"] = self.looked_to
        return answer

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the OpenAPI schema of a page."""
        page = super().get_paginated_response_schema(schema)
        page["required"].append("looked_to")
        page["properties"]["looked_to"] = {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "For a search that scans entries: the time of the last entry that was "
            f"scanned for this page, after at most {MAX_ROWS_SCANNED:,} entries. `next` continues "
            "from there, even if this page is empty. Null: all entries were searched.",
        }
        return page


class AuditActorSerializer(StrictSerializer):
    """The actor, with the name at that time."""

    kind = serializers.CharField(source="actor_kind")
    id = serializers.CharField(source="actor_id")
    label = serializers.CharField(source="actor_label")  # type: ignore[assignment]  # DRF moves it


class AuditEntrySerializer(StrictSerializer):
    """One call or event."""

    id = serializers.UUIDField(help_text="For a call: the call's ID.")
    seq = serializers.IntegerField(help_text="Position in the organization's hash chain.")
    action = serializers.CharField()
    event_type = serializers.CharField()
    resource_type = serializers.CharField()
    resource_id = serializers.CharField()
    resource_name = serializers.CharField()
    actor = AuditActorSerializer(source="*")
    decision = serializers.CharField()
    rule = serializers.CharField()
    code = serializers.CharField()
    outcome = serializers.ChoiceField(AuditRow.Outcome.choices)
    agent_id = serializers.UUIDField(allow_null=True)
    agent_name = serializers.CharField()
    server_id = serializers.UUIDField(allow_null=True)
    server_name = serializers.CharField()
    tool_name = serializers.CharField()
    session_id = serializers.UUIDField(allow_null=True)
    parent_id = serializers.UUIDField(allow_null=True)
    opened_at = serializers.DateTimeField()
    closed_at = serializers.DateTimeField(allow_null=True)
    duration_ms = serializers.IntegerField(allow_null=True)
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    cost_microusd = serializers.IntegerField(help_text="In millionths of a dollar.")
    repeats = serializers.IntegerField(
        help_text="Number of times the same denied call was repeated."
    )


class AuditEntryDetailSerializer(AuditEntrySerializer):
    """One call or event with its recorded details."""

    details = serializers.SerializerMethodField()
    digest = serializers.CharField()
    closed_digest = serializers.CharField()

    @extend_schema_field({"type": "object", "additionalProperties": True})
    def get_details(self, row: AuditRow) -> dict[str, Any]:
        """Return the details of the request, updated with those of the outcome."""
        entries = [json.loads(text) for text in (row.opened, row.closed) if text]
        details: dict[str, Any] = {}
        for facts in entries:
            details |= facts.get("details", {})
        return details


class AuditListView(ResourceView):
    """The organization's audit log."""

    rules = {"GET": Action.VIEW_AUDIT}
    queryset = AuditRow.objects.none()
    filterset_class = AuditFilter
    pagination_class = SearchCursorPagination
    ordering = ("-opened_at", "-seq")
    orderings = ("opened_at", "seq")

    @describe_operation("list_audit", answer=AuditEntrySerializer(many=True))
    def get(self, request: object) -> Response:
        """List audit entries, newest first."""
        rows = AuditRow.objects.for_organization(self.organization_id).defer("opened", "closed")
        return self.respond_page(rows, AuditEntrySerializer)

    @property
    def search(self) -> AuditSearch:
        """The search for this request's filters, which are already validated."""
        filters = AuditFilter(self.request.query_params, queryset=AuditRow.objects.none())
        filters.is_valid()
        return filters.build_search(self.organization_id)


class AuditExportFilter(AuditFilter):
    """Filters for an export: those of the list, and the file format."""

    form = django_filters.ChoiceFilter(
        choices=[(form, form) for form in MEDIA_TYPES],
        method="ignore_format",
        label="jsonl (default) or csv",
    )

    def ignore_format(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        return rows


class AuditExportView(ResourceView):
    """Export of the audit log."""

    rules = {"GET": Action.VIEW_AUDIT}
    queryset = AuditRow.objects.none()
    filterset_class = AuditExportFilter
    http_method_names = ["get"]

    @describe_operation(
        "export_audit", answer={(200, media): OpenApiTypes.STR for media in MEDIA_TYPES.values()}
    )
    def get(self, request: object) -> StreamingHttpResponse:
        """Export audit entries in the order of the hash chain, with their hashed contents.

        Verify a complete export in JSON Lines with `bonobot audit verify --file`.
        """
        form: ExportFormat = "csv" if self.request.query_params.get("form") == "csv" else "jsonl"
        rows = self.filter_queryset(AuditRow.objects.for_organization(self.organization_id))
        self.report_read([ExportedAuditLog(self.organization_id)])
        return build_download(self.request, rows, form)


class AuditEntryView(ResourceView):
    """One audit entry."""

    rules = {"GET": Action.VIEW_AUDIT}

    @describe_operation("get_audit_entry", answer=AuditEntryDetailSerializer)
    def get(self, request: object, audit_id: str) -> Response:
        """Get an audit entry with its details: masked arguments, durations, flow, digests."""
        pk = parse_uuid(audit_id)
        rows = AuditRow.objects.for_organization(self.organization_id)
        row = require_row(rows.filter(pk=pk).first() if pk else None, "audit entry", audit_id)
        return self.respond_row(row, AuditEntryDetailSerializer)
