"""REST API of the audit log: list, detail and export."""

import json
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

import django_filters
from asgiref.sync import sync_to_async
from django.db.models import Q, QuerySet
from django.http import StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.pagination import Cursor
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import ResourceView, require_row
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictFilterSet
from bonobot.core.api.pagination import ORDERING, StableCursorPagination
from bonobot.core.api.serializers import StrictSerializer
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.ledger.audit.export import MEDIA, Form, export_pages
from bonobot.ledger.audit.search import LOOKED_AT, AuditSearch, SearchCriteria, build_text_filter
from bonobot.ledger.models import AuditQuerySet, AuditRow
from bonobot.ledger.types import EVENT_TYPES


def download(rows: QuerySet[AuditRow], form: Form) -> StreamingHttpResponse:
    """Return a response that streams these rows as a file, page by page."""
    response = StreamingHttpResponse(_read(rows, form), content_type=MEDIA[form])
    name = f"audit-{timezone.now():%Y-%m-%d}.{form}"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


async def _read(rows: QuerySet[AuditRow], form: Form) -> AsyncIterator[str]:
    found = export_pages(rows, form)

    def read() -> str:
        return next(found, "")

    while page := await sync_to_async(read)():
        yield page


class SearchCursorPagination(StableCursorPagination):
    """Pagination of searches that may scan rows: such a page may end before it is full.

    Its view needs a `search` (an `AuditSearch`) and must sort by the rows' time.
    """

    nothing_more: ClassVar[dict[str, None]] = {"next": None, "looked_to": None}
    looked_to: datetime | None = None

    def bounded(self, queryset: Any, request: Any, view: Any) -> Any:
        """Return the rows up to where this page's scan stops."""
        search: AuditSearch = view.search
        if not search.asked.needs_reading:
            return queryset
        by = self.get_ordering(request, queryset, view)[0]
        if by.removeprefix("-") != "opened_at":
            raise InvalidInput(
                "These rows must be looked for by their time.",
                code="unknown_ordering",
                field=ORDERING,
                remedy=format_message(
                    "Order them by `{by}`, or narrow them by less.", by="opened_at"
                ),
            )
        cursor = self.decode_cursor(request)
        if cursor is not None and cursor.reverse:
            raise NotFound  # we never create reverse cursors
        back = by.startswith("-")
        place: Any = cursor.position if cursor else None  # text, whatever its stub says
        self.looked_to = search.looks_to(place, back=back)
        if self.looked_to is None:
            return queryset
        return queryset.filter(**{f"opened_at__{'gte' if back else 'lte'}": self.looked_to})

    def get_next_link(self) -> str | None:
        """Return the next page's URL: more of the scanned rows, or the rows after them."""
        link = super().get_next_link()
        if link is None and self.looked_to is not None:
            place: Any = str(self.looked_to)
            link = self.encode_cursor(Cursor(0, reverse=False, position=place))
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
            "description": f"Where rows had to be read to find these: up to when this page looked, "
            f"at {LOOKED_AT:,} rows at most; `next` goes on from there, also where this page is "
            "empty. Null: it looked at all that there was.",
        }
        return page


class AuditFilter(StrictFilterSet):
    """Filters of audit rows; agents, servers and actors by id or name."""

    agent = django_filters.CharFilter(method="by_agent", label="Id or name of the agent")
    server = django_filters.CharFilter(method="by_server", label="Id or name of the server")
    session = django_filters.UUIDFilter(field_name="session_id")
    tool = django_filters.CharFilter(method="by_tool", label="The tool's own or namespaced name")
    action = django_filters.CharFilter(field_name="action")
    event_type = django_filters.ChoiceFilter(
        choices=[(kind, kind) for kind in EVENT_TYPES], label="What kind of event"
    )
    outcome = django_filters.ChoiceFilter(choices=AuditRow.Outcome.choices)
    decision = django_filters.ChoiceFilter(choices=AuditRow.Decision.choices)
    code = django_filters.CharFilter(field_name="code")
    actor = django_filters.CharFilter(method="by_actor", label="Id or name of who acted")
    rule = django_filters.CharFilter(field_name="rule")
    resource = django_filters.CharFilter(
        field_name="resource_id", label="Id of what it was done to"
    )
    q = django_filters.CharFilter(
        method="by_words", label="Words that names, codes or arguments contain, all of them"
    )
    since = django_filters.IsoDateTimeFilter(field_name="opened_at", lookup_expr="gte")
    until = django_filters.IsoDateTimeFilter(field_name="opened_at", lookup_expr="lt")

    def search(self, organization_id: UUID) -> AuditSearch:
        """Return the search for these filters, which must be valid."""
        given = {name: value for name, value in self.form.cleaned_data.items() if value}
        since, until, _form = (given.pop(name, None) for name in ("since", "until", "form"))
        found = {column: given.pop(name) for name, column in self._columns(given)}
        asked = SearchCriteria(found, otherwise=bool(given))
        return AuditSearch(organization_id, asked, since=since, until=until)

    @staticmethod
    def _columns(given: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the (filter, column) pairs of filters on an indexed column."""
        plain = [("session", "session_id"), ("code", "code"), ("outcome", "outcome")]
        ids = [
            (name, f"{name}_id") for name in ("agent", "server") if _parse_uuid(given.get(name, ""))
        ]
        return [(name, column) for name, column in (*plain, *ids) if name in given]

    def by_words(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        """Filter rows that contain all words."""
        return rows.filter(build_text_filter(value))

    def by_agent(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        """Filter rows by agent."""
        return rows.filter(_match_id_or_name("agent", value))

    def by_server(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        """Filter rows by server."""
        return rows.filter(_match_id_or_name("server", value))

    def by_tool(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        """Filter rows by tool."""
        return rows.filter(Q(tool_name=value) | Q(resource_id=value))

    def by_actor(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        """Filter rows by actor."""
        return rows.filter(Q(actor_id=value) | Q(actor_label=value))


class AuditActorSerializer(StrictSerializer):
    """Who acted, as they were called then."""

    kind = serializers.CharField(source="actor_kind")
    id = serializers.CharField(source="actor_id")
    label = serializers.CharField(source="actor_label")  # type: ignore[assignment]  # DRF moves it


class AuditEntrySerializer(StrictSerializer):
    """One call or one event."""

    id = serializers.UUIDField(help_text="For calls, the call's id.")
    seq = serializers.IntegerField(help_text="Its place in the organization's chain.")
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
    cost_microusd = serializers.IntegerField(help_text="Millionths of a dollar.")
    repeats = serializers.IntegerField(help_text="How often an equal refusal came again.")


class AuditEntryDetailSerializer(AuditEntrySerializer):
    """One call or one event with all that was sealed."""

    details = serializers.SerializerMethodField()
    digest = serializers.CharField()
    closed_digest = serializers.CharField()

    @extend_schema_field({"type": "object", "additionalProperties": True})
    def get_details(self, row: AuditRow) -> dict[str, Any]:
        """Return the details of the request, updated with those of the outcome."""
        sealed = [json.loads(text) for text in (row.opened, row.closed) if text]
        found: dict[str, Any] = {}
        for facts in sealed:
            found |= facts.get("details", {})
        return found


class AuditListView(ResourceView):
    """The organization's audit."""

    rules = {"GET": Action.VIEW_AUDIT}
    queryset = AuditRow.objects.none()
    filterset_class = AuditFilter
    pagination_class = SearchCursorPagination
    ordering = ("-opened_at", "-seq")
    orderings = ("opened_at", "seq")

    @describe_operation("list_audit", answer=AuditEntrySerializer(many=True))
    def get(self, request: object) -> Response:
        """List calls and events, the latest first."""
        rows = AuditRow.objects.of(self.organization_id).defer("opened", "closed")
        return self.listed(rows, AuditEntrySerializer)

    @property
    def search(self) -> AuditSearch:
        """The search for this request's filters, which are already validated."""
        filters = AuditFilter(self.request.query_params, queryset=AuditRow.objects.none())
        filters.is_valid()
        return filters.search(self.organization_id)


class AuditExportFilter(AuditFilter):
    """Filters of an export: those of the list, and the file format."""

    form = django_filters.ChoiceFilter(
        choices=[(form, form) for form in MEDIA], method="in_form", label="jsonl (default) or csv"
    )

    def in_form(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        """Return all rows: the format doesn't filter."""
        return rows


class AuditExportView(ResourceView):
    """The audit as a file."""

    rules = {"GET": Action.VIEW_AUDIT}
    queryset = AuditRow.objects.none()
    filterset_class = AuditExportFilter
    http_method_names = ["get"]

    @describe_operation(
        "export_audit", answer={(200, media): OpenApiTypes.STR for media in MEDIA.values()}
    )
    def get(self, request: object) -> StreamingHttpResponse:
        """Export calls and events in the order of the chain, with both of their sealed texts.

        A whole export as JSON Lines is checked by `bonobot audit verify --file`.
        """
        form: Form = "csv" if self.request.query_params.get("form") == "csv" else "jsonl"
        return download(self.filter_queryset(AuditRow.objects.of(self.organization_id)), form)


class AuditEntryView(ResourceView):
    """One row of the audit."""

    rules = {"GET": Action.VIEW_AUDIT}

    @describe_operation("get_audit_entry", answer=AuditEntryDetailSerializer)
    def get(self, request: object, audit_id: str) -> Response:
        """Show a call or an event with its details: arguments (masked), time, flow, digests."""
        pk = _parse_uuid(audit_id)
        rows = AuditRow.objects.of(self.organization_id)
        row = require_row(rows.filter(pk=pk).first() if pk else None, "audit entry", audit_id)
        return self.shown(row, AuditEntryDetailSerializer)


def _match_id_or_name(what: str, value: str) -> Q:
    pk = _parse_uuid(value)
    return Q(**{f"{what}_id": pk}) if pk else Q(**{f"{what}_name": value})


def _parse_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
