"""Serializers of servers and their configuration."""

from collections.abc import Mapping
from typing import Any, ClassVar

from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer
from mcp_servers.client_capabilities import MAX_TOKENS
from mcp_servers.installed_packages import find_server_installation
from mcp_servers.models import Definition, Server
from mcp_servers.oauth_client.queries import LOGIN_STATES, load_login_statuses
from mcp_servers.oauth_client.types import GRANT_TYPES, PER_CHOICES
from mcp_servers.server_config import (
    HTTP_TRANSPORT_NAMES,
    MAX_PRICE,
    MAX_RATE,
    ServerSpec,
    build_changed_spec,
    mask_auth_config,
    mask_endpoint_config,
)
from mcp_servers.stderr_log import load_latest_output
from mcp_servers.subscriptions.queries import STATES, load_change_notification_status

STRING_MAP = {"type": "object", "additionalProperties": {"type": "string"}}
ENDPOINT_CONFIG = {
    "description": "For `stdio`: command, args, env, cwd. For `http`: url, headers. For `openapi`: "
    "url, headers, operations, and document or document_url. Values of `env` and `headers` read as "
    "`********`; sent back like that, they stay.",
    "type": "object",
    "properties": {
        "command": {"type": "string"},
        "args": {"type": "array", "items": {"type": "string"}},
        "env": STRING_MAP,
        "cwd": {"type": "string"},
        "url": {"type": "string"},
        "headers": STRING_MAP,
        "document_url": {"description": "Where an API's document is.", "type": "string"},
        "document": {
            "description": "An OpenAPI document's text, instead of its address.",
            "type": "string",
            "writeOnly": True,
        },
        "declared": {
            "description": "Operations of an API that are declared by hand, in the place of a "
            "document, as `/mcp-servers/{server_id}/operations` has them. Where neither is said, "
            "what is there stays.",
            "type": "array",
            "items": {"type": "object", "additionalProperties": True},
        },
        "operations": {
            "description": "Keys of an API's operations, such as `GET /pets/{id}`; when it is "
            "written, operation ids do too, and `*` for all that can be tools.",
            "type": "array",
            "items": {"type": "string"},
        },
    },
}
AUTH_CONFIG: dict[str, Any] = {
    "description": "How to sign in. Written with its credential, read as `configured` only.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["none", "bearer_token", "api_key", "oauth2"]},
        "token": {"type": "string", "writeOnly": True},
        "header": {"type": "string"},
        "in": {
            "description": "Where an API key goes; `query` and `cookie` for `openapi` only, under "
            "the name that `header` says.",
            "type": "string",
            "enum": ["header", "query", "cookie"],
            "default": "header",
        },
        "key": {"type": "string", "writeOnly": True},
        "client_id": {"type": "string"},
        "client_secret": {"type": "string", "writeOnly": True},
        "private_key": {
            "description": "PEM, instead of a client secret.",
            "type": "string",
            "writeOnly": True,
        },
        "key_id": {"type": "string"},
        "scopes": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "grant": {"type": "string", "enum": list(GRANT_TYPES), "default": GRANT_TYPES[0]},
        "per": {
            "description": "Who signs in with `authorization_code`.",
            "type": "string",
            "enum": list(PER_CHOICES),
            "default": PER_CHOICES[0],
        },
        "issuer": {"description": "The authorization server, if any.", "type": "string"},
        "token_url": {"type": "string"},
        "configured": {"type": "boolean", "readOnly": True},
    },
    "required": ["type"],
}
# The variant of presets, with parameters in place of credentials.
UNFILLED_AUTH_CONFIG = {
    **AUTH_CONFIG,
    "description": "How to sign in, with parameters (`${NAME}`) unfilled.",
    "properties": {
        name: {key: value for key, value in schema.items() if key != "writeOnly"}
        for name, schema in AUTH_CONFIG["properties"].items()
        if name != "configured"
    },
}
JSON_OBJECT = {"type": "object", "additionalProperties": True}


@extend_schema_field(ENDPOINT_CONFIG)
class EndpointConfigField(serializers.DictField):
    """`endpoint_config` in requests; validated by `server_config.check`."""


@extend_schema_field(AUTH_CONFIG)
class AuthConfigField(serializers.DictField):
    """`auth_config` in requests."""


# Generated clients would give spellings that differ only in a hyphen the same name.
ALIASES = sorted(name for name in HTTP_TRANSPORT_NAMES if "-" not in name)


@extend_schema_field({"type": "string", "enum": ["stdio", "openapi", *ALIASES]})
class TransportTypeField(serializers.CharField):
    """`transport_type` in requests; accepts the aliases of HTTP that imports accept."""


SAMPLING = (
    "Whether the server may use the agent's model for itself: `off`, `ask` (a person each time) "
    "or `allow` (within its tokens)."
)
ELICITATION = "Whether it may ask the person who runs the session."
ROOTS = "Whether it is told the session's working folder."


class ClientCapabilitiesBody(StrictSerializer):
    """What the server may ask of whoever calls it."""

    sampling = serializers.ChoiceField(Server.Sampling.choices, required=False, help_text=SAMPLING)
    sampling_tokens = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=0,
        max_value=MAX_TOKENS,
        help_text="Tokens a day that it may use so; null or 0: as the setting says.",
    )
    elicitation = serializers.BooleanField(required=False, help_text=ELICITATION)
    roots = serializers.BooleanField(required=False, help_text=ROOTS)

    def validate_sampling_tokens(self, value: int | None) -> int:
        """Return 0 for null; in a ServerSpec, None keeps the stored value."""
        return value or 0


class ClientCapabilitiesSerializer(StrictSerializer):
    """What the server may ask of whoever calls it."""

    sampling = serializers.ChoiceField(Server.Sampling.choices, help_text=SAMPLING)
    sampling_tokens = serializers.IntegerField(
        allow_null=True, help_text="Tokens a day; null: as the setting says."
    )
    elicitation = serializers.BooleanField(help_text=ELICITATION)
    roots = serializers.BooleanField(help_text=ROOTS)


def _build_price_field(subject: str) -> Any:
    return serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=MAX_PRICE,
        help_text=f"What {subject}, in millionths of a dollar; money budgets count it.",
    )


class ServerPricingBody(StrictSerializer):
    """What calls of a server cost, and how often all callers together may make them."""

    call_price = _build_price_field("a call costs")
    second_price = _build_price_field("each second costs that a call runs")
    calls_per_minute = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=0,
        max_value=MAX_RATE,
        help_text="Of all callers together; null or 0: no limit.",
    )

    def validate_calls_per_minute(self, value: int | None) -> int:
        """Return 0 for null; in a ServerSpec, None keeps the stored value."""
        return value or 0


class ServerPricingSerializer(StrictSerializer):
    """What calls of a server cost, and how often all callers together may make them."""

    call_price = serializers.IntegerField(help_text="Millionths of a dollar.")
    second_price = serializers.IntegerField(help_text="Millionths of a dollar.")
    calls_per_minute = serializers.IntegerField(allow_null=True, help_text="Null: no limit.")


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


class ServerBody(VersionedBody, ClientCapabilitiesBody, ServerPricingBody):
    """A server as it is written; what a PATCH leaves out stays."""

    name = serializers.CharField(max_length=255)
    transport_type = TransportTypeField()
    endpoint_config = EndpointConfigField()
    auth_config = AuthConfigField(
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


class PresetServerBody(StrictSerializer):
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
ADD_EXAMPLES = [
    OpenApiExample("A local program", STDIO_EXAMPLE, request_only=True),
    OpenApiExample("Over HTTP", HTTP_EXAMPLE, request_only=True),
    OpenApiExample("A REST API", API_EXAMPLE, request_only=True),
    OpenApiExample("HTTP operations, declared by hand", DECLARED_EXAMPLE, request_only=True),
    OpenApiExample("From a preset", PRESET_EXAMPLE, request_only=True),
]
CHANGE_EXAMPLE = OpenApiExample("Another name", {"name": "s3"}, request_only=True)


@extend_schema_serializer(examples=ADD_EXAMPLES[:4])
class CreateServerBody(ServerBody):
    """A server as it is added."""


class ServerToolSerializer(StrictSerializer):
    """A tool as its server declares it (text from the server: don't trust it)."""

    name = serializers.CharField()
    description = serializers.CharField()
    input_schema = serializers.DictField()


class ServerSerializer(VersionedSerializer, ClientCapabilitiesSerializer, ServerPricingSerializer):
    """A server as it is read: every secret masked."""

    body_classes: ClassVar[tuple[type[StrictSerializer], ...]] = (ServerBody,)

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

    def build_parts(self, instance: Server, representation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts of a server, with the marks of the secrets in each."""
        parts = super().build_parts(instance, representation)
        secret_marks = instance.related_secret_marks()
        return parts | {
            place: [representation.get(place), mark] for place, mark in secret_marks.items()
        }

    @extend_schema_field({"type": "string", "enum": ["pool", "agent"]})
    def get_scope(self, server: Server) -> str:
        """Return whether the server is in the pool or private to an agent."""
        return "agent" if server.private_to_agent else "pool"

    @extend_schema_field({"type": ["string", "null"], "format": "uuid"})
    def get_agent_id(self, server: Server) -> str | None:
        """Return the owning agent's id, null for a pool server."""
        return str(server.scope_id) if server.private_to_agent else None

    @extend_schema_field(ENDPOINT_CONFIG)
    def get_endpoint_config(self, server: Server) -> dict[str, Any]:
        """Return the endpoint, with the values of `env` and `headers` masked."""
        return mask_endpoint_config(server)

    @extend_schema_field(AUTH_CONFIG)
    def get_auth_config(self, server: Server) -> dict[str, Any]:
        """Return the sign-in configuration, without credentials."""
        return mask_auth_config(server)


class ChangeNotificationsSerializer(StrictSerializer):
    """Whether a server's change notices are heard."""

    state = serializers.ChoiceField(list(STATES))
    text = serializers.CharField(help_text="The state in words.")
    since = serializers.DateTimeField(allow_null=True, help_text="When we began to listen.")
    last_notice_at = serializers.DateTimeField(allow_null=True)
    code = serializers.CharField(help_text="Why not, blank if they are heard.")
    detail = serializers.CharField()


class SignInStatusSerializer(StrictSerializer):
    """How the caller stands at a server that people sign in to."""

    per = serializers.ChoiceField(PER_CHOICES, help_text="Who signs in.")
    state = serializers.ChoiceField(
        LOGIN_STATES, help_text="`personal`: each person for themselves, and the caller is none."
    )
    url = serializers.CharField(help_text="Where to sign in, with a browser.")
    people = serializers.IntegerField(help_text="How many are signed in, where each does.")
    issuer = serializers.CharField(help_text="The authorization server, blank before.")
    scope = serializers.CharField()
    expires_at = serializers.DateTimeField(
        allow_null=True, help_text="When the access token ends; it is renewed by itself."
    )


class InstallationSerializer(StrictSerializer):
    """How it stands with the package that `npx` or `uvx` starts, on the host that answers."""

    state = serializers.ChoiceField(["needed", "installing", "installed", "failed"])
    detail = serializers.CharField(help_text="What the installer said last, or what failed.")


class ServerDetailSerializer(ServerSerializer):
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

    @extend_schema_field(ChangeNotificationsSerializer)
    def get_change_notices(self, server: Server) -> dict[str, Any]:
        """Return the change notification status."""
        data: dict[str, Any] = ChangeNotificationsSerializer(
            load_change_notification_status(server)
        ).data
        return data

    @extend_schema_field(SignInStatusSerializer(allow_null=True))
    def get_sign_in(self, server: Server) -> dict[str, Any] | None:
        """Return the caller's sign-in status."""
        login_status = load_login_statuses(self.context["view"].principal, [server]).get(server.pk)
        return login_status.as_dict() if login_status else None

    @extend_schema_field(InstallationSerializer(allow_null=True))
    def get_installation(self, server: Server) -> dict[str, Any] | None:
        """Return the installation state of the package."""
        can_manage = self.context["view"].principal.may(Action.MANAGE_SERVERS)
        return find_server_installation(server) if can_manage else None

    @extend_schema_field(ServerToolSerializer(many=True))
    def get_discovered_tools(self, server: Server) -> list[dict[str, Any]]:
        """Return the serialized tools."""
        return [serialize_tool(row) for row in server.offered_tools]  # type: ignore[attr-defined]

    def get_stderr(self, server: Server) -> str:
        """Return the last 64 KiB of stderr; blank unless the caller manages servers."""
        can_manage = self.context["view"].principal.may(Action.MANAGE_SERVERS)
        return load_latest_output(server) if can_manage else ""


class ToolSummarySerializer(StrictSerializer):
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
class ServerTestSerializer(StrictSerializer):
    """What a test found; a failed one is an answer too, with code, detail and remedy."""

    __test__ = False

    status = serializers.ChoiceField(["connected", "error", "needs_reauth"])
    tools_discovered = serializers.IntegerField()
    tools = ToolSummarySerializer(many=True)
    latency_ms = serializers.IntegerField(allow_null=True)
    code = serializers.CharField(required=False)
    detail = serializers.CharField(required=False)
    remedy = serializers.CharField(required=False)


class ServerRefreshSerializer(ServerTestSerializer):
    """A test that also says what changed since the last discovery."""

    new = serializers.IntegerField(required=False)
    changed = serializers.IntegerField(required=False)
    gone = serializers.IntegerField(required=False)
    waiting = serializers.IntegerField(required=False, help_text="How many wait for approval.")
    refused = serializers.IntegerField(required=False)
    notices = serializers.ListField(child=serializers.CharField(), required=False)


def serialize_tool(row: Definition) -> dict[str, Any]:
    """Return a tool in the REST format."""
    return {"name": row.name, "description": row.description, "input_schema": row.input_schema}


def build_spec(data: dict[str, Any], existing: Server | None = None) -> ServerSpec:
    """Return the specification; fields left out keep the values of `existing`."""
    return ServerSpec(**data) if existing is None else build_changed_spec(existing, **data)
