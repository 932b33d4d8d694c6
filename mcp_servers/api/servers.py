"""Servers: list, create, update, delete, test, refresh, export."""

from collections.abc import Mapping
from typing import Any

import django_filters
from django.db.models import Count, IntegerField, OuterRef, Prefetch, QuerySet, Subquery
from django.db.models.functions import Coalesce
from drf_spectacular.utils import (
    OpenApiParameter,
    PolymorphicProxySerializer,
    extend_schema_field,
)
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictBooleanFilter, StrictFilterSet
from bonobot.core.api.serializers import StrictSerializer, VersionedSerializer
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.api.presets import create_server_from_preset
from mcp_servers.api.serializers import (
    JSON_OBJECT,
    AddServerBody,
    CreateServerBody,
    PresetServerBody,
    ServerBody,
    ServerDetailSerializer,
    ServerRefreshSerializer,
    ServerSerializer,
    ServerTestSerializer,
    build_spec,
)
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.discovery import DiscoveryResult, run_discovery
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.store_labels import (
    MAX_LISTED,
    clear_store_labels,
    list_written_labels,
    load_server_store,
)
from mcp_servers.import_export.export_servers import build_client_file
from mcp_servers.models import Definition, HealthCheck, Server
from mcp_servers.oauth_client import authorization_code
from mcp_servers.openapi.select_operations import complete_spec
from mcp_servers.services import create_server, delete_server, set_server_enabled, update_server

TAINTING = [str(FlowLabel.PRIVATE_DATA), str(FlowLabel.UNTRUSTED_CONTENT)]
ADD_BODY = PolymorphicProxySerializer(
    component_name="ServerToAdd",
    serializers=[AddServerBody, PresetServerBody],
    resource_type_field_name=None,
)
NAME_PARAMETER = OpenApiParameter(
    "name",
    str,
    many=True,
    description="Name of a server to export; repeat the parameter for several.",
)


def discover_server(
    principal: Principal, server: Server, *, kind: str = HealthCheck.Kind.TEST
) -> dict[str, Any]:
    """Discover the server and return the result, or its failure, as response data."""
    try:
        result: DiscoveryResult = get_runtime().call(
            run_discovery, server.pk, actor=principal.actor, kind=kind
        )
    except Problem as problem:
        return _build_failure(problem)
    tools = server.definitions.tools().filter(present=True).order_by("name")
    answer: dict[str, Any] = {
        "status": "connected",
        "tools_discovered": len(result.tools),
        "tools": list(tools.values("name", "description")),
        "latency_ms": result.latency_ms,
    }
    if kind == HealthCheck.Kind.DISCOVERY:
        answer |= {
            "new": result.new,
            "changed": result.changed,
            "removed": result.removed,
            "pending_review": result.pending_review,
            "refused": result.refused,
            "notices": list(result.notices),
        }
    return answer


def take_approve_option(principal: Principal, body: dict[str, Any]) -> bool:
    """Remove `approve` from a body and return it; raises `Forbidden` without permission."""
    approves = bool(body.pop("approve", False))
    if approves:
        principal.require(Action.APPROVE_DEFINITIONS)
        if not body.get("enabled", True):
            raise InvalidInput(
                "A disabled server isn't discovered, so its definitions can't be approved.",
                code="no_effect",
                field="approve",
                remedy="Omit `approve`, or enable the server.",
            )
    return approves


def discover_and_approve(principal: Principal, server: Server) -> None:
    """Discover a new server and approve its definitions, except suspicious ones.

    If the discovery fails, the server's status shows why.
    """
    answer = discover_server(principal, server, kind=HealthCheck.Kind.DISCOVERY)
    if answer["status"] == "connected":
        approve_definitions(principal, server)


def _build_failure(problem: Problem) -> dict[str, Any]:
    return {
        "status": "needs_reauth" if problem.code == "needs_reauth" else "error",
        "tools_discovered": 0,
        "tools": [],
        "latency_ms": None,
        "code": problem.code,
        "detail": str(problem),
        "remedy": problem.remedy,
    }


class ServerFilter(StrictFilterSet):
    """Filters for the list of servers."""

    SCOPES = [("pool", "the pool's"), ("agent", "those private to an agent"), ("all", "both")]

    scope = django_filters.ChoiceFilter(
        choices=SCOPES, method="filter_by_scope", label="Default: pool"
    )
    status = django_filters.ChoiceFilter(choices=Server.Status.choices)
    enabled = StrictBooleanFilter()
    transport_type = django_filters.ChoiceFilter(choices=Server.Transport.choices)
    q = django_filters.CharFilter(
        field_name="name", lookup_expr="icontains", label="Part of the name"
    )

    def filter_by_scope(self, rows: Any, name: str, value: str) -> Any:
        """Filter by scope: pool, agent or all."""
        pool = Server.objects.in_organization_pool().values("pk")
        if value == "all":
            return rows
        return rows.filter(pk__in=pool) if value == "pool" else rows.exclude(pk__in=pool)

    def filter_queryset(self, queryset: Any) -> Any:
        """Apply the filters; the default scope is the pool."""
        self.form.cleaned_data["scope"] = self.form.cleaned_data["scope"] or "pool"
        return super().filter_queryset(queryset)


def add_server_annotations(rows: Any, *, tools: bool = False) -> Any:
    """Add what the server serializers need to a queryset, in a fixed number of queries."""
    present_tools = Definition.objects.tools().filter(present=True)
    if tools:
        listed_tools = present_tools.only("server", "name", "description", "payload").order_by(
            "name"
        )
        rows = rows.prefetch_related(Prefetch("definitions", listed_tools, to_attr="offered_tools"))
    return (
        rows.select_related("change_subscription")
        .prefetch_related("secrets")
        .annotate(
            tool_count=_build_count_subquery(present_tools),
            waiting_count=_build_count_subquery(Definition.objects.awaiting_review()),
        )
    )


class ServerView(ResourceView):
    """Base class of the views of one server, in the pool or private to an agent."""

    def get_server(self, server_id: str) -> Server:
        """Return the server; raises `NotFound`."""
        server = self.get_row(Server, server_id=server_id)
        if self.request.method == "GET":
            self.report_read([server])
        return server

    def build_server_response(self, server: Server, *, status: int = 200) -> Response:
        rows = add_server_annotations(Server.objects.filter(pk=server.pk), tools=True)
        return self.respond_row(rows.get(), ServerDetailSerializer, status=status)


class ServerListView(ServerView):
    """All servers."""

    rules = {"GET": READ, "POST": Action.MANAGE_SERVERS}
    queryset = Server.objects.none()
    filterset_class = ServerFilter
    ordering = ("name", "pk")
    orderings = ("name", "slug", "status", "created_at", "updated_at")

    @describe_operation("list_servers", answer=ServerSerializer(many=True))
    def get(self, request: object) -> Response:
        """List pool servers.

        `scope=agent` returns servers that are private to an agent; `scope=all` returns both.
        """
        rows = Server.objects.for_organization(self.organization_id)
        return self.respond_page(add_server_annotations(rows), ServerSerializer)

    @describe_operation(
        "create_server",
        body=ADD_BODY,
        answer=ServerDetailSerializer,
        status=201,
        asks=True,
    )
    def post(self, request: object) -> Response:
        """Add a server to the pool.

        Send its configuration, or `preset` and `parameters`. Only a platform administrator can set
        a `stdio` command. Everyone who can manage servers can use presets; stdio presets must be
        enabled first (otherwise `preset_not_enabled`).

        With `approve`, the server is discovered at once and its definitions are approved, except
        suspicious ones; the response has the result (`status`, `tools`, `pending_review`).
        Without it, a worker discovers the server, and its definitions are pending review.
        """
        is_preset = "preset" in self.list_body_fields()
        body = self.read_body(PresetServerBody if is_preset else AddServerBody)
        approves = take_approve_option(self.principal, body)
        if is_preset:
            server = create_server_from_preset(self.principal, body)
        else:
            spec = complete_spec(self.principal, build_spec(body))
            server = create_server(self.principal, spec)
        if approves:
            discover_and_approve(self.principal, server)
        return self.build_server_response(server, status=201)


class ServerDetailView(ServerView):
    """One server."""

    rules = {
        "GET": READ,
        "PUT": Action.MANAGE_SERVERS,
        "PATCH": Action.MANAGE_SERVERS,
        "DELETE": Action.MANAGE_SERVERS,
    }

    @describe_operation("get_server", answer=ServerDetailSerializer)
    def get(self, request: object, server_id: str) -> Response:
        """Get a server with the tools of its last discovery; secrets are masked."""
        return self.build_server_response(self.get_server(server_id))

    @describe_operation(
        "replace_server", body=CreateServerBody, answer=ServerDetailSerializer, asks=True
    )
    def put(self, request: object, server_id: str) -> Response:
        """Replace a server's configuration.

        Masked values and an omitted `auth_config` are unchanged.
        """
        return self._update(server_id, CreateServerBody, partial=False)

    @describe_operation(
        "update_server",
        body=ServerBody,
        answer=ServerDetailSerializer,
        asks=True,
    )
    def patch(self, request: object, server_id: str) -> Response:
        """Update a server's configuration."""
        return self._update(server_id, ServerBody, partial=True)

    @describe_operation("delete_server", status=204)
    def delete(self, request: object, server_id: str) -> Response:
        """Delete a server with its definitions and secrets; the audit log keeps its name."""
        delete_server(self.principal, self.get_server(server_id))
        return Response(status=204)

    def _update(
        self, server_id: str, serializer_class: type[StrictSerializer], *, partial: bool
    ) -> Response:
        server = self.get_server(server_id)
        spec = build_spec(self.read_body(serializer_class, partial=partial), server)
        spec = complete_spec(self.principal, spec, server)
        return self.build_server_response(update_server(self.principal, server, spec))


class TestServerView(ServerView):
    """Connection test of a server."""

    __test__ = False
    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation("test_server", answer=ServerTestSerializer)
    def post(self, request: object, server_id: str) -> Response:
        """Test the connection to a server.

        If the server doesn't respond, the status code is still 200. The response has the status
        `error` or `needs_reauth`, a code, and a remedy.
        """
        return Response(discover_server(self.principal, self.get_server(server_id)))


class RefreshServerView(ServerView):
    """Discovery of a server's definitions."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation("refresh_server", answer=ServerRefreshSerializer)
    def post(self, request: object, server_id: str) -> Response:
        """Refresh a server's definitions; new and changed ones are pending review."""
        server = self.get_server(server_id)
        return Response(discover_server(self.principal, server, kind=HealthCheck.Kind.DISCOVERY))


class ServerSignInView(ServerView):
    """Sign-in at a server."""

    rules = {"DELETE": (Action.MANAGE_SERVERS, *authorization_code.PERSONAL_LOGIN_ACTIONS)}

    @describe_operation("sign_out_server", status=204)
    def delete(self, request: object, server_id: str) -> Response:
        """Sign out of a server; its tokens are deleted, and revoked if the server supports it.

        If the organization signs in, requires permission to manage servers; if each person signs
        in, signs out the caller. Problems: `no_login`.
        """
        authorization_code.sign_out(self.principal, self.get_server(server_id))
        return Response(status=204)


class EnableServerView(ServerView):
    """Enable a server."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation("enable_server", answer=ServerDetailSerializer)
    def post(self, request: object, server_id: str) -> Response:
        """Enable a server for all agents."""
        server = self.get_server(server_id)
        set_server_enabled(self.principal, server, enabled=True)
        return self.build_server_response(server)


class DisableServerView(ServerView):
    """Disable a server."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation("disable_server", answer=ServerDetailSerializer)
    def post(self, request: object, server_id: str) -> Response:
        """Disable a server for all agents; effective on the next call."""
        server = self.get_server(server_id)
        set_server_enabled(self.principal, server, enabled=False)
        return self.build_server_response(server)


def _build_count_subquery(rows: QuerySet) -> Any:
    counts = rows.filter(server=OuterRef("pk")).order_by().values("server")
    number = Subquery(counts.annotate(n=Count("pk")).values("n"), output_field=IntegerField())
    return Coalesce(number, 0)


@extend_schema_field({"type": "object", "additionalProperties": JSON_OBJECT})
class ServerConfigurationsField(serializers.JSONField):
    """Servers by name, in the format of MCP clients."""


class ServerExportSerializer(StrictSerializer):
    """A configuration file for MCP clients; `POST /api/mcp-servers/import` accepts it."""

    mcpServers = ServerConfigurationsField()


class ServerExportView(ResourceView):
    """Export of the pool."""

    rules = {"GET": READ}

    @describe_operation(
        "export_servers", answer=ServerExportSerializer, parameters=[NAME_PARAMETER]
    )
    def get(self, request: object) -> Response:
        """Export the pool servers as a configuration file for MCP clients.

        Secrets are replaced with `${NAME}`.
        """
        pool = Server.objects.for_organization(
            self.principal.organization_id
        ).in_organization_pool()
        if names := set(self.request.query_params.getlist("name")):
            pool = pool.filter(name__in=names)
            if missing := sorted(names - set(pool.values_list("name", flat=True))):
                raise InvalidInput(
                    format_message("The server {name!r} doesn't exist.", name=missing[0]),
                    code="unknown_server",
                    field="name",
                    remedy="List the servers: GET /api/mcp-servers.",
                )
        servers = list(pool.prefetch_related("secrets"))
        self.report_read(servers)
        return Response(build_client_file(servers))


WRITTEN_AT_HELP = "The last write of a caller with labels. Null without labels."
LABELS_VERSION_HELP = (
    "Changes with each write of a caller with labels; also the `ETag`. If you send it in "
    "`If-Match` with the DELETE request, labels of data written since then aren't cleared "
    "(`precondition_failed`)."
)


class WrittenLabelsSerializer(StrictSerializer):
    """Flow labels that one call added to a server's data."""

    labels = serializers.ListField(child=serializers.ChoiceField(TAINTING))
    call_id = serializers.UUIDField(help_text="Audit entry of the call.")
    session_id = serializers.UUIDField(allow_null=True)
    tool = serializers.CharField(help_text="Empty if the audit entry was deleted.")
    caller = serializers.CharField()
    created_at = serializers.DateTimeField()
    cleared_at = serializers.DateTimeField(allow_null=True)
    cleared_by = serializers.CharField()


class ServerStoreLabelsSerializer(VersionedSerializer):
    """Flow labels that reading from a server adds to its tools' labels."""

    labels = serializers.ListField(child=serializers.ChoiceField(TAINTING))
    written_at = serializers.DateTimeField(allow_null=True, help_text=WRITTEN_AT_HELP)
    written = WrittenLabelsSerializer(
        many=True, help_text=f"The latest {MAX_LISTED} calls that added labels."
    )
    version = serializers.CharField(read_only=True, help_text=LABELS_VERSION_HELP)

    def build_parts(self, instance: Any, representation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts that each labeled write changes."""
        return dict(instance["version_parts"])


class ServerStoreLabelsView(ServerView):
    """The flow labels of a server's data."""

    rules = {"GET": READ, "DELETE": Action.APPROVE_DEFINITIONS}

    @describe_operation("get_server_store_labels", answer=ServerStoreLabelsSerializer)
    def get(self, request: object, server_id: str) -> Response:
        """Get the flow labels of a server's data, and the calls that added them."""
        server = self.get_server(server_id)
        store = load_server_store(server)
        status = {
            "labels": store.labels,
            "written_at": store.written_at,
            "written": list_written_labels(server),
            "version_parts": store.version_parts,
        }
        return self.respond_row(status, ServerStoreLabelsSerializer)

    @describe_operation("clear_server_store_labels", status=204)
    def delete(self, request: object, server_id: str) -> Response:
        """Clear the flow labels of a server's data; effective on the next call."""
        clear_store_labels(self.principal, self.get_server(server_id))
        return Response(status=204)

    def query_rows_to_lock(self) -> QuerySet[Server]:
        """Return the server; as an owner in a response, it would be reported as read."""
        return Server.objects.filter(pk=self.get_server(self.kwargs["server_id"]).pk)
