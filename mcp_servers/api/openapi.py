"""Preview of OpenAPI documents, and declared operations of a server."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
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
STATES = ("undiscovered", *Definition.State.values)
TYPE_PATTERN = f"^(({'|'.join(SCALAR_TYPES)})(\\[\\])?|object)$"
PARAMETER_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {
            "type": "string",
            "description": "Name in the API; `customer.email` is a nested field of a JSON body.",
        },
        "in": {
            "type": "string",
            "enum": list(INPUT_LOCATIONS),
            "description": "Default: `path` if the path contains the name, otherwise `query`.",
        },
        # A pattern instead of an enum: generated clients name `string` and `string[]` alike.
        "type": {"type": "string", "pattern": TYPE_PATTERN, "default": "string"},
        "required": {"type": "boolean", "default": False},
        "description": {"type": "string"},
        "default": {"description": "Sent if the model omits it."},
        "enum": {"type": "array", "items": {}, "description": "The only allowed values."},
    },
    "required": ["name"],
    "additionalProperties": False,
}


class ApiPreviewBody(StrictSerializer):
    """An OpenAPI document, or its URL."""

    document = serializers.CharField(
        required=False,
        max_length=MAX_DOCUMENT_BYTES,
        trim_whitespace=False,
        help_text="The document: JSON or YAML, OpenAPI 3.0 to 3.2.",
    )
    document_url = serializers.CharField(
        required=False, max_length=2_048, help_text="Fetched under the egress rules."
    )
    allow_private = serializers.BooleanField(
        required=False, help_text="Only a platform administrator can allow a private address."
    )


class ApiAddressSerializer(StrictSerializer):
    """A server URL from the document."""

    url = serializers.CharField()
    description = serializers.CharField()
    private = serializers.BooleanField(help_text="True if the address is private.")


class ApiOperationSerializer(StrictSerializer):
    """An operation that can become a tool."""

    key = serializers.CharField(help_text="Key for `operations`: method and path.")
    name = serializers.CharField(help_text="The tool's name.")
    operation_id = serializers.CharField()
    method = serializers.CharField()
    path = serializers.CharField()
    summary = serializers.CharField()
    tags = serializers.ListField(child=serializers.CharField())
    writes = serializers.BooleanField(help_text="True if its method can change data.")
    deprecated = serializers.BooleanField()
    refused = serializers.CharField(help_text="Why it can't be a tool; empty if it can.")
    pointer = serializers.CharField(
        help_text="Location of the operation, or of the problem, in the document."
    )


class ApiPreviewSerializer(StrictSerializer):
    """The contents of a document (untrusted text)."""

    openapi = serializers.CharField(help_text="OpenAPI version of the document.")
    title = serializers.CharField()
    version = serializers.CharField()
    description = serializers.CharField()
    base_urls = ApiAddressSerializer(many=True)
    sign_ins = serializers.ListField(
        child=serializers.DictField(child=serializers.CharField()),
        help_text="The document's security schemes, in the format of `auth_config`.",
    )
    operations = ApiOperationSerializer(many=True)
    notices = serializers.ListField(child=serializers.CharField())


class ApiPreviewView(ResourceView):
    """A preview of an OpenAPI document."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation("preview_api", body=ApiPreviewBody, answer=ApiPreviewSerializer, asks=True)
    def post(self, request: object) -> Response:
        """Preview an OpenAPI document and its operations; nothing is saved.

        To add the API, create a server with `transport_type` `openapi` and `endpoint_config`:
        `operations` (keys of the selected operations), `document` or `document_url`, and `url` if
        the document doesn't have a server URL.
        """
        body = self.read_body(ApiPreviewBody)
        outline = inspect_document(
            self.principal,
            document=body.get("document"),
            document_url=body.get("document_url", ""),
            allow_private=body.get("allow_private", False),
        )
        return Response(outline.as_dict())


@extend_schema_field(PARAMETER_SCHEMA)
class OperationParameterField(serializers.DictField):
    """A parameter or body field; validated by `declared_operations`."""


@extend_schema_field({"type": "string", "enum": list(METHODS)})
class HttpMethodField(serializers.CharField):
    """An HTTP method."""


@extend_schema_field({"type": "string", "enum": list(BODY_FORMATS)})
class BodyFormatField(serializers.CharField):
    """The encoding of body fields."""


class OperationBody(VersionedBody):
    """A declared HTTP operation."""

    name = serializers.CharField(help_text="The tool's name.")
    description = serializers.CharField(help_text="Models select the tool by its description.")
    method = HttpMethodField(required=False, help_text="Default: GET.")
    path = serializers.CharField(
        help_text="Relative to the server's URL; a full URL below it is also accepted."
    )
    parameters = serializers.ListField(child=OperationParameterField(), required=False)
    body = BodyFormatField(required=False, help_text="Encoding of the body fields; default: json.")
    result = serializers.CharField(
        required=False,
        allow_blank=True,
        help_text="The part of a JSON response to return: `data.items` or `/data/items`.",
    )
    labels = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text=f"Flow labels of the tool: {', '.join(FlowLabel)}. Approved with the tool. "
        "Default: suggested labels.",
    )


class OperationSerializer(VersionedSerializer, OperationBody):  # type: ignore[misc]  # its version is read
    """A declared HTTP operation with its state."""

    body_classes = (OperationBody,)

    key = serializers.SerializerMethodField(
        help_text="Method and path, which identify the operation."
    )
    state = serializers.SerializerMethodField(help_text="State of the tool at the last discovery.")

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
    """A request with example arguments, without credentials."""

    method = serializers.CharField()
    url = serializers.CharField()
    headers = HeaderSerializer(many=True)
    body = serializers.CharField(help_text="Empty if there is no body.")


class OperationPreviewBody(StrictSerializer):
    """An operation, and the server's URL."""

    url = serializers.CharField(max_length=2_048, help_text="The server's URL.")
    operation = OperationBody()


class OperationPreviewSerializer(StrictSerializer):
    """The request that would be sent, and the resulting tool."""

    key = serializers.CharField()
    request = ExampleRequestSerializer()
    tool = serializers.SerializerMethodField(
        help_text="The declaration that will be pending review."
    )

    @extend_schema_field(JSON_OBJECT)
    def get_tool(self, preview: dict[str, Any]) -> dict[str, Any]:
        """Return the tool's declaration."""
        return dict(preview["tool"])


class OperationView(ServerView):
    """Base class for a server's declared operations."""

    def load_tool_states(self, server: Server) -> dict[str, str]:
        return {row.name: row.state.value for row in server.definitions.tools()}

    def build_operation_response(self, server: Server, name: str, *, status: int = 200) -> Response:
        operation = get_declared_operation(server, name)
        return self.respond_row(
            operation,
            OperationSerializer,
            status=status,
            owner=server,
            states=self.load_tool_states(server),
        )


class OperationListView(OperationView):
    """The declared operations of a server."""

    rules = {"GET": READ, "POST": Action.MANAGE_SERVERS}
    orderings = ("name",)

    @describe_operation("list_declared_operations", answer=OperationSerializer(many=True))
    def get(self, request: object, server_id: str) -> Response:
        """List a server's declared operations by name; empty if it has a document."""
        self.check_parameters()
        server = self.get_server(server_id)
        context = {"states": self.load_tool_states(server)}
        return paginate_items(
            self.request,
            list_declared_operations(server),
            lambda operation: str(operation["name"]),
            lambda operation: OperationSerializer(operation, context=context).data,
        )

    @describe_operation(
        "create_declared_operation", body=OperationBody, answer=OperationSerializer, status=201
    )
    def post(self, request: object, server_id: str) -> Response:
        """Create a declared operation; its tool is pending review after a discovery.

        To create a server with declared operations, use `endpoint_config`: `url` and `declared`, a
        list of operations.
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
        """Get a declared operation."""
        return self.build_operation_response(self.get_server(server_id), name)

    @describe_operation(
        "replace_declared_operation", body=OperationBody, answer=OperationSerializer
    )
    def put(self, request: object, server_id: str, name: str) -> Response:
        """Replace a declared operation; the approved one is used until a discovery."""
        server = self.get_server(server_id)
        operation = update_operation(self.principal, server, name, self.read_body(OperationBody))
        return self.build_operation_response(server, operation.name)

    @describe_operation("delete_declared_operation", status=204)
    def delete(self, request: object, server_id: str, name: str) -> Response:
        """Delete a declared operation; effective on the next call."""
        delete_operation(self.principal, self.get_server(server_id), name)
        return Response(status=204)


class OperationPreviewView(ResourceView):
    """Preview of a declared operation."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation(
        "preview_operation", body=OperationPreviewBody, answer=OperationPreviewSerializer
    )
    def post(self, request: object) -> Response:
        """Preview the request of an operation, with example arguments; nothing is sent or saved."""
        body = self.read_body(OperationPreviewBody)
        preview = build_operation_preview(body["operation"], body["url"], field="operation")
        return self.respond_row(preview, OperationPreviewSerializer)
