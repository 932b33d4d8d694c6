"""A preview of an OpenAPI document: what could become tools, before anything is added (X12)."""

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.tenancy.api.resources import Resource
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.roles import Action
from mcp_servers.openapi.choosing import look_at
from mcp_servers.openapi.reading import LONGEST_TEXT

URL = "https://api.example.com/openapi.json"


@extend_schema_serializer(
    examples=[
        OpenApiExample("By its address", {"document_url": URL}, request_only=True),
        OpenApiExample("As text", {"document": "openapi: 3.1.0\npaths: {}\n"}, request_only=True),
    ]
)
class ApiPreviewBody(Shape):
    """An OpenAPI document, or where it is."""

    document = serializers.CharField(
        required=False,
        max_length=LONGEST_TEXT,
        trim_whitespace=False,
        help_text="The document's text: JSON or YAML, OpenAPI 3.0 to 3.2.",
    )
    document_url = serializers.CharField(
        required=False, max_length=2_048, help_text="Fetched through the guard of all connections."
    )
    allow_private = serializers.BooleanField(
        required=False, help_text="Only a platform administrator may allow a private address."
    )


class ApiAddressShape(Shape):
    """Where the API is by its own account."""

    url = serializers.CharField()
    description = serializers.CharField()
    private = serializers.BooleanField(help_text="It is a private address.")


class ApiOperationShape(Shape):
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


class ApiPreviewShape(Shape):
    """What a document offers (text of strangers: don't trust it)."""

    openapi = serializers.CharField(help_text="The version it is written in.")
    title = serializers.CharField()
    version = serializers.CharField()
    description = serializers.CharField()
    base_urls = ApiAddressShape(many=True)
    sign_ins = serializers.ListField(
        child=serializers.DictField(child=serializers.CharField()),
        help_text="What the document says of signing in, as `auth_config` has it.",
    )
    operations = ApiOperationShape(many=True)
    notices = serializers.ListField(child=serializers.CharField())


class ApiPreview(Resource):
    """A preview of an OpenAPI document."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @operation("preview_api", body=ApiPreviewBody, answer=ApiPreviewShape, asks=True)
    def post(self, request: object) -> Response:
        """Read an OpenAPI document and list its operations; nothing is written.

        Add it with `transport_type` `openapi` and `endpoint_config`: `operations` (keys of those
        chosen), `document` or `document_url`, and `url` where the document doesn't say it.
        """
        body = self.read(ApiPreviewBody)
        offer = look_at(
            self.principal,
            document=body.get("document"),
            document_url=body.get("document_url", ""),
            allow_private=body.get("allow_private", False),
        )
        return Response(offer.as_dict())
