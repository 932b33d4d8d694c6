"""A server's configuration as people write it and as they read it back (FEATURES A2, A3).

`ServerSpec` is the one form that every surface (REST, admin, CLI, import) hands over. `check` turns
it into what is stored: public parts and secret values apart. Reading back shows every secret as
`********`, and a write that carries the mask keeps what is stored.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.conf import settings

from bonobot.lib.egress import EgressDenied, check_url
from bonobot.lib.masking import MASK
from bonobot.lib.problems import Forbidden, Invalid
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.asked_back import AskedBack, asked_back
from mcp_servers.confining import Box, check_box
from mcp_servers.kept_secrets import SecretKey, keep_from_strangers
from mcp_servers.launchers import check_launcher
from mcp_servers.members import members_of
from mcp_servers.models import Launcher, Secret, Server
from mcp_servers.naming import check_name
from mcp_servers.oauth import sign_in
from mcp_servers.openapi import members
from mcp_servers.pricing import priced
from mcp_servers.process_rules import check_folders, check_variables, refuse_nul

HTTP_NAMES = frozenset({"http", "streamable_http", "streamable-http", "sse"})
STDIO_FIELDS = frozenset({"command", "args", "env", "cwd"})
HTTP_FIELDS = frozenset({"url", "headers"})
OPENAPI_FIELDS = HTTP_FIELDS | members.FIELDS
# Each sign-in's members: those that are kept in the open, and those that are sealed.
AUTH_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "none": (frozenset(), frozenset()),
    "bearer_token": (frozenset(), frozenset({"token"})),
    "api_key": (frozenset({"header", "in"}), frozenset({"key"})),
    "oauth2": (sign_in.PUBLIC, sign_in.SEALED),
}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"\$\{[^}]*\}")
# Headers that the protocol itself sets; a configured one would change what is governed.
_OURS = re.compile(
    r"(?i)host|content-length|content-type|transfer-encoding|connection|accept|mcp-.*"
)
_OURS_ENV = re.compile(r"(?i)BONOBOT_.*|DATABASE_URL|REDIS_URL")


@dataclass(frozen=True, kw_only=True)
class ServerSpec(AskedBack):
    """What a person says about a server; the shapes are those of FEATURES A2 and A3.

    `confinement` and `network` that aren't said stay as they are. `env_exceptions` says why each
    dangerous variable is allowed, by its name; None keeps what is stored.
    """

    name: str
    transport_type: str
    endpoint_config: Mapping[str, Any] = field(repr=False)
    auth_config: Mapping[str, Any] | None = field(default=None, repr=False)
    enabled: bool = True
    description: str = ""
    approval: str = Server.Approval.MANUAL
    allow_private: bool = False
    only_tools: Sequence[str] | None = None  # globs; None keeps what is stored
    confinement: str | None = None
    network: str | None = None
    env_exceptions: Mapping[str, str] | None = None
    call_price: int | None = None  # micro-dollars; None keeps what is stored, so do the next two
    second_price: int | None = None
    calls_per_minute: int | None = None  # 0: no limit


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A specification that holds: columns for the row, and secrets (None keeps what is stored).

    `document` is an API's, where one was given.
    """

    columns: dict[str, Any]
    document: str | None = field(default=None, repr=False)
    secrets: dict[SecretKey, str | None] = field(repr=False)


def check(
    principal: Principal, spec: ServerSpec, *, old: Server | None = None, by_preset: bool = False
) -> Checked:
    """Return `spec` as it will be stored; raises a `Problem` that names the field.

    `by_preset` says that the command line comes from an approved preset, which an organization may
    use; otherwise only a platform administrator may set one (DESIGN section 6).
    """
    transport = _transport(spec.transport_type)
    document = None
    if transport == Server.Transport.STDIO:
        _may_set_command(principal, spec, old=old, by_preset=by_preset)
        config, secrets = _stdio(principal.organization_id, spec.endpoint_config)
    else:
        config, secrets = _http(spec, transport)
    if transport == Server.Transport.OPENAPI:
        public, document = members.check(spec.endpoint_config, spec.allow_private, old)
        config |= public
    wanted = Box(spec.confinement, spec.network)
    box = check_box(principal, transport, wanted, old=old, by_preset=by_preset)
    _masks_stand_for_something(secrets, old)
    auth_type, auth_config, credentials = _auth(spec.auth_config, old)
    _key_has_a_place(auth_type, auth_config, transport)
    if auth_type == Server.Auth.OAUTH2:
        _signs_in_over_http(transport)
        sign_in.check_urls(auth_config, allow_private=spec.allow_private)
    said = {"endpoint_config": config, "auth_type": auth_type, "auth_config": auth_config}
    keep_from_strangers(old, said, secrets | credentials)
    return Checked(
        columns={
            "name": _name(spec.name),
            "description": spec.description[:500],
            "transport_type": transport,
            "endpoint_config": config,
            "auth_type": auth_type,
            "auth_config": auth_config,
            "enabled": bool(spec.enabled),
            "approval": _approval(principal, spec.approval, old),
            "allow_private": _private(principal, spec.allow_private, old),
            "env_exceptions": _exceptions(principal, spec, secrets, old),
            **(box.columns() | _only_tools(spec) | priced(spec) | asked_back(spec)),
        },
        secrets=secrets | credentials,
        document=document,
    )


def allowed_launchers() -> frozenset[str]:
    """Return the programs that may start a stdio server: by setting, and those added here."""
    added = Launcher.objects.values_list("command", flat=True)
    return frozenset((*settings.BONOBOT_LAUNCHERS, *added))


def _only_tools(spec: ServerSpec) -> dict[str, list[str]]:
    return {} if spec.only_tools is None else {"only_tools": list(spec.only_tools)}


def shown_endpoint(server: Server) -> dict[str, Any]:
    """Return `endpoint_config` as it may be read: values of `env` and `headers` masked."""
    shown = dict(server.endpoint_config)
    stdio = server.transport_type == Server.Transport.STDIO
    place, member = (Secret.Placement.ENV, "env") if stdio else (Secret.Placement.HEADER, "headers")
    names = sorted(secret.name for secret in server.secrets.all() if secret.placement == place)
    if names:
        shown[member] = dict.fromkeys(names, MASK)
    return shown


def shown_auth(server: Server) -> dict[str, Any]:
    """Return `auth_config` as it may be read: `{"type": …, "configured": …}` (FEATURES A3)."""
    stored = any(secret.placement == Secret.Placement.AUTH for secret in server.secrets.all())
    # A login needs no secret of ours; whether somebody has signed in is the server's status.
    by_login = server.auth_config.get("grant") == "authorization_code"
    return {"type": server.auth_type, **server.auth_config, "configured": stored or by_login}


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise Invalid("The name must be text.", field="name", remedy="Write a short name.")
    check_name(name)
    return name.strip()


def _transport(value: Any) -> str:
    if value == Server.Transport.STDIO:
        return Server.Transport.STDIO
    if value == Server.Transport.OPENAPI:
        return Server.Transport.OPENAPI
    if value in HTTP_NAMES:
        return Server.Transport.HTTP
    raise Invalid(
        say("There is no transport {value!r}.", value=value),
        code="unknown_transport",
        field="transport_type",
        remedy="Use `stdio` for a local program, `http` for a URL (HTTP+SSE is detected), or "
        "`openapi` for a REST API.",
    )


def _approval(principal: Principal, value: Any, old: Server | None) -> str:
    if value not in Server.Approval.values:
        raise Invalid(
            say("There is no approval mode {value!r}.", value=value),
            field="approval",
            remedy=say("Use one of: {values}.", values=", ".join(Server.Approval.values)),
        )
    if value == Server.Approval.ALWAYS and (old is None or old.approval != value):
        principal.require(Action.TRUST_ALL_CHANGES)
    return str(value)


def _private(principal: Principal, wanted: bool, old: Server | None) -> bool:
    if wanted and not (old and old.allow_private):
        principal.require(Action.ALLOW_PRIVATE_ADDRESS)
    return bool(wanted)


def _may_set_command(
    principal: Principal, spec: ServerSpec, *, old: Server | None, by_preset: bool
) -> None:
    if principal.platform_admin or by_preset:
        return
    if old is not None and dict(spec.endpoint_config) == shown_endpoint(old):
        return
    raise Forbidden(
        "Only a platform administrator may set the command of a stdio server.",
        code="platform_admin_only",
        field="endpoint_config",
        rule="stdio",
        remedy="Add the server from a preset, or ask a platform administrator.",
    )


def _exceptions(
    principal: Principal, spec: ServerSpec, secrets: Collection[SecretKey], old: Server | None
) -> dict[str, str]:
    """Return why dangerous variables are allowed; raises for those that aren't."""
    names = [name for place, name in secrets if place == Secret.Placement.ENV]
    return check_variables(principal, names, spec.env_exceptions, old=old)


def _stdio(organization_id: UUID, raw: Any) -> tuple[dict[str, Any], dict[SecretKey, str | None]]:
    config = members_of(raw, STDIO_FIELDS, "endpoint_config")
    refuse_nul(config)
    command, args, cwd = config.get("command"), config.get("args", []), config.get("cwd")
    if not isinstance(command, str) or not command.strip():
        raise Invalid(
            "A stdio server needs a command.",
            field="endpoint_config.command",
            remedy="Name a launcher, such as `npx` or `uvx`.",
        )
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise Invalid(
            "`args` must be a list of strings.",
            field="endpoint_config.args",
            remedy='Write each argument by itself: ["-y", "package@1.2.3"].',
        )
    _filled(args, "endpoint_config.args")
    check_launcher(command, args, allowed=allowed_launchers())
    public: dict[str, Any] = {"command": command, "args": args}
    if cwd:
        _filled([cwd], "endpoint_config.cwd")
        public["cwd"] = str(cwd)
    check_folders(organization_id, public)
    secrets = _named(
        config.get("env"), Secret.Placement.ENV, "endpoint_config.env", _ENV_NAME, _OURS_ENV
    )
    return public, secrets


def _http(spec: ServerSpec, transport: str) -> tuple[dict[str, Any], dict[SecretKey, str | None]]:
    known = HTTP_FIELDS if transport == Server.Transport.HTTP else OPENAPI_FIELDS
    config = members_of(spec.endpoint_config, known, "endpoint_config")
    url = config.get("url")
    if not isinstance(url, str) or not url.strip():
        raise Invalid(
            "An HTTP server needs a URL.",
            code="bad_url",
            field="endpoint_config.url",
            remedy="Write it whole: https://mcp.example.com/mcp.",
        )
    _filled([url], "endpoint_config.url")
    try:
        check_url(url, allow_private=spec.allow_private)
    except EgressDenied as problem:
        problem.field = "endpoint_config.url"
        raise
    secrets = _named(
        config.get("headers"), Secret.Placement.HEADER, "endpoint_config.headers", _TOKEN, _OURS
    )
    return {"url": url.strip()}, secrets


def _named(
    raw: Any, place: str, where: str, allowed: re.Pattern[str], reserved: re.Pattern[str]
) -> dict[SecretKey, str | None]:
    """Return the named values of `env` or `headers`; the mask becomes None (keep)."""
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise Invalid(say("`{where}` must be an object of strings.", where=where), field=where)
    values: dict[SecretKey, str | None] = {}
    for name, value in raw.items():
        spot = f"{where}.{name}"
        if not isinstance(name, str) or not allowed.fullmatch(name) or reserved.fullmatch(name):
            raise Invalid(
                say("`{name}` can't be set here.", name=name),
                field=spot,
                remedy="Use another name; those that Bonobot or the protocol set are reserved.",
            )
        if not isinstance(value, str) or re.search(r"[\x00\r\n]", value):
            raise Invalid(
                say("The value of `{name}` must be one line of text.", name=name), field=spot
            )
        _filled([value], spot)
        values[place, name] = None if value == MASK else value
    return values


def _masks_stand_for_something(secrets: Mapping[SecretKey, str | None], old: Server | None) -> None:
    """Raise `Invalid` where the mask is written and no value is stored that it could keep."""
    stored = {(secret.placement, secret.name) for secret in old.secrets.all()} if old else set()
    for (place, name), value in secrets.items():
        if value is None and (place, name) not in stored:
            member = "env" if place == Secret.Placement.ENV else "headers"
            raise Invalid(
                say("The value of `{name}` is masked, and none is stored yet.", name=name),
                code="missing_value",
                field=f"endpoint_config.{member}.{name}",
                remedy="Write the value itself.",
            )


def _filled(texts: list[str], where: str) -> None:
    for text in texts:
        if found := _PARAMETER.search(str(text)):
            raise Invalid(
                say("The value for {found} is missing.", found=found.group()),
                code="missing_value",
                field=where,
                remedy="Fill it in; variables of the environment are not read here.",
            )


def _auth(
    raw: Mapping[str, Any] | None, old: Server | None
) -> tuple[str, dict[str, Any], dict[SecretKey, str | None]]:
    """Return sign-in type, public details and credentials; what isn't said is kept."""
    if raw is None:
        kept: dict[SecretKey, str | None] = {(s.placement, s.name): None for s in _credentials(old)}
        return (old.auth_type, dict(old.auth_config), kept) if old else ("none", {}, {})
    if not isinstance(raw, Mapping) or raw.get("type", "none") not in AUTH_FIELDS:
        raise Invalid(
            "There is no such sign-in.",
            field="auth_config.type",
            remedy=say("Use one of: {auth_fields}.", auth_fields=", ".join(AUTH_FIELDS)),
        )
    kind = str(raw.get("type", "none"))
    public, sealed = AUTH_FIELDS[kind]
    members = members_of(raw, public | sealed | {"type", "configured"}, "auth_config")
    details = {name: members[name] for name in sorted(public) if members.get(name)}
    stored = {s.name for s in _credentials(old)} if old and old.auth_type == kind else set()
    values: dict[SecretKey, str | None] = {}
    needed = sealed
    if kind == Server.Auth.OAUTH2:
        needed = sign_in.needed(members, stored)
        stored -= sign_in.dropped(members)
    for name in sealed:
        value = members.get(name) or MASK
        if value == MASK and name not in stored and name not in needed:
            continue
        if value == MASK and name not in stored:
            raise Invalid(
                say("`{name}` is missing.", name=name),
                code="missing_value",
                field=f"auth_config.{name}",
                remedy=say("A sign-in by `{kind}` needs it.", kind=kind),
            )
        if not isinstance(value, str) or (
            name != "private_key" and re.search(r"[\x00\r\n]", value)
        ):
            one_line = say("`{name}` must be one line of text.", name=name)
            raise Invalid(one_line, field=f"auth_config.{name}")
        values[Secret.Placement.AUTH, name] = None if value == MASK else value
    return kind, details, values


def _signs_in_over_http(transport: str) -> None:
    if transport == Server.Transport.STDIO:
        raise Invalid(
            "OAuth is for servers over HTTP.",
            field="auth_config.type",
            remedy="Give a stdio server its credentials as environment variables.",
        )


def _key_has_a_place(kind: str, details: Mapping[str, Any], transport: str) -> None:
    """Raise `Invalid` where an API key would go to where nothing of ours is sent."""
    place = details.get("in", "header") if kind == Server.Auth.API_KEY else "header"
    if place == "header" or (transport == Server.Transport.OPENAPI and place in members.KEY_PLACES):
        return
    raise Invalid(
        say("An API key can't be sent in {place!r} here.", place=place),
        field="auth_config.in",
        remedy="Use `header`; an API that wants it takes `query` or `cookie` too.",
    )


def _credentials(old: Server | None) -> list[Secret]:
    if old is None:
        return []
    return [s for s in old.secrets.all() if s.placement == Secret.Placement.AUTH]
