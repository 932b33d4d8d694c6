"""Preview of OpenAPI documents, and declared operations of a server."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView
from bonobot.accounts.roles import Action
from bonobot.core.api.pagination import paginate_items
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer
from mcp_servers.api.serializers import JSON_OBJECT
from mcp_servers.api.servers import ServerView
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.models import Definition, Server
from mcp_servers.openapi.declared_operations import (
    BODY_FORMATS,
    INPUT_LOCATIONS,
    METHODS,
    SCALAR_TYPES,
)
from mcp_servers.openapi.document import MAX_DOCUMENT_BYTES
from mcp_servers.openapi.select_operations import inspect_document
from mcp_servers.openapi.services import (
    build_operation_preview,
    create_operation,
    delete_operation,
    get_declared_operation,
    list_declared_operations,
    update_operation,
)

URL = "https://api.example.com/openapi.json"


@extend_schema_serializer(
    examples=[
        OpenApiExample("By its address", {"document_url": URL}, request_only=True),
        OpenApiExample("As text", {"document": "openapi: 3.1.0\npaths: {}\n"}, request_only=True),
    ]
)
class ApiPreviewBody(StrictSerializer):
    """An OpenAPI document, or where it is."""

    document = serializers.CharField(
        required=False,
        max_length=MAX_DOCUMENT_BYTES,
        trim_whitespace=False,
        help_text="The document's text: JSON or YAML, OpenAPI 3.0 to 3.2.",
    )
    document_url = serializers.CharField(
        required=False, max_length=2_048, help_text="Fetched through the guard of all connections."
    )
    allow_private = serializers.BooleanField(
        required=False, help_text="Only a platform administrator may allow a private address."
    )


class ApiAddressSerializer(StrictSerializer):
    """Where the API is by its own account."""

    url = serializers.CharField()
    description = serializers.CharField()
    private = serializers.BooleanField(help_text="It is a private address.")


class ApiOperationSerializer(StrictSerializer):
    """An operation that could be a tool."""

    key = serializers.CharField(help_text="What `operations` names: method and path.")
    name = serializers.CharField(help_text="The tool's name.")
    operation_id = serializers.CharField()
    method = serializers.CharField()
    path = serializers.CharField()
    summary = serializers.CharField()
    tags = serializers.ListField(child=serializers.CharField())
    writes = serializers.BooleanField(help_text="Its method is one that may change something.")
    deprecated = serializers.BooleanField()
    refused = serializers.CharField(help_text="Why it can't be a tool; blank if it can.")
    pointer = serializers.CharField(help_text="Where it is, or what is wrong, in the document.")


class ApiPreviewSerializer(StrictSerializer):
    """What a document offers (text of strangers: don't trust it)."""

    openapi = serializers.CharField(help_text="The version it is written in.")
    title = serializers.CharField()
    version = serializers.CharField()
    description = serializers.CharField()
    base_urls = ApiAddressSerializer(many=True)
    sign_ins = serializers.ListField(
        child=serializers.DictField(child=serializers.CharField()),
        help_text="What the document says of signing in, as `auth_config` has it.",
    )
    operations = ApiOperationSerializer(many=True)
    notices = serializers.ListField(child=serializers.CharField())


class ApiPreviewView(ResourceView):
    """A preview of an OpenAPI document."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation("preview_api", body=ApiPreviewBody, answer=ApiPreviewSerializer, asks=True)
    def post(self, request: object) -> Response:
        """Read an OpenAPI document and list its operations; nothing is written.

        Add it with `transport_type` `openapi` and `endpoint_config`: `operations` (keys of those
        chosen), `document` or `document_url`, and `url` where the document doesn't say it.
        """
        body = self.read_body(ApiPreviewBody)
        outline = inspect_document(
            self.principal,
            document=body.get("document"),
            document_url=body.get("document_url", ""),
            allow_private=body.get("allow_private", False),
        )
        return Response(outline.as_dict())


STATES = ("undiscovered", *Definition.State.values)
TYPE_PATTERN = f"^(({'|'.join(SCALAR_TYPES)})(\\[\\])?|object)$"
PARAMETER_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {
            "type": "string",
            "description": "As the API wants it; `customer.email` is a field within a JSON body.",
        },
        "in": {
            "type": "string",
            "enum": list(INPUT_LOCATIONS),
            "description": "Default: `path` where the path names it, else `query`.",
        },
        # A pattern instead of an enum: generated clients name `string` and `string[]` alike.
        "type": {"type": "string", "pattern": TYPE_PATTERN, "default": "string"},
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


@extend_schema_field(PARAMETER_SCHEMA)
class OperationParameterField(serializers.DictField):
    """A parameter or body field; validated by `declared_operations`."""


@extend_schema_field({"type": "string", "enum": list(METHODS)})
class HttpMethodField(serializers.CharField):
    """An HTTP method."""


@extend_schema_field({"type": "string", "enum": list(BODY_FORMATS)})
class BodyFormatField(serializers.CharField):
    """The encoding of body fields."""


@extend_schema_serializer(
    examples=[OpenApiExample("An operation", EXAMPLE, request_only=True)],
)
class OperationBody(VersionedBody):
    """An HTTP operation as a person declares it."""

    name = serializers.CharField(help_text="The tool's name.")
    description = serializers.CharField(help_text="A model chooses by it.")
    method = HttpMethodField(required=False, help_text="Default: GET.")
    path = serializers.CharField(
        help_text="Below the server's address; a whole address below it is one, too."
    )
    parameters = serializers.ListField(child=OperationParameterField(), required=False)
    body = BodyFormatField(
        required=False, help_text="How the fields of the body are sent; default: json."
    )
    result = serializers.CharField(
        required=False,
        allow_blank=True,
        help_text="Which part of a JSON answer is the result: `data.items`, or `/data/items`.",
    )
    labels = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text=f"What the tool does with what it touches: {', '.join(FlowLabel)}. Approved with "
        "the tool; left out, they are suggested.",
    )


class OperationSerializer(VersionedSerializer, OperationBody):  # type: ignore[misc]  # its version is read
    """A declared operation as it is kept."""

    body_classes = (OperationBody,)

    key = serializers.SerializerMethodField(help_text="Method and path, its identity.")
    state = serializers.SerializerMethodField(help_text="The tool's, at the last discovery.")

    def get_key(self, operation: dict[str, Any]) -> str:
        """Return the method and path."""
        return f"{operation['method']} {operation['path']}"

    @extend_schema_field({"type": "string", "enum": list(STATES)})
    def get_state(self, operation: dict[str, Any]) -> str:
        """Return the state of the tool."""
        state: str = self.context["states"].get(operation["name"], STATES[0])
        return state


class HeaderSerializer(StrictSerializer):
    """A header of a request."""

    name = serializers.CharField()
    value = serializers.CharField()


class ExampleRequestSerializer(StrictSerializer):
    """A request with made-up arguments, without the sign-in."""

    method = serializers.CharField()
    url = serializers.CharField()
    headers = HeaderSerializer(many=True)
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
class OperationPreviewBody(StrictSerializer):
    """An operation, and where it would be sent."""

    url = serializers.CharField(max_length=2_048, help_text="The server's address.")
    operation = OperationBody()


class OperationPreviewSerializer(StrictSerializer):
    """What would be sent, and the tool that it would be."""

    key = serializers.CharField()
    request = ExampleRequestSerializer()
    tool = serializers.SerializerMethodField(help_text="The declaration that waits for approval.")

    @extend_schema_field(JSON_OBJECT)
    def get_tool(self, preview: dict[str, Any]) -> dict[str, Any]:
        """Return the tool's declaration."""
        return dict(preview["tool"])


class OperationView(ServerView):
    """A resource of a server's declared operations."""

    def load_tool_states(self, server: Server) -> dict[str, str]:
        """Return the states of the server's tools by name."""
        return {row.name: row.state.value for row in server.definitions.tools()}

    def build_operation_response(self, server: Server, name: str, *, status: int = 200) -> Response:
        """Return the response with an operation's current state."""
        operation = get_declared_operation(server, name)
        return self.respond_row(
            operation,
            OperationSerializer,
            status=status,
            owner=server,
            states=self.load_tool_states(server),
        )


class OperationListView(OperationView):
    """The operations that are declared at a server."""

    rules = {"GET": READ, "POST": Action.MANAGE_SERVERS}
    orderings = ("name",)

    @describe_operation("list_declared_operations", answer=OperationSerializer(many=True))
    def get(self, request: object, server_id: str) -> Response:
        """List the operations that are declared by hand, by name; none where a document is."""
        self.check_parameters()
        server = self.get_server(server_id)
        context = {"states": self.load_tool_states(server)}
        return paginate_items(
            self.request,
            list_declared_operations(server),
            lambda one: str(one["name"]),
            lambda one: OperationSerializer(one, context=context).data,
        )

    @describe_operation(
        "add_declared_operation", body=OperationBody, answer=OperationSerializer, status=201
    )
    def post(self, request: object, server_id: str) -> Response:
        """Declare one more operation; its tool waits for approval once it was discovered.

        A new server is added with `endpoint_config`: `url` and `declared`, a list of operations.
        """
        server = self.get_server(server_id)
        operation = create_operation(self.principal, server, self.read_body(OperationBody))
        return self.build_operation_response(server, operation.name, status=201)


class OperationDetailView(OperationView):
    """One declared operation."""

    rules = {
        "GET": READ,
        "PUT": Action.MANAGE_SERVERS,
        "DELETE": Action.MANAGE_SERVERS,
    }

    @describe_operation("get_declared_operation", answer=OperationSerializer)
    def get(self, request: object, server_id: str, name: str) -> Response:
        """Show a declared operation."""
        return self.build_operation_response(self.get_server(server_id), name)

    @describe_operation("change_declared_operation", body=OperationBody, answer=OperationSerializer)
    def put(self, request: object, server_id: str, name: str) -> Response:
        """Declare an operation anew; what is approved is called until the next discovery."""
        server = self.get_server(server_id)
        operation = update_operation(self.principal, server, name, self.read_body(OperationBody))
        return self.build_operation_response(server, operation.name)

    @describe_operation("remove_declared_operation", status=204)
    def delete(self, request: object, server_id: str, name: str) -> Response:
        """Remove an operation: it isn't called from then on."""
        delete_operation(self.principal, self.get_server(server_id), name)
        return Response(status=204)


class OperationPreviewView(ResourceView):
    """What an operation would send."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation(
        "preview_operation", body=OperationPreviewBody, answer=OperationPreviewSerializer
    )
    def post(self, request: object) -> Response:
        """Show what an operation would send, with made-up arguments; nothing is sent or written."""
        body = self.read_body(OperationPreviewBody)
        preview = build_operation_preview(body["operation"], body["url"], field="operation")
        return self.respond_row(preview, OperationPreviewSerializer)
