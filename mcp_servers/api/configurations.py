"""How servers are reached and signed in to, as bodies and answers have it."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from mcp_servers.configuration import HTTP_NAMES
from mcp_servers.oauth.accounts import GRANTS, PER

STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
ENDPOINT_CONFIG = {
    "description": "For `stdio`: command, args, env, cwd. For `http`: url, headers. For `openapi`: "
    "url, headers, operations, and document or document_url. Values of `env` and `headers` read as "
    "`********`; sent back like that, they stay.",
    "type": "object",
    "properties": {
        "command": {"type": "string"},
        "args": {"type": "array", "items": {"type": "string"}},
        "env": STRINGS,
        "cwd": {"type": "string"},
        "url": {"type": "string"},
        "headers": STRINGS,
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
        "grant": {"type": "string", "enum": list(GRANTS), "default": GRANTS[0]},
        "per": {
            "description": "Who signs in with `authorization_code`.",
            "type": "string",
            "enum": list(PER),
            "default": PER[0],
        },
        "issuer": {"description": "The authorization server, if any.", "type": "string"},
        "token_url": {"type": "string"},
        "configured": {"type": "boolean", "readOnly": True},
    },
    "required": ["type"],
}
# As presets have it: parameters stand in the place of its credentials.
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
class EndpointConfig(serializers.DictField):
    """`endpoint_config` as it is written; `configuration.check` says what holds."""


@extend_schema_field(AUTH_CONFIG)
class AuthConfig(serializers.DictField):
    """`auth_config` as it is written."""


# Spellings that differ in a hyphen only would be one name in the languages of clients.
ALIASES = sorted(name for name in HTTP_NAMES if "-" not in name)


@extend_schema_field({"type": "string", "enum": ["stdio", "openapi", *ALIASES]})
class TransportType(serializers.CharField):
    """`transport_type` as it is written: HTTP may be called by the names that imports use."""
