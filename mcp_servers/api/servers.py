"""Servers: list, create, update, delete, test, refresh, export."""

from typing import Any

import django_filters
from django.db.models import Count, IntegerField, OuterRef, Prefetch, QuerySet, Subquery
from django.db.models.functions import Coalesce
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    PolymorphicProxySerializer,
    extend_schema_field,
    extend_schema_serializer,
)
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView, set_not_found_field
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictBooleanFilter, StrictFilterSet
from bonobot.core.api.serializers import StrictSerializer
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.api.presets import create_server_from_preset
from mcp_servers.api.serializers import (
    ADD_EXAMPLES,
    CHANGE_EXAMPLE,
    JSON_OBJECT,
    CreateServerBody,
    PresetServerBody,
    ServerBody,
    ServerDetailSerializer,
    ServerRefreshSerializer,
    ServerSerializer,
    ServerTestSerializer,
    build_spec,
)
from mcp_servers.discovery import DiscoveryResult, run_discovery
from mcp_servers.import_export.export_servers import build_client_file
from mcp_servers.models import Definition, HealthCheck, Server
from mcp_servers.oauth_client import authorization_code
from mcp_servers.openapi.select_operations import complete_spec
from mcp_servers.services import create_server, delete_server, set_server_enabled, update_server


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
            "gone": result.gone,
            "waiting": result.waiting,
            "refused": result.refused,
            "notices": list(result.notices),
        }
    return answer


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


ADD_BODY = PolymorphicProxySerializer(
    component_name="ServerToAdd",
    serializers=[CreateServerBody, PresetServerBody],
    resource_type_field_name=None,
)


class ServerFilter(StrictFilterSet):
    """Filters of the server list."""

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
        rows.select_related("watch")
        .prefetch_related("secrets")
        .annotate(
            tool_count=_build_count_subquery(present_tools),
            waiting_count=_build_count_subquery(Definition.objects.awaiting_review()),
        )
    )


class ServerView(ResourceView):
    """A resource below one server, in the pool or private to an agent."""

    def get_server(self, server_id: str) -> Server:
        """Return the server; raises `NotFound`."""
        with set_not_found_field("server_id"):
            server: Server = Server.objects.get_or_404(self.organization_id, pk=server_id)
        return server

    def build_server_response(self, server: Server, *, status: int = 200) -> Response:
        """Return the response with the server's current state."""
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
        """List the pool's servers.

        With `scope=agent` those that are private to an agent, with `scope=all` both.
        """
        rows = Server.objects.for_organization(self.organization_id)
        return self.respond_page(add_server_annotations(rows), ServerSerializer)

    @describe_operation(
        "add_server",
        body=ADD_BODY,
        answer=ServerDetailSerializer,
        status=201,
        examples=ADD_EXAMPLES,
        asks=True,
    )
    def post(self, request: object) -> Response:
        """Add a server to the pool.

        Either with its configuration, or with `preset` and `parameters`. A `stdio` command can be
        set by a platform administrator only; presets are for everyone who manages servers, stdio
        ones where they are enabled (else `preset_not_enabled`).
        """
        if "preset" in self.list_body_fields():
            server = create_server_from_preset(self.principal, self.read_body(PresetServerBody))
        else:
            spec = complete_spec(self.principal, build_spec(self.read_body(CreateServerBody)))
            server = create_server(self.principal, spec)
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
        """Show a server with the tools of its last discovery; secrets are masked."""
        return self.build_server_response(self.get_server(server_id))

    @describe_operation(
        "replace_server", body=CreateServerBody, answer=ServerDetailSerializer, asks=True
    )
    def put(self, request: object, server_id: str) -> Response:
        """Change a server's configuration.

        Masked values and an `auth_config` that is left out keep what is stored.
        """
        return self._update(server_id, CreateServerBody, partial=False)

    @describe_operation(
        "change_server",
        body=ServerBody,
        answer=ServerDetailSerializer,
        examples=[CHANGE_EXAMPLE],
        asks=True,
    )
    def patch(self, request: object, server_id: str) -> Response:
        """Change parts of a server's configuration."""
        return self._update(server_id, ServerBody, partial=True)

    @describe_operation("remove_server", status=204)
    def delete(self, request: object, server_id: str) -> Response:
        """Remove a server, its definitions and secrets; the audit keeps its name."""
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
    """A test of one server."""

    __test__ = False
    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation("test_server", answer=ServerTestSerializer)
    def post(self, request: object, server_id: str) -> Response:
        """Connect to a server now.

        A server that doesn't answer is no error of this request: the answer is 200 with the
        status `error` or `needs_reauth`, the code, and what to do.
        """
        return Response(discover_server(self.principal, self.get_server(server_id)))


class RefreshServerView(ServerView):
    """A discovery of one server."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation("refresh_server", answer=ServerRefreshSerializer)
    def post(self, request: object, server_id: str) -> Response:
        """Ask a server anew what it offers; what is new or changed waits for approval."""
        server = self.get_server(server_id)
        return Response(discover_server(self.principal, server, kind=HealthCheck.Kind.DISCOVERY))


class ServerSignInView(ServerView):
    """A sign-in at one server."""

    rules = {"DELETE": (Action.MANAGE_SERVERS, Action.CALL_TOOLS, Action.USE_TOOLS)}

    @describe_operation("sign_out_server", status=204)
    def delete(self, request: object, server_id: str) -> Response:
        """Sign out of a server: its tokens are forgotten, and withdrawn where they were given.

        The organization's, by those who manage servers; where each person signs in, one's own.
        Problems: `no_login`.
        """
        authorization_code.sign_out(self.principal, self.get_server(server_id))
        return Response(status=204)


class EnableServerView(ServerView):
    """A server's switch, on."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation("enable_server", answer=ServerDetailSerializer)
    def post(self, request: object, server_id: str) -> Response:
        """Switch a server on for everybody."""
        server = self.get_server(server_id)
        set_server_enabled(self.principal, server, enabled=True)
        return self.build_server_response(server)


class DisableServerView(ServerView):
    """A server's switch, off."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation("disable_server", answer=ServerDetailSerializer)
    def post(self, request: object, server_id: str) -> Response:
        """Switch a server off for everybody; it holds on the very next call."""
        server = self.get_server(server_id)
        set_server_enabled(self.principal, server, enabled=False)
        return self.build_server_response(server)


def _build_count_subquery(rows: QuerySet) -> Any:
    counts = rows.filter(server=OuterRef("pk")).order_by().values("server")
    number = Subquery(counts.annotate(n=Count("pk")).values("n"), output_field=IntegerField())
    return Coalesce(number, 0)


NAME_PARAMETER = OpenApiParameter(
    "name", str, many=True, description="Only the servers of this name; repeat it for several."
)
EXAMPLE = {
    "docs": {
        "type": "http",
        "url": "https://mcp.example.com/mcp",
        "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"},
    }
}


@extend_schema_field({"type": "object", "additionalProperties": JSON_OBJECT})
class ServerConfigurationsField(serializers.JSONField):
    """Servers by name, in the format of MCP clients."""


@extend_schema_serializer(
    examples=[OpenApiExample("One server with a token", {"mcpServers": EXAMPLE})]
)
class ServerExportSerializer(StrictSerializer):
    """A file for MCP clients; `POST /api/mcp-servers/import` reads it, too."""

    mcpServers = ServerConfigurationsField()


class ServerExportView(ResourceView):
    """Export of the pool."""

    rules = {"GET": READ}

    @describe_operation(
        "export_servers", answer=ServerExportSerializer, parameters=[NAME_PARAMETER]
    )
    def get(self, request: object) -> Response:
        """Return the pool's servers as MCP clients keep them.

        No secret is in it: `${NAME}` stands where one belongs.
        """
        pool = Server.objects.for_organization(
            self.principal.organization_id
        ).in_organization_pool()
        if names := set(self.request.query_params.getlist("name")):
            pool = pool.filter(name__in=names)
            if missing := sorted(names - set(pool.values_list("name", flat=True))):
                raise InvalidInput(
                    format_message(
                        "There is no server {missing!r} in the pool.", missing=missing[0]
                    ),
                    code="unknown_server",
                    field="name",
                    remedy="List the servers: GET /api/mcp-servers.",
                )
        return Response(build_client_file(pool.prefetch_related("secrets")))
