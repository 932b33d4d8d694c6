"""The pool of servers: add, read, change, switch, test, refresh, remove."""

from typing import Any

import django_filters
from django.db.models import Count, IntegerField, OuterRef, Prefetch, QuerySet, Subquery
from django.db.models.functions import Coalesce
from drf_spectacular.utils import PolymorphicProxySerializer
from rest_framework.response import Response

from bonobot.tenancy.api.filters import Filters, FlagFilter
from bonobot.tenancy.api.resources import READ, Resource, named_in_path
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.roles import Action
from mcp_servers.api.contacts import contact
from mcp_servers.api.presets import add_from_preset
from mcp_servers.api.shapes import (
    TO_ADD,
    TO_CHANGE,
    NewPresetServerBody,
    NewServerBody,
    RefreshShape,
    ServerBody,
    ServerDetailShape,
    ServerShape,
    TestShape,
    spec_of,
)
from mcp_servers.models import Check, Definition, Server
from mcp_servers.oauth import logins
from mcp_servers.openapi.choosing import completed
from mcp_servers.registration import add, alter, remove, switch

ADDED = PolymorphicProxySerializer(
    component_name="ServerToAdd",
    serializers=[NewServerBody, NewPresetServerBody],
    resource_type_field_name=None,
)


class ServerFilter(Filters):
    """What servers are looked for by."""

    SCOPES = [("pool", "the pool's"), ("agent", "those private to an agent"), ("all", "both")]

    scope = django_filters.ChoiceFilter(choices=SCOPES, method="by_scope", label="Default: pool")
    status = django_filters.ChoiceFilter(choices=Server.Status.choices)
    enabled = FlagFilter()
    transport_type = django_filters.ChoiceFilter(choices=Server.Transport.choices)
    q = django_filters.CharFilter(
        field_name="name", lookup_expr="icontains", label="Part of the name"
    )

    def by_scope(self, rows: Any, name: str, value: str) -> Any:
        """Keep the pool's, the agents' or all."""
        pool = Server.objects.pool().values("pk")
        if value == "all":
            return rows
        return rows.filter(pk__in=pool) if value == "pool" else rows.exclude(pk__in=pool)

    def filter_queryset(self, queryset: Any) -> Any:
        """Apply the filters; without a scope the pool is meant."""
        self.form.cleaned_data["scope"] = self.form.cleaned_data["scope"] or "pool"
        return super().filter_queryset(queryset)


def readable_servers(rows: Any, *, tools: bool = False) -> Any:
    """Add to a queryset what the shapes of servers show, in a fixed number of queries."""
    offered = Definition.objects.tools().filter(present=True)
    if tools:
        named = offered.only("server", "name", "description", "payload").order_by("name")
        rows = rows.prefetch_related(Prefetch("definitions", named, to_attr="offered_tools"))
    return (
        rows.select_related("watch")
        .prefetch_related("secrets")
        .annotate(
            tool_count=_count(offered),
            waiting_count=_count(Definition.objects.waiting()),
        )
    )


class ServerResource(Resource):
    """A resource below one server, in the pool or private to an agent."""

    def server(self, server_id: str) -> Server:
        """Return the server; raises `NotFound`."""
        with named_in_path("server_id"):
            found: Server = Server.objects.get_or_404(self.organization_id, pk=server_id)
        return found

    def answer(self, server: Server, *, status: int = 200) -> Response:
        """Show the server as it is now."""
        rows = readable_servers(Server.objects.filter(pk=server.pk), tools=True)
        return self.shown(rows.get(), ServerDetailShape, status=status)


class Servers(ServerResource):
    """All servers."""

    rules = {"GET": READ, "POST": Action.MANAGE_SERVERS}
    queryset = Server.objects.none()
    filterset_class = ServerFilter
    ordering = ("name", "pk")
    orderings = ("name", "slug", "status", "created_at", "updated_at")

    @operation("list_servers", answer=ServerShape(many=True))
    def get(self, request: object) -> Response:
        """List the pool's servers.

        With `scope=agent` those that are private to an agent, with `scope=all` both.
        """
        rows = Server.objects.for_organization(self.organization_id)
        return self.listed(readable_servers(rows), ServerShape)

    @operation(
        "add_server", body=ADDED, answer=ServerDetailShape, status=201, examples=TO_ADD, asks=True
    )
    def post(self, request: object) -> Response:
        """Add a server to the pool.

        Either with its configuration, or with `preset` and `parameters`. A `stdio` command can be
        set by a platform administrator only; presets are for everyone who manages servers, stdio
        ones where they are enabled (else `preset_not_enabled`).
        """
        if "preset" in self.members():
            server = add_from_preset(self.principal, self.read(NewPresetServerBody))
        else:
            spec = completed(self.principal, spec_of(self.read(NewServerBody)))
            server = add(self.principal, spec)
        return self.answer(server, status=201)


class OneServer(ServerResource):
    """One server."""

    rules = {
        "GET": READ,
        "PUT": Action.MANAGE_SERVERS,
        "PATCH": Action.MANAGE_SERVERS,
        "DELETE": Action.MANAGE_SERVERS,
    }

    @operation("get_server", answer=ServerDetailShape)
    def get(self, request: object, server_id: str) -> Response:
        """Show a server with the tools of its last discovery; secrets are masked."""
        return self.answer(self.server(server_id))

    @operation("replace_server", body=NewServerBody, answer=ServerDetailShape, asks=True)
    def put(self, request: object, server_id: str) -> Response:
        """Change a server's configuration.

        Masked values and an `auth_config` that is left out keep what is stored.
        """
        return self._alter(server_id, NewServerBody, partial=False)

    @operation(
        "change_server", body=ServerBody, answer=ServerDetailShape, examples=[TO_CHANGE], asks=True
    )
    def patch(self, request: object, server_id: str) -> Response:
        """Change parts of a server's configuration."""
        return self._alter(server_id, ServerBody, partial=True)

    @operation("remove_server", status=204)
    def delete(self, request: object, server_id: str) -> Response:
        """Remove a server, its definitions and secrets; the audit keeps its name."""
        remove(self.principal, self.server(server_id))
        return Response(status=204)

    def _alter(self, server_id: str, shape: type[Shape], *, partial: bool) -> Response:
        server = self.server(server_id)
        spec = spec_of(self.read(shape, partial=partial), server)
        spec = completed(self.principal, spec, server)
        return self.answer(alter(self.principal, server, spec))


class TestServer(ServerResource):
    """A test of one server."""

    __test__ = False
    rules = {"POST": Action.MANAGE_SERVERS}

    @operation("test_server", answer=TestShape)
    def post(self, request: object, server_id: str) -> Response:
        """Connect to a server now.

        A server that doesn't answer is no error of this request: the answer is 200 with the
        status `error` or `needs_reauth`, the code, and what to do.
        """
        return Response(contact(self.principal, self.server(server_id)))


class RefreshServer(ServerResource):
    """A discovery of one server."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @operation("refresh_server", answer=RefreshShape)
    def post(self, request: object, server_id: str) -> Response:
        """Ask a server anew what it offers; what is new or changed waits for approval."""
        server = self.server(server_id)
        return Response(contact(self.principal, server, kind=Check.Kind.DISCOVERY))


class SignIn(ServerResource):
    """A sign-in at one server."""

    rules = {"DELETE": (Action.MANAGE_SERVERS, Action.CALL_TOOLS, Action.USE_TOOLS)}

    @operation("sign_out_server", status=204)
    def delete(self, request: object, server_id: str) -> Response:
        """Sign out of a server: its tokens are forgotten, and withdrawn where they were given.

        The organization's, by those who manage servers; where each person signs in, one's own.
        Problems: `no_login`.
        """
        logins.forget(self.principal, self.server(server_id))
        return Response(status=204)


class EnableServer(ServerResource):
    """A server's switch, on."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @operation("enable_server", answer=ServerDetailShape)
    def post(self, request: object, server_id: str) -> Response:
        """Switch a server on for everybody."""
        server = self.server(server_id)
        switch(self.principal, server, enabled=True)
        return self.answer(server)


class DisableServer(ServerResource):
    """A server's switch, off."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @operation("disable_server", answer=ServerDetailShape)
    def post(self, request: object, server_id: str) -> Response:
        """Switch a server off for everybody; it holds on the very next call."""
        server = self.server(server_id)
        switch(self.principal, server, enabled=False)
        return self.answer(server)


def _count(rows: QuerySet) -> Any:
    counted = rows.filter(server=OuterRef("pk")).order_by().values("server")
    number = Subquery(counted.annotate(n=Count("pk")).values("n"), output_field=IntegerField())
    return Coalesce(number, 0)
