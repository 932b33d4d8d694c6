"""Serializers of servers and their configuration."""

from collections.abc import Mapping
from typing import Any, ClassVar

from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer
from mcp_servers.auth_config import mask_auth_config
from mcp_servers.client_capabilities import MAX_TOKENS
from mcp_servers.flow_labels.store_labels import StoredData
from mcp_servers.models import Definition, Server
from mcp_servers.oauth_client.login_status import LOGIN_STATES, load_login_statuses
from mcp_servers.oauth_client.types import DPOP_CHOICES, GRANT_TYPES, PER_CHOICES
from mcp_servers.reinstall_package import find_server_installation
from mcp_servers.server_config import (
    HTTP_TRANSPORT_NAMES,
    ServerSpec,
    build_changed_spec,
    mask_endpoint_config,
)
from mcp_servers.server_prices import MAX_PRICE, MAX_RATE
from mcp_servers.stderr_log import load_latest_output
from mcp_servers.subscriptions.change_notification_status import (
    STATES,
    load_change_notification_status,
)

STRING_MAP = {"type": "object", "additionalProperties": {"type": "string"}}
ENDPOINT_CONFIG = {
    "description": (
        "For `stdio`: command, args, env, cwd, bundle. For `http`: url, headers. For `openapi`: "
        "url, headers, operations, and document or document_url. Values of `env` and `headers` are "
        "returned as `********`; if you send that back, they are unchanged."
    ),
    "type": "object",
    "properties": {
        "command": {"type": "string"},
        "args": {"type": "array", "items": {"type": "string"}},
        "env": STRING_MAP,
        "cwd": {"type": "string"},
        "bundle": {
            "description": (
                "SHA-256 digest of an imported `.mcpb` bundle. `{bundle}` in the command, the "
                "arguments, and the environment is its folder."
            ),
            "type": "string",
        },
        "url": {"type": "string"},
        "headers": STRING_MAP,
        "document_url": {"description": "URL of the OpenAPI document.", "type": "string"},
        "document": {
            "description": "The OpenAPI document, instead of its URL.",
            "type": "string",
            "writeOnly": True,
        },
        "declared": {
            "description": (
                "Declared operations, instead of a document, in the format of "
                "`/mcp-servers/{server_id}/operations`. If neither is set, the stored value "
                "is unchanged."
            ),
            "type": "array",
            "items": {"type": "object", "additionalProperties": True},
        },
        "operations": {
            "description": (
                "Keys of the selected operations, such as `GET /pets/{id}`. Requests can also "
                "use operation IDs, and `*` for all operations that can be tools."
            ),
            "type": "array",
            "items": {"type": "string"},
        },
    },
}
AUTH_CONFIG: dict[str, Any] = {
    "description": "The authentication. Requests contain credentials; responses only `configured`.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["none", "bearer_token", "api_key", "oauth2"]},
        "token": {"type": "string", "writeOnly": True},
        "header": {"type": "string"},
        "in": {
            "description": (
                "Where an API key is sent; `query` and `cookie` for `openapi` only, with the "
                "name in `header`."
            ),
            "type": "string",
            "enum": ["header", "query", "cookie"],
            "default": "header",
        },
        "key": {"type": "string", "writeOnly": True},
        "client_id": {"type": "string"},
        "client_secret": {"type": "string", "writeOnly": True},
        "private_key": {
            "description": "PEM; used instead of a client secret.",
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
        "workload_token": {
            "description": "The name of the platform's token, for `jwt_bearer`.",
            "type": "string",
        },
        "dpop": {
            "description": (
                "Tokens bound to a key; `auto`: if the server and its authorization server "
                "support it."
            ),
            "type": "string",
            "enum": list(DPOP_CHOICES),
            "default": DPOP_CHOICES[0],
        },
        "configured": {"type": "boolean", "readOnly": True},
    },
    "required": ["type"],
}
# The variant of presets, with parameters in place of credentials.
UNFILLED_AUTH_CONFIG = {
    **AUTH_CONFIG,
    "description": "The authentication, with parameters (`${NAME}`).",
    "properties": {
        name: {key: value for key, value in schema.items() if key != "writeOnly"}
        for name, schema in AUTH_CONFIG["properties"].items()
        if name != "configured"
    },
}
JSON_OBJECT = {"type": "object", "additionalProperties": True}
# Generated clients would give spellings that differ only in a hyphen the same name.
ALIASES = sorted(name for name in HTTP_TRANSPORT_NAMES if "-" not in name)
SAMPLING = (
    "Whether the server can use the agent's model: `off`, `ask` (requires approval each "
    "time), or `allow` (within its token limit)."
)
ELICITATION = "Whether the server can send elicitation requests to the person who runs the session."
ROOTS = "Whether the server receives the session's working folder."
SESSION_STATE = (
    "Whether the program keeps state for each session: `none` (a client's gateway sessions share "
    "its processes), `kept`, or `auto` (`kept` for programs known for it, such as browsers)."
)
TOOL_EXAMPLE = {"name": "list_buckets", "description": "List S3 buckets"}
APPROVE_HELP = (
    "Discover the server at once and approve its definitions, except suspicious ones. Requires "
    "permission to review definitions. Without it, definitions are pending review."
)


@extend_schema_field(ENDPOINT_CONFIG)
class EndpointConfigField(serializers.DictField):
    """`endpoint_config` in requests; validated by `server_config.check`."""


@extend_schema_field(AUTH_CONFIG)
class AuthConfigField(serializers.DictField):
    """`auth_config` in requests."""


@extend_schema_field({"type": "string", "enum": ["stdio", "openapi", *ALIASES]})
class TransportTypeField(serializers.CharField):
    """`transport_type` in requests; accepts the aliases of HTTP that imports accept."""


class ClientCapabilitiesBody(StrictSerializer):
    """The requests that the server can send to its callers."""

    sampling = serializers.ChoiceField(Server.Sampling.choices, required=False, help_text=SAMPLING)
    sampling_tokens = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=0,
        max_value=MAX_TOKENS,
        help_text="Tokens per day for sampling; null or 0: from the settings.",
    )
    elicitation = serializers.BooleanField(required=False, help_text=ELICITATION)
    roots = serializers.BooleanField(required=False, help_text=ROOTS)
    session_state = serializers.ChoiceField(
        Server.SessionState.choices, required=False, help_text=SESSION_STATE
    )

    def validate_sampling_tokens(self, value: int | None) -> int:
        """Return 0 for null; in a ServerSpec, None keeps the stored value."""
        return value or 0


class ClientCapabilitiesSerializer(StrictSerializer):
    """The requests that the server can send to its callers."""

    sampling = serializers.ChoiceField(Server.Sampling.choices, help_text=SAMPLING)
    sampling_tokens = serializers.IntegerField(
        allow_null=True, help_text="Tokens per day for sampling; null: from the settings."
    )
    elicitation = serializers.BooleanField(help_text=ELICITATION)
    roots = serializers.BooleanField(help_text=ROOTS)
    session_state = serializers.ChoiceField(Server.SessionState.choices, help_text=SESSION_STATE)


def _build_price_field(subject: str) -> Any:
    return serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=MAX_PRICE,
        help_text=f"{subject} in millionths of a dollar; counts toward cost budgets.",
    )


class ServerPricingBody(StrictSerializer):
    """The price of a server's calls, and the rate limit for all callers together."""

    call_price = _build_price_field("Cost of a call")
    second_price = _build_price_field("Cost of each second of a call")
    calls_per_minute = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=0,
        max_value=MAX_RATE,
        help_text="For all callers together; null or 0: no limit.",
    )

    def validate_calls_per_minute(self, value: int | None) -> int:
        """Return 0 for null; in a ServerSpec, None keeps the stored value."""
        return value or 0


class ServerPricingSerializer(StrictSerializer):
    """The price of a server's calls, and the rate limit for all callers together."""

    call_price = serializers.IntegerField(help_text="In millionths of a dollar.")
    second_price = serializers.IntegerField(help_text="In millionths of a dollar.")
    calls_per_minute = serializers.IntegerField(
        allow_null=True, help_text="For all callers together; null: no limit."
    )


class ServerBody(VersionedBody, ClientCapabilitiesBody, ServerPricingBody):
    """A server to create or update; a PATCH request doesn't change omitted fields."""

    name = serializers.CharField(max_length=255)
    transport_type = TransportTypeField()
    endpoint_config = EndpointConfigField()
    auth_config = AuthConfigField(required=False, allow_null=True, help_text="Omitted: unchanged.")
    enabled = serializers.BooleanField(required=False)
    description = serializers.CharField(required=False, allow_blank=True, max_length=500)
    approval = serializers.ChoiceField(
        Server.Approval.choices, required=False, help_text="When new definitions can be used."
    )
    allow_private = serializers.BooleanField(
        required=False, help_text="Only a platform administrator can allow a private address."
    )
    only_tools = serializers.ListField(
        child=serializers.CharField(max_length=512),
        required=False,
        max_length=1_000,
        help_text="Glob patterns; a new tool that matches none is disabled.",
    )
    sandbox = serializers.ChoiceField(
        Server.SandboxMode.choices,
        required=False,
        help_text=(
            "Isolation of a stdio server. Default: `sandbox`. If the isolation isn't "
            "available, the server isn't started. Only a platform administrator can set it."
        ),
    )
    network = serializers.ChoiceField(
        Server.Network.choices,
        required=False,
        help_text=(
            "Network access of a stdio server. Default: the egress rules with `sandbox`, none "
            "with `bubblewrap`."
        ),
    )
    env_exceptions = serializers.DictField(
        child=serializers.CharField(max_length=500),
        required=False,
        help_text=(
            "Why each dangerous variable of `env` is allowed, by name. Only a platform "
            "administrator can set it. Omitted: unchanged."
        ),
    )


class PresetServerBody(StrictSerializer):
    """A server to add from a preset."""

    preset = serializers.CharField(help_text="Slug of the preset.")
    parameters = serializers.DictField(child=serializers.CharField(), required=False)
    name = serializers.CharField(max_length=255, required=False)
    enabled = serializers.BooleanField(required=False)
    approve = serializers.BooleanField(required=False, help_text=APPROVE_HELP)


class CreateServerBody(ServerBody):
    """The configuration of a server."""


class AddServerBody(CreateServerBody):
    """A server to create, and whether to approve its definitions."""

    approve = serializers.BooleanField(required=False, help_text=APPROVE_HELP)


class ServerToolSerializer(StrictSerializer):
    """A tool as its server declares it (untrusted text)."""

    name = serializers.CharField()
    description = serializers.CharField()
    input_schema = serializers.DictField()


class ServerSerializer(VersionedSerializer, ClientCapabilitiesSerializer, ServerPricingSerializer):
    """A server; secrets are masked."""

    body_classes: ClassVar[tuple[type[StrictSerializer], ...]] = (ServerBody,)

    id = serializers.UUIDField()
    scope = serializers.SerializerMethodField(
        help_text="Whether the server is in the pool or private to an agent."
    )
    agent_id = serializers.SerializerMethodField(
        help_text="The agent that the server is private to."
    )
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
    sandbox = serializers.ChoiceField(Server.SandboxMode.choices)
    network = serializers.ChoiceField(Server.Network.choices)
    env_exceptions = serializers.DictField(
        child=serializers.CharField(), help_text="Allowed dangerous variables, and the reasons."
    )
    preset_id = serializers.UUIDField(allow_null=True)
    status = serializers.ChoiceField(Server.Status.choices)
    status_code = serializers.CharField(
        help_text="Code of the last failure; empty if there is none."
    )
    status_detail = serializers.CharField()
    latency_ms = serializers.IntegerField(allow_null=True)
    tools = serializers.IntegerField(source="tool_count", help_text="Number of tools.")
    pending_review = serializers.IntegerField(
        source="waiting_count", help_text="Number of definitions pending review."
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
    """The status of a server's change notifications."""

    state = serializers.ChoiceField(list(STATES))
    text = serializers.CharField(help_text="The state as text.")
    since = serializers.DateTimeField(allow_null=True, help_text="When Bonobot started to listen.")
    last_notice_at = serializers.DateTimeField(allow_null=True)
    code = serializers.CharField(help_text="Why notifications aren't received; empty if they are.")
    detail = serializers.CharField()


class SignInStatusSerializer(StrictSerializer):
    """The caller's sign-in status at a server with OAuth."""

    per = serializers.ChoiceField(PER_CHOICES, help_text="Who signs in.")
    state = serializers.ChoiceField(
        LOGIN_STATES,
        help_text="`personal`: each person signs in separately, and the caller isn't a person.",
    )
    url = serializers.CharField(help_text="URL to sign in with a browser.")
    people = serializers.IntegerField(
        help_text="Number of people who are signed in, if each person signs in."
    )
    issuer = serializers.CharField(
        help_text="The authorization server; empty before the first sign-in."
    )
    scope = serializers.CharField()
    expires_at = serializers.DateTimeField(
        allow_null=True, help_text="When the access token expires; it is renewed automatically."
    )


class InstallationSerializer(StrictSerializer):
    """The status of the `npx` or `uvx` package on the responding host."""

    state = serializers.ChoiceField(["needed", "installing", "installed", "failed"])
    detail = serializers.CharField(help_text="The last message of the installer, or the failure.")


class ServerDetailSerializer(ServerSerializer):
    """A server with the tools of its last discovery."""

    change_notices = serializers.SerializerMethodField()
    sign_in = serializers.SerializerMethodField(help_text="Null if the server has no sign-in.")
    installation = serializers.SerializerMethodField(
        help_text="Null if nothing has to be installed, or if the caller can't manage servers."
    )
    discovered_tools = serializers.SerializerMethodField()
    stderr = serializers.SerializerMethodField(
        help_text=(
            "The latest output of a stdio server's processes, for callers who can manage servers."
        )
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
        view = self.context["view"]
        if not view.principal.may(Action.MANAGE_SERVERS):
            return ""
        output = load_latest_output(server)
        view.report_read([StoredData(server)] if output else ())
        return output


class ToolSummarySerializer(StrictSerializer):
    """A tool in a test result."""

    name = serializers.CharField()
    description = serializers.CharField()


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "Connected",
            {
                "status": "connected",
                "tools_discovered": 1,
                "tools": [TOOL_EXAMPLE],
                "latency_ms": 320,
            },
        ),
        OpenApiExample(
            "Failed",
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
    """The result of a connection test; if it failed, with code, detail, and remedy."""

    __test__ = False

    status = serializers.ChoiceField(["connected", "error", "needs_reauth"])
    tools_discovered = serializers.IntegerField()
    tools = ToolSummarySerializer(many=True)
    latency_ms = serializers.IntegerField(allow_null=True)
    code = serializers.CharField(required=False)
    detail = serializers.CharField(required=False)
    remedy = serializers.CharField(required=False)


class ServerRefreshSerializer(ServerTestSerializer):
    """The result of a refresh, with the changes since the last discovery."""

    new = serializers.IntegerField(required=False)
    changed = serializers.IntegerField(required=False)
    removed = serializers.IntegerField(required=False)
    pending_review = serializers.IntegerField(
        required=False, help_text="Number of definitions pending review."
    )
    refused = serializers.IntegerField(required=False)
    notices = serializers.ListField(child=serializers.CharField(), required=False)


def serialize_tool(row: Definition) -> dict[str, Any]:
    """Return a tool in the REST format."""
    return {"name": row.name, "description": row.description, "input_schema": row.input_schema}


def build_spec(data: dict[str, Any], existing: Server | None = None) -> ServerSpec:
    """Return the specification; fields left out keep the values of `existing`."""
    return ServerSpec(**data) if existing is None else build_changed_spec(existing, **data)
