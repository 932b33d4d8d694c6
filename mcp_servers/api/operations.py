"""Operations that are declared by hand: those of a server, and what one would send (E5)."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.tenancy.api.pages import page_of
from bonobot.tenancy.api.resources import READ, Resource
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape, VersionedBody, VersionedShape
from bonobot.tenancy.roles import Action
from mcp_servers.api.configurations import JSON_OBJECT
from mcp_servers.api.servers import ServerResource
from mcp_servers.labels import Label
from mcp_servers.models import Definition, Server
from mcp_servers.openapi.declaring import BODIES, METHODS
from mcp_servers.openapi.inputs import PLACES, SCALARS
from mcp_servers.openapi.keeping import (
    add_operation,
    change_operation,
    operation_named,
    operations_of,
    remove_operation,
)
from mcp_servers.openapi.showing import preview

STATES = ("undiscovered", *Definition.State.values)
ONE_OF_THEM = f"^(({'|'.join(SCALARS)})(\\[\\])?|object)$"
PARAMETER = {
    "type": "object",
    "properties": {
        "name": {
            "type": "string",
            "description": "As the API wants it; `customer.email` is a field within a JSON body.",
        },
        "in": {
            "type": "string",
            "enum": list(PLACES),
            "description": "Default: `path` where the path names it, else `query`.",
        },
        # No enumeration: clients couldn't tell `string` from `string[]` by name.
        "type": {"type": "string", "pattern": ONE_OF_THEM, "default": "string"},
        "required": {"type": "boolean", "default": False},
        "description": {"type": "string"},
        "default": {"description": "Sent where the model leaves it out."},
        "enum": {"type": "array", "items": {}, "description": "Nothing else may be given."},
    },
    "required": ["name"],
    "additionalProperties": False,
}
EXAMPLE = {
    "name": "get_order",
    "description": "Look up an order of a customer by its number.",
    "method": "GET",
    "path": "/orders/{id}",
    "parameters": [
        {"name": "id", "in": "path", "type": "integer", "description": "The order's number"},
        {"name": "expand", "type": "string[]", "enum": ["items", "customer"]},
    ],
    "result": "data",
}


@extend_schema_field(PARAMETER)
class Parameter(serializers.DictField):
    """A parameter, or a field of the body; `declaring` says what holds."""


@extend_schema_field({"type": "string", "enum": list(METHODS)})
class Method(serializers.CharField):
    """A method of HTTP."""


@extend_schema_field({"type": "string", "enum": list(BODIES)})
class Body(serializers.CharField):
    """How fields of a body are written."""


@extend_schema_serializer(
    examples=[OpenApiExample("An operation", EXAMPLE, request_only=True)],
)
class OperationBody(VersionedBody):
    """An HTTP operation as a person declares it."""

    name = serializers.CharField(help_text="The tool's name.")
    description = serializers.CharField(help_text="A model chooses by it.")
    method = Method(required=False, help_text="Default: GET.")
    path = serializers.CharField(
        help_text="Below the server's address; a whole address below it is one, too."
    )
    parameters = serializers.ListField(child=Parameter(), required=False)
    body = Body(required=False, help_text="How the fields of the body are sent; default: json.")
    result = serializers.CharField(
        required=False,
        allow_blank=True,
        help_text="Which part of a JSON answer is the result: `data.items`, or `/data/items`.",
    )
    labels = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text=f"What the tool does with what it touches: {', '.join(Label)}. Approved with "
        "the tool; left out, they are suggested.",
    )


class OperationShape(VersionedShape, OperationBody):  # type: ignore[misc]  # its version is read
    """A declared operation as it is kept."""

    written_as = (OperationBody,)

    key = serializers.SerializerMethodField(help_text="Method and path, its identity.")
    state = serializers.SerializerMethodField(help_text="The tool's, at the last discovery.")

    def get_key(self, one: dict[str, Any]) -> str:
        """Return method and path."""
        return f"{one['method']} {one['path']}"

    @extend_schema_field({"type": "string", "enum": list(STATES)})
    def get_state(self, one: dict[str, Any]) -> str:
        """Return how its tool stands."""
        found: str = self.context["states"].get(one["name"], STATES[0])
        return found


class HeaderShape(Shape):
    """A header of a request."""

    name = serializers.CharField()
    value = serializers.CharField()


class RequestShape(Shape):
    """A request with made-up arguments, without the sign-in."""

    method = serializers.CharField()
    url = serializers.CharField()
    headers = HeaderShape(many=True)
    body = serializers.CharField(help_text="Blank where none is sent.")


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "An operation",
            {"url": "https://api.example.com/v1", "operation": EXAMPLE},
            request_only=True,
        )
    ],
)
class OperationPreviewBody(Shape):
    """An operation, and where it would be sent."""

    url = serializers.CharField(max_length=2_048, help_text="The server's address.")
    operation = OperationBody()


class OperationPreviewShape(Shape):
    """What would be sent, and the tool that it would be."""

    key = serializers.CharField()
    request = RequestShape()
    tool = serializers.SerializerMethodField(help_text="The declaration that waits for approval.")

    @extend_schema_field(JSON_OBJECT)
    def get_tool(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the tool's declaration."""
        return dict(found["tool"])


class OperationResource(ServerResource):
    """A resource of a server's declared operations."""

    def states(self, server: Server) -> dict[str, str]:
        """Return how the tools of a server stand, by name."""
        return {row.name: row.state.value for row in server.definitions.tools()}

    def told(self, server: Server, name: str, *, status: int = 200) -> Response:
        """Show one operation as it is now."""
        one = operation_named(server, name)
        return self.shown(
            one, OperationShape, status=status, owner=server, states=self.states(server)
        )


class Operations(OperationResource):
    """The operations that are declared at a server."""

    rules = {"GET": READ, "POST": Action.MANAGE_SERVERS}
    orderings = ("name",)

    @operation("list_declared_operations", answer=OperationShape(many=True))
    def get(self, request: object, server_id: str) -> Response:
        """List the operations that are declared by hand, by name; none where a document is."""
        self.check_parameters()
        server = self.server(server_id)
        context = {"states": self.states(server)}
        return page_of(
            self.request,
            operations_of(server),
            lambda one: str(one["name"]),
            lambda one: OperationShape(one, context=context).data,
        )

    @operation("add_declared_operation", body=OperationBody, answer=OperationShape, status=201)
    def post(self, request: object, server_id: str) -> Response:
        """Declare one more operation; its tool waits for approval once it was discovered.

        A new server is added with `endpoint_config`: `url` and `declared`, a list of operations.
        """
        server = self.server(server_id)
        made = add_operation(self.principal, server, self.read(OperationBody))
        return self.told(server, made.name, status=201)


class OneOperation(OperationResource):
    """One declared operation."""

    rules = {
        "GET": READ,
        "PUT": Action.MANAGE_SERVERS,
        "DELETE": Action.MANAGE_SERVERS,
    }

    @operation("get_declared_operation", answer=OperationShape)
    def get(self, request: object, server_id: str, name: str) -> Response:
        """Show a declared operation."""
        return self.told(self.server(server_id), name)

    @operation("change_declared_operation", body=OperationBody, answer=OperationShape)
    def put(self, request: object, server_id: str, name: str) -> Response:
        """Declare an operation anew; what is approved is called until the next discovery."""
        server = self.server(server_id)
        made = change_operation(self.principal, server, name, self.read(OperationBody))
        return self.told(server, made.name)

    @operation("remove_declared_operation", status=204)
    def delete(self, request: object, server_id: str, name: str) -> Response:
        """Remove an operation: it isn't called from then on."""
        remove_operation(self.principal, self.server(server_id), name)
        return Response(status=204)


class OperationPreview(Resource):
    """What an operation would send."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @operation("preview_operation", body=OperationPreviewBody, answer=OperationPreviewShape)
    def post(self, request: object) -> Response:
        """Show what an operation would send, with made-up arguments; nothing is sent or written."""
        body = self.read(OperationPreviewBody)
        found = preview(body["operation"], body["url"], field="operation")
        return self.shown(found, OperationPreviewShape)
