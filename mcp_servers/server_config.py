"""Validation of a server's configuration: fields and secrets.

REST, admin, CLI and import all pass a `ServerSpec`. `clean_server_spec` converts it to columns and
secrets. Secrets are read back as `********`, and writing that mask keeps the stored value.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.conf import settings

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.secret_addresses import check_kept_secrets, normalize_origin
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, InvalidInput
from bonobot.core.text.masking import MASK
from mcp_servers.auth_config import check_urls, clean_auth_config
from mcp_servers.bundles.manifest import is_bundle_program
from mcp_servers.bundles.services import find_bundle
from mcp_servers.client_capabilities import ClientCapabilitySettings, build_capability_columns
from mcp_servers.known_fields import SecretKey, read_known_fields
from mcp_servers.launchers import check_launcher
from mcp_servers.models import Launcher, Secret, Server
from mcp_servers.openapi import endpoint_config
from mcp_servers.sandbox_settings import SandboxConfig, check_bundle_sandbox, clean_sandbox
from mcp_servers.server_names import check_name
from mcp_servers.server_prices import build_price_columns
from mcp_servers.stdio_validation import check_folders, check_no_nul, clean_env_exceptions

FIELD_PREFIXES = {
    Secret.Placement.HEADER: "endpoint_config.headers.",
    Secret.Placement.ENV: "endpoint_config.env.",
}
HTTP_TRANSPORT_NAMES = frozenset({"http", "streamable_http", "streamable-http", "sse"})
STDIO_FIELDS = frozenset({"command", "args", "env", "cwd"})
HTTP_FIELDS = frozenset({"url", "headers"})
OPENAPI_FIELDS = HTTP_FIELDS | endpoint_config.OPENAPI_FIELDS
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDER = re.compile(r"\$\{[^}]*\}")
# Headers set by the protocol; configured ones would change what is governed.
_RESERVED_HEADERS = re.compile(
    r"(?i)host|content-length|content-type|transfer-encoding|connection|accept|mcp-.*"
)
_RESERVED_VARIABLES = re.compile(r"(?i)BONOBOT_.*|DATABASE_URL|REDIS_URL")


def check_secret_destinations(
    old: Server | None, columns: Mapping[str, Any], secrets: Mapping[SecretKey, str | None]
) -> None:
    """Check that stored secrets (None) are not sent to an address they were not entered for.

    `columns` are the new ones of the server. Raises `InvalidInput` (`credential_required`).
    """
    if old is None:
        return
    old_columns = {
        name: getattr(old, name) for name in ("endpoint_config", "auth_type", "auth_config")
    }
    kept_fields = {
        key: _format_secret_field(key) for key, value in secrets.items() if value is None
    }
    auth_keys = {key for key in kept_fields if key[0] == Secret.Placement.AUTH}
    if columns["auth_type"] == Server.Auth.OAUTH2:
        fields = [kept_fields.pop(key) for key in auth_keys]
        check_kept_secrets(
            fields, _get_sign_in_addresses(old_columns), _get_sign_in_addresses(columns)
        )
    check_kept_secrets(
        kept_fields.values(), _get_server_addresses(old_columns), _get_server_addresses(columns)
    )


def _get_server_addresses(columns: Mapping[str, Any]) -> dict[str, str]:
    """Return the address that headers, API keys and the like are sent to."""
    return {"endpoint_config.url": normalize_origin(str(columns["endpoint_config"].get("url", "")))}


def _get_sign_in_addresses(columns: Mapping[str, Any]) -> dict[str, str]:
    """Return the full URLs that a client secret or key is sent to, as hosts serve many tenants.

    Without a token URL and an issuer, they are discovered from the server's own URL. The tokens
    that the secret obtains are sent to the server, so its address belongs to the secret, too.
    """
    auth_config = columns["auth_config"]
    addresses = {
        f"auth_config.{name}": str(auth_config.get(name) or "") for name in ("token_url", "issuer")
    }
    if any(addresses.values()):
        return addresses | _get_server_addresses(columns)
    return addresses | {"endpoint_config.url": str(columns["endpoint_config"].get("url", ""))}


def _format_secret_field(key: SecretKey) -> str:
    placement, name = key
    return f"{FIELD_PREFIXES.get(Secret.Placement(placement), 'auth_config.')}{name}"


@dataclass(frozen=True, kw_only=True)
class ServerSpec(ClientCapabilitySettings):
    """A server's configuration as entered, with the fields of REST.

    `sandbox` and `network` None keep the stored values. `env_exceptions` maps each allowed
    dangerous variable to the reason; None keeps the stored ones.
    """

    name: str
    transport_type: str
    endpoint_config: Mapping[str, Any] = field(repr=False)
    auth_config: Mapping[str, Any] | None = field(default=None, repr=False)
    enabled: bool = True
    description: str = ""
    approval: str | None = None  # None: as stored, for a new server as in the settings
    allow_private: bool = False
    only_tools: Sequence[str] | None = None  # globs; None keeps the stored ones
    sandbox: str | None = None
    network: str | None = None
    env_exceptions: Mapping[str, str] | None = None
    call_price: int | None = None  # micro-dollars; None keeps the stored value, as in the next two
    second_price: int | None = None
    calls_per_minute: int | None = None  # 0: no limit


@dataclass(frozen=True, kw_only=True)
class ServerColumns:
    """A validated specification: columns, and secrets (None keeps the stored value).

    `document` is the OpenAPI document, if one was given.
    """

    columns: dict[str, Any]
    document: str | None = field(default=None, repr=False)
    secrets: dict[SecretKey, str | None] = field(repr=False)


def clean_server_spec(
    principal: Principal, spec: ServerSpec, *, old: Server | None = None, by_preset: bool = False
) -> ServerColumns:
    """Validate `spec` and return what to store; raises a `Problem` that names the field.

    `by_preset` says that the command line comes from an approved preset, which organizations may
    use; otherwise only a platform administrator may set one.
    """
    transport = _clean_transport(spec.transport_type)
    document = None
    if transport == Server.Transport.STDIO:
        _check_may_set_command(principal, spec, old=old, by_preset=by_preset)
        config, secrets = _clean_stdio_config(principal.organization_id, spec.endpoint_config)
    else:
        config, secrets = _clean_http_config(spec, transport)
    if transport == Server.Transport.OPENAPI:
        public, document = endpoint_config.clean_openapi_config(
            spec.endpoint_config, spec.allow_private, old
        )
        config |= public
    requested_sandbox = SandboxConfig(spec.sandbox, spec.network)
    sandbox = clean_sandbox(principal, transport, requested_sandbox, old=old, by_preset=by_preset)
    if config.get("bundle"):
        check_bundle_sandbox(sandbox)
    _check_masked_values(secrets, old)
    auth_type, auth_config, credentials = clean_auth_config(spec.auth_config, transport, old)
    if auth_type == Server.Auth.OAUTH2:
        check_urls(auth_config, allow_private=spec.allow_private)
    addressed_columns = {
        "endpoint_config": config,
        "auth_type": auth_type,
        "auth_config": auth_config,
    }
    check_secret_destinations(old, addressed_columns, secrets | credentials)
    return ServerColumns(
        columns={
            "name": _clean_name(spec.name),
            "description": spec.description[:500],
            "transport_type": transport,
            "endpoint_config": config,
            "auth_type": auth_type,
            "auth_config": auth_config,
            "enabled": bool(spec.enabled),
            "approval": _clean_approval_mode(principal, spec.approval, old),
            "allow_private": _clean_allow_private(principal, spec.allow_private, old),
            "env_exceptions": _clean_exceptions(principal, spec, secrets, old),
            **sandbox.to_columns(),
            **_build_tools_column(spec),
            **build_price_columns(spec),
            **build_capability_columns(spec),
        },
        secrets=secrets | credentials,
        document=document,
    )


def list_allowed_launchers() -> frozenset[str]:
    """Return the programs that may start a stdio server, from the setting and the database."""
    added_commands = Launcher.objects.values_list("command", flat=True)
    return frozenset((*settings.BONOBOT_LAUNCHERS, *added_commands))


def _build_tools_column(spec: ServerSpec) -> dict[str, list[str]]:
    return {} if spec.only_tools is None else {"only_tools": list(spec.only_tools)}


def mask_endpoint_config(server: Server) -> dict[str, Any]:
    """Return `endpoint_config` with the values of `env` and `headers` masked."""
    masked = dict(server.endpoint_config)
    stdio = server.transport_type == Server.Transport.STDIO
    placement, field_name = (
        (Secret.Placement.ENV, "env") if stdio else (Secret.Placement.HEADER, "headers")
    )
    names = sorted(secret.name for secret in server.secrets.all() if secret.placement == placement)
    if names:
        masked[field_name] = dict.fromkeys(names, MASK)
    return masked


def _clean_name(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidInput("The name must be a string.", field="name", remedy="Use a short name.")
    check_name(name)
    return name.strip()


def _clean_transport(value: Any) -> str:
    if value == Server.Transport.STDIO:
        return Server.Transport.STDIO
    if value == Server.Transport.OPENAPI:
        return Server.Transport.OPENAPI
    if value in HTTP_TRANSPORT_NAMES:
        return Server.Transport.HTTP
    raise InvalidInput(
        format_message("Unknown transport {value!r}.", value=value),
        code="unknown_transport",
        field="transport_type",
        remedy="Use `stdio` for a local program, `http` for a URL (HTTP+SSE is detected), or "
        "`openapi` for a REST API.",
    )


def _clean_approval_mode(principal: Principal, value: Any, old: Server | None) -> str:
    current = old.approval if old else settings.BONOBOT_DEFINITION_REVIEW
    value = current if value is None else value
    if value not in Server.Approval.values:
        values = ", ".join(Server.Approval.values)
        raise InvalidInput(
            format_message("Unknown review mode {value!r}.", value=value),
            field="approval",
            remedy=format_message("Use one of: {values}.", values=values),
        )
    if value == Server.Approval.ALWAYS and current != value:
        principal.require(Action.TRUST_ALL_CHANGES)
    return str(value)


def _clean_allow_private(principal: Principal, is_allowed: bool, old: Server | None) -> bool:
    if is_allowed and not (old and old.allow_private):
        principal.require(Action.ALLOW_PRIVATE_ADDRESS)
    return bool(is_allowed)


def _check_may_set_command(
    principal: Principal, spec: ServerSpec, *, old: Server | None, by_preset: bool
) -> None:
    is_unchanged = old is not None and dict(spec.endpoint_config) == mask_endpoint_config(old)
    if principal.platform_admin or by_preset or is_unchanged:
        return
    raise Forbidden(
        "Only a platform administrator can set the command of a stdio server.",
        code="platform_admin_only",
        field="endpoint_config",
        rule="stdio",
        remedy="Add the server from a preset, or have a platform administrator add it: in the "
        "admin, with `bonobot mcp add`, or with a token that has the scope `platform`.",
    )


def _clean_exceptions(
    principal: Principal, spec: ServerSpec, secrets: Collection[SecretKey], old: Server | None
) -> dict[str, str]:
    """Return the reasons of allowed dangerous variables; raises for those without one."""
    names = [name for placement, name in secrets if placement == Secret.Placement.ENV]
    return clean_env_exceptions(principal, names, spec.env_exceptions, old=old)


def _clean_stdio_config(
    organization_id: UUID, raw: Any
) -> tuple[dict[str, Any], dict[SecretKey, str | None]]:
    config = read_known_fields(raw, STDIO_FIELDS | {"bundle"}, "endpoint_config")
    check_no_nul(config)
    command, args, cwd = config.get("command"), config.get("args", []), config.get("cwd")
    if not isinstance(command, str) or not command.strip():
        raise InvalidInput(
            "A stdio server requires a command.",
            field="endpoint_config.command",
            remedy="Specify a launcher, such as `npx` or `uvx`.",
        )
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise InvalidInput(
            "`args` must be a list of strings.",
            field="endpoint_config.args",
            remedy='List each argument separately: ["-y", "package@1.2.3"].',
        )
    _check_no_placeholders(args, "endpoint_config.args")
    public: dict[str, Any] = {"command": command, "args": args}
    if bundle := config.get("bundle"):
        public["bundle"] = find_bundle(organization_id, str(bundle)).digest
    if not (bundle and is_bundle_program(command)):
        check_launcher(command, args, allowed_launchers=list_allowed_launchers())
    if cwd:
        _check_no_placeholders([cwd], "endpoint_config.cwd")
        public["cwd"] = str(cwd)
    check_folders(organization_id, public)
    secrets = _clean_named_values(
        config.get("env"),
        Secret.Placement.ENV,
        "endpoint_config.env",
        _ENV_NAME,
        _RESERVED_VARIABLES,
    )
    return public, secrets


def _clean_http_config(
    spec: ServerSpec, transport: str
) -> tuple[dict[str, Any], dict[SecretKey, str | None]]:
    known_fields = HTTP_FIELDS if transport == Server.Transport.HTTP else OPENAPI_FIELDS
    config = read_known_fields(spec.endpoint_config, known_fields, "endpoint_config")
    url = config.get("url")
    if not isinstance(url, str) or not url.strip():
        raise InvalidInput(
            "An HTTP server requires a URL.",
            code="bad_url",
            field="endpoint_config.url",
            remedy="Use the full URL: https://mcp.example.com/mcp.",
        )
    from bonobot.core.http.egress import EgressDenied, check_url

    _check_no_placeholders([url], "endpoint_config.url")
    try:
        check_url(url, allow_private=spec.allow_private)
    except EgressDenied as problem:
        problem.field = "endpoint_config.url"
        raise
    secrets = _clean_named_values(
        config.get("headers"),
        Secret.Placement.HEADER,
        "endpoint_config.headers",
        _HEADER_NAME,
        _RESERVED_HEADERS,
    )
    return {"url": url.strip()}, secrets


def _clean_named_values(
    raw: Any,
    placement: str,
    location: str,
    allowed_pattern: re.Pattern[str],
    reserved: re.Pattern[str],
) -> dict[SecretKey, str | None]:
    """Return the named values of `env` or `headers`; the mask becomes None (keep)."""
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise InvalidInput(
            format_message("`{where}` must be an object with string values.", where=location),
            field=location,
        )
    values: dict[SecretKey, str | None] = {}
    for name, value in raw.items():
        field_path = f"{location}.{name}"
        if (
            not isinstance(name, str)
            or not allowed_pattern.fullmatch(name)
            or reserved.fullmatch(name)
        ):
            raise InvalidInput(
                format_message("`{name}` can't be set here.", name=name),
                field=field_path,
                remedy="Use another name. Names that Bonobot or the protocol sets are reserved.",
            )
        if not isinstance(value, str) or re.search(r"[\x00\r\n]", value):
            raise InvalidInput(
                format_message("The value of `{name}` must be a single line of text.", name=name),
                field=field_path,
            )
        _check_no_placeholders([value], field_path)
        values[placement, name] = None if value == MASK else value
    return values


def _check_masked_values(secrets: Mapping[SecretKey, str | None], old: Server | None) -> None:
    """Raise `InvalidInput` if the mask is written but no value is stored."""
    stored_keys = (
        {(secret.placement, secret.name) for secret in old.secrets.all()} if old else set()
    )
    for (placement, name), value in secrets.items():
        if value is None and (placement, name) not in stored_keys:
            field_name = "env" if placement == Secret.Placement.ENV else "headers"
            raise InvalidInput(
                format_message(
                    "The value of `{name}` is masked, but no value is stored yet.", name=name
                ),
                code="missing_value",
                field=f"endpoint_config.{field_name}.{name}",
                remedy="Enter the value itself.",
            )


def _check_no_placeholders(texts: list[str], location: str) -> None:
    for text in texts:
        if match := _PLACEHOLDER.search(str(text)):
            raise InvalidInput(
                format_message("The value for {name} is missing.", name=match.group()),
                code="missing_value",
                field=location,
                remedy="Enter the value. Environment variables aren't read here.",
            )


def build_changed_spec(old: Server, **changes: Any) -> ServerSpec:
    """Return the specification of a stored server with some changes; secrets are kept."""
    stored_keys = {
        "name": old.name,
        "transport_type": old.transport_type,
        "endpoint_config": mask_endpoint_config(old),
        "enabled": old.enabled,
        "description": old.description,
        "approval": old.approval,
        "allow_private": old.allow_private,
    }
    return ServerSpec(**{**stored_keys, **changes})
