"""Export: the pool as other clients read it, `${NAME}` where a secret belongs (FEATURES B1)."""

from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    extend_schema_field,
    extend_schema_serializer,
)
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.tenancy.api.resources import READ, Resource
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from mcp_servers.api.configurations import JSON_OBJECT
from mcp_servers.exporting import as_client_file
from mcp_servers.models import Server

NAMES = OpenApiParameter(
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
class Configurations(serializers.JSONField):
    """Servers by name, each in the members that MCP clients read."""


@extend_schema_serializer(
    examples=[OpenApiExample("One server with a token", {"mcpServers": EXAMPLE})]
)
class ExportShape(Shape):
    """A file for MCP clients; `POST /api/mcp-servers/import` reads it, too."""

    mcpServers = Configurations()


class Export(Resource):
    """Export of the pool."""

    rules = {"GET": READ}

    @operation("export_servers", answer=ExportShape, parameters=[NAMES])
    def get(self, request: object) -> Response:
        """Return the pool's servers as MCP clients keep them.

        No secret is in it: `${NAME}` stands where one belongs.
        """
        pool = Server.objects.for_organization(self.principal.organization_id).pool()
        if names := set(self.request.query_params.getlist("name")):
            pool = pool.filter(name__in=names)
            if missing := sorted(names - set(pool.values_list("name", flat=True))):
                raise Invalid(
                    say("There is no server {missing!r} in the pool.", missing=missing[0]),
                    code="unknown_server",
                    field="name",
                    remedy="List the servers: GET /api/mcp-servers.",
                )
        return Response(as_client_file(pool.prefetch_related("secrets")))
