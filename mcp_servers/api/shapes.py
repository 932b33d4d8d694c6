"""Shapes of servers: exactly those of FEATURES A1 to A3 and A11, and what the pool adds."""

from collections.abc import Mapping
from typing import Any, ClassVar

from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from bonobot.tenancy.api.shapes import Shape, VersionedBody, VersionedShape
from bonobot.tenancy.roles import Action
from mcp_servers.api.asked_back import AskedBackBody, AskedBackShape
from mcp_servers.api.configurations import (
    AUTH_CONFIG,
    ENDPOINT_CONFIG,
    AuthConfig,
    EndpointConfig,
    TransportType,
)
from mcp_servers.api.pricing import PricedBody, PricedShape
from mcp_servers.configuration import ServerSpec, shown_auth, shown_endpoint
from mcp_servers.models import Definition, Server
from mcp_servers.oauth.accounts import PER
from mcp_servers.oauth.presence import PRESENCES, presences
from mcp_servers.outputs import last_words
from mcp_servers.packages import installation_of_server
from mcp_servers.respecifying import respecified
from mcp_servers.standing import STATES, standing

STDIO_EXAMPLE = {
    "name": "aws-s3",
    "transport_type": "stdio",
    "endpoint_config": {
        "command": "uvx",
        "args": ["awslabs.s3-tables-mcp-server@0.0.7"],
        "env": {"AWS_REGION": "us-east-1"},
    },
    "auth_config": {"type": "none"},
    "enabled": True,
}
HTTP_EXAMPLE = {
    "name": "docs",
    "transport_type": "http",
    "endpoint_config": {"url": "https://mcp.example.com/mcp"},
    "auth_config": {"type": "bearer_token", "token": "…"},
}
API_EXAMPLE = {
    "name": "pets",
    "transport_type": "openapi",
    "endpoint_config": {
        "document_url": "https://api.example.com/openapi.json",
        "operations": ["GET /pets", "GET /pets/{id}"],
    },
    "auth_config": {"type": "api_key", "header": "X-API-Key", "key": "…"},
}
PRESET_EXAMPLE = {"preset": "filesystem", "name": "files", "parameters": {"folder": "/srv/docs"}}
TOOL_EXAMPLE = {"name": "list_buckets", "description": "List S3 buckets"}


class ServerBody(VersionedBody, AskedBackBody, PricedBody):
    """A server as it is written; what a PATCH leaves out stays."""

    name = serializers.CharField(max_length=255)
    transport_type = TransportType()
    endpoint_config = EndpointConfig()
    auth_config = AuthConfig(
        required=False, allow_null=True, help_text="Left out: what is stored is kept."
    )
    enabled = serializers.BooleanField(required=False)
    description = serializers.CharField(required=False, allow_blank=True, max_length=500)
    approval = serializers.ChoiceField(
        Server.Approval.choices, required=False, help_text="When new definitions may be called."
    )
    allow_private = serializers.BooleanField(
        required=False, help_text="Only a platform administrator may allow a private address."
    )
    only_tools = serializers.ListField(
        child=serializers.CharField(max_length=512),
        required=False,
        max_length=1_000,
        help_text="Globs; a tool that is seen for the first time and fits none is switched off.",
    )
    confinement = serializers.ChoiceField(
        Server.Confinement.choices,
        required=False,
        help_text="What a stdio server runs in, by default a `sandbox`; it isn't started with "
        "less. Only a platform administrator may set it.",
    )
    network = serializers.ChoiceField(
        Server.Network.choices,
        required=False,
        help_text="What a stdio server reaches: by default, by the egress rules with `sandbox`, "
        "nothing with `bubblewrap`.",
    )
    env_exceptions = serializers.DictField(
        child=serializers.CharField(max_length=500),
        required=False,
        help_text="Why each dangerous variable of `env` is allowed, by its name. Only a platform "
        "administrator may set it; left out, what is stored stays.",
    )


class NewPresetServerBody(Shape):
    """A server as it is added from a preset."""

    preset = serializers.CharField(help_text="Slug of the preset.")
    parameters = serializers.DictField(child=serializers.CharField(), required=False)
    name = serializers.CharField(max_length=255, required=False)
    enabled = serializers.BooleanField(required=False)


DECLARED_EXAMPLE = {
    "name": "shop",
    "transport_type": "openapi",
    "endpoint_config": {
        "url": "https://api.example.com/v1",
        "declared": [
            {
                "name": "get_order",
                "description": "Look up an order by its number.",
                "path": "/orders/{id}",
                "parameters": [{"name": "id", "in": "path", "type": "integer"}],
            }
        ],
    },
    "auth_config": {"type": "bearer_token", "token": "…"},
}
TO_ADD = [
    OpenApiExample("A local program", STDIO_EXAMPLE, request_only=True),
    OpenApiExample("Over HTTP", HTTP_EXAMPLE, request_only=True),
    OpenApiExample("A REST API", API_EXAMPLE, request_only=True),
    OpenApiExample("HTTP operations, declared by hand", DECLARED_EXAMPLE, request_only=True),
    OpenApiExample("From a preset", PRESET_EXAMPLE, request_only=True),
]
TO_CHANGE = OpenApiExample("Another name", {"name": "s3"}, request_only=True)


@extend_schema_serializer(examples=TO_ADD[:4])
class NewServerBody(ServerBody):
    """A server as it is added."""


class ToolShape(Shape):
    """A tool as its server declares it (text from the server: don't trust it)."""

    name = serializers.CharField()
    description = serializers.CharField()
    input_schema = serializers.DictField()


class ServerShape(VersionedShape, AskedBackShape, PricedShape):
    """A server as it is read: every secret masked."""

    written_as: ClassVar[tuple[type[Shape], ...]] = (ServerBody,)

    id = serializers.UUIDField()
    scope = serializers.SerializerMethodField(help_text="Whose it is: the pool's or one agent's.")
    agent_id = serializers.SerializerMethodField(help_text="The agent that it is private to.")
    name = serializers.CharField()
    slug = serializers.CharField()
    description = serializers.CharField()
    transport_type = serializers.ChoiceField(["stdio", "http", "openapi"])
    endpoint_config = serializers.SerializerMethodField()
    auth_config = serializers.SerializerMethodField()
    enabled = serializers.BooleanField()
    approval = serializers.ChoiceField(Server.Approval.choices)
    allow_private = serializers.BooleanField()
    only_tools = serializers.ListField(child=serializers.CharField())
    confinement = serializers.ChoiceField(Server.Confinement.choices)
    network = serializers.ChoiceField(Server.Network.choices)
    env_exceptions = serializers.DictField(
        child=serializers.CharField(), help_text="Dangerous variables that are allowed, and why."
    )
    preset_id = serializers.UUIDField(allow_null=True)
    status = serializers.ChoiceField(Server.Status.choices)
    status_code = serializers.CharField(help_text="Code of the last failure, blank if none.")
    status_detail = serializers.CharField()
    latency_ms = serializers.IntegerField(allow_null=True)
    tools = serializers.IntegerField(source="tool_count", help_text="How many it offers.")
    waiting = serializers.IntegerField(
        source="waiting_count", help_text="How many definitions wait for approval."
    )
    checked_at = serializers.DateTimeField(allow_null=True)
    discovered_at = serializers.DateTimeField(allow_null=True)
    last_connected_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    def parts_of(self, instance: Server, shown: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts of a server; its secrets belong to what they are sent with."""
        parts = super().parts_of(instance, shown)
        marks = instance.related_secret_marks()
        return parts | {place: [shown.get(place), mark] for place, mark in marks.items()}

    @extend_schema_field({"type": "string", "enum": ["pool", "agent"]})
    def get_scope(self, server: Server) -> str:
        """Say whose it is."""
        return "agent" if server.private_to_agent else "pool"

    @extend_schema_field({"type": ["string", "null"], "format": "uuid"})
    def get_agent_id(self, server: Server) -> str | None:
        """Return the owning agent's id, null for a pool server."""
        return str(server.scope_id) if server.private_to_agent else None

    @extend_schema_field(ENDPOINT_CONFIG)
    def get_endpoint_config(self, server: Server) -> dict[str, Any]:
        """Return where it is, values of `env` and `headers` masked."""
        return shown_endpoint(server)

    @extend_schema_field(AUTH_CONFIG)
    def get_auth_config(self, server: Server) -> dict[str, Any]:
        """Return how to sign in, without any credential."""
        return shown_auth(server)


class ChangeNoticesShape(Shape):
    """Whether a server's change notices are heard."""

    state = serializers.ChoiceField(list(STATES))
    text = serializers.CharField(help_text="The state in words.")
    since = serializers.DateTimeField(allow_null=True, help_text="When we began to listen.")
    last_notice_at = serializers.DateTimeField(allow_null=True)
    code = serializers.CharField(help_text="Why not, blank if they are heard.")
    detail = serializers.CharField()


class SignInShape(Shape):
    """How the caller stands at a server that people sign in to."""

    per = serializers.ChoiceField(PER, help_text="Who signs in.")
    state = serializers.ChoiceField(
        PRESENCES, help_text="`personal`: each person for themselves, and the caller is none."
    )
    url = serializers.CharField(help_text="Where to sign in, with a browser.")
    people = serializers.IntegerField(help_text="How many are signed in, where each does.")
    issuer = serializers.CharField(help_text="The authorization server, blank before.")
    scope = serializers.CharField()
    expires_at = serializers.DateTimeField(
        allow_null=True, help_text="When the access token ends; it is renewed by itself."
    )


class InstallationShape(Shape):
    """How it stands with the package that `npx` or `uvx` starts, on the host that answers."""

    state = serializers.ChoiceField(["needed", "installing", "installed", "failed"])
    detail = serializers.CharField(help_text="What the installer said last, or what failed.")


class ServerDetailShape(ServerShape):
    """A server with the tools that it declared at its last discovery."""

    change_notices = serializers.SerializerMethodField()
    sign_in = serializers.SerializerMethodField(help_text="Null where nobody signs in.")
    installation = serializers.SerializerMethodField(
        help_text="Null where nothing is to be installed, and for who doesn't manage servers."
    )
    discovered_tools = serializers.SerializerMethodField()
    stderr = serializers.SerializerMethodField(
        help_text="What a stdio server's processes last wrote there, for who manages servers."
    )

    @extend_schema_field(ChangeNoticesShape)
    def get_change_notices(self, server: Server) -> dict[str, Any]:
        """Return how it stands with its change notices."""
        found: dict[str, Any] = ChangeNoticesShape(standing(server)).data
        return found

    @extend_schema_field(SignInShape(allow_null=True))
    def get_sign_in(self, server: Server) -> dict[str, Any] | None:
        """Return how the caller stands at it."""
        found = presences(self.context["view"].principal, [server]).get(server.pk)
        return found.as_dict() if found else None

    @extend_schema_field(InstallationShape(allow_null=True))
    def get_installation(self, server: Server) -> dict[str, Any] | None:
        """Return how it stands with its package."""
        may = self.context["view"].principal.may(Action.MANAGE_SERVERS)
        return installation_of_server(server) if may else None

    @extend_schema_field(ToolShape(many=True))
    def get_discovered_tools(self, server: Server) -> list[dict[str, Any]]:
        """Return the tools as FEATURES A11 shows them."""
        return [tool_json(row) for row in server.offered_tools]  # type: ignore[attr-defined]

    def get_stderr(self, server: Server) -> str:
        """Return the last 64 KiB that its children wrote, on any host; blank for others."""
        may = self.context["view"].principal.may(Action.MANAGE_SERVERS)
        return last_words(server) if may else ""


class ToolBriefShape(Shape):
    """A tool as a test names it."""

    name = serializers.CharField()
    description = serializers.CharField()


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "It answers",
            {
                "status": "connected",
                "tools_discovered": 1,
                "tools": [TOOL_EXAMPLE],
                "latency_ms": 320,
            },
        ),
        OpenApiExample(
            "It doesn't",
            {
                "status": "error",
                "tools_discovered": 0,
                "tools": [],
                "latency_ms": None,
                "code": "server_unreachable",
                "detail": "Nothing answers at mcp.example.com.",
                "remedy": "Check the address, and that the server runs.",
            },
        ),
    ]
)
class TestShape(Shape):
    """What a test found; a failed one is an answer too, with code, detail and remedy."""

    __test__ = False

    status = serializers.ChoiceField(["connected", "error", "needs_reauth"])
    tools_discovered = serializers.IntegerField()
    tools = ToolBriefShape(many=True)
    latency_ms = serializers.IntegerField(allow_null=True)
    code = serializers.CharField(required=False)
    detail = serializers.CharField(required=False)
    remedy = serializers.CharField(required=False)


class RefreshShape(TestShape):
    """A test that also says what changed since the last discovery."""

    new = serializers.IntegerField(required=False)
    changed = serializers.IntegerField(required=False)
    gone = serializers.IntegerField(required=False)
    waiting = serializers.IntegerField(required=False, help_text="How many wait for approval.")
    refused = serializers.IntegerField(required=False)
    notices = serializers.ListField(child=serializers.CharField(), required=False)


def tool_json(row: Definition) -> dict[str, Any]:
    """Return a tool as FEATURES A11 shows it."""
    return {"name": row.name, "description": row.description, "input_schema": row.input_schema}


def spec_of(data: dict[str, Any], old: Server | None = None) -> ServerSpec:
    """Return what was written as a specification; what was left out stays as it is in `old`."""
    return ServerSpec(**data) if old is None else respecified(old, **data)
