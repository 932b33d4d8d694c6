"""Validation of a server's `auth_config`: how Bonobot authenticates to it.

Secrets are stored encrypted, apart from the public fields.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.masking import MASK
from mcp_servers.known_fields import SecretKey, read_known_fields
from mcp_servers.models import Secret, Server
from mcp_servers.oauth_client.types import (
    DPOP_CHOICES,
    GRANT_TYPES,
    PER_CHOICES,
    parse_scopes,
)
from mcp_servers.openapi.endpoint_config import API_KEY_LOCATIONS

OAUTH_PUBLIC_FIELDS = frozenset(
    {"client_id", "scopes", "token_url", "grant", "per", "issuer", "key_id"}
    | {"workload_token", "dpop"}
)
OAUTH_SECRET_FIELDS = frozenset({"client_secret", "private_key"})
# Fields of each sign-in: public ones and encrypted ones.
AUTH_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "none": (frozenset(), frozenset()),
    "bearer_token": (frozenset(), frozenset({"token"})),
    "api_key": (frozenset({"header", "in"}), frozenset({"key"})),
    "oauth2": (OAUTH_PUBLIC_FIELDS, OAUTH_SECRET_FIELDS),
}
CHOICES = {"grant": GRANT_TYPES, "per": PER_CHOICES, "dpop": DPOP_CHOICES}
# Never a path: the file is in the folder of the organization.
_TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def clean_auth_config(
    raw: Mapping[str, Any] | None, transport: str, old: Server | None
) -> tuple[str, dict[str, Any], dict[SecretKey, str | None]]:
    """Return authentication type, public details and credentials; None keeps what is stored.

    Raises `InvalidInput` with the field for details and secrets that are invalid or missing, and
    for an API key that can't be sent over this transport.
    """
    auth_type, details, credentials = _read_auth_config(_select_auth(raw, transport), old)
    _check_key_placement(auth_type, details, transport)
    return auth_type, details, credentials


def _read_auth_config(
    raw: Mapping[str, Any] | None, old: Server | None
) -> tuple[str, dict[str, Any], dict[SecretKey, str | None]]:
    """Return what `clean_auth_config` does, before the check of the placement."""
    if raw is None:
        kept_secrets: dict[SecretKey, str | None] = {
            (s.placement, s.name): None for s in _list_auth_secrets(old)
        }
        return (old.auth_type, dict(old.auth_config), kept_secrets) if old else ("none", {}, {})
    if not isinstance(raw, Mapping) or raw.get("type", "none") not in AUTH_FIELDS:
        raise InvalidInput(
            "Unknown authentication type.",
            field="auth_config.type",
            remedy=format_message("Use one of: {values}.", values=", ".join(AUTH_FIELDS)),
        )
    kind = str(raw.get("type", "none"))
    public, secret_names = AUTH_FIELDS[kind]
    fields = read_known_fields(raw, public | secret_names | {"type", "configured"}, "auth_config")
    details = {name: fields[name] for name in sorted(public) if fields.get(name)}
    stored_keys = (
        {s.name for s in _list_auth_secrets(old)} if old and old.auth_type == kind else set()
    )
    values: dict[SecretKey, str | None] = {}
    required = secret_names
    if kind == Server.Auth.OAUTH2:
        required = _list_required_secrets(fields, stored_keys)
        stored_keys -= _list_replaced_secrets(fields)
    for name in secret_names:
        value = fields.get(name) or MASK
        if value == MASK and name not in stored_keys and name not in required:
            continue
        if value == MASK and name not in stored_keys:
            raise InvalidInput(
                format_message("`{name}` is missing.", name=name),
                code="missing_value",
                field=f"auth_config.{name}",
                remedy=format_message("The authentication type `{kind}` requires it.", kind=kind),
            )
        if not isinstance(value, str) or (
            name != "private_key" and re.search(r"[\x00\r\n]", value)
        ):
            one_line = format_message("`{name}` must be a single line of text.", name=name)
            raise InvalidInput(one_line, field=f"auth_config.{name}")
        values[Secret.Placement.AUTH, name] = None if value == MASK else value
    return kind, details, values


def _select_auth(raw: Mapping[str, Any] | None, transport: str) -> Mapping[str, Any] | None:
    """Return the authentication to check: none for stdio, which drops a stored one."""
    if transport != Server.Transport.STDIO or not isinstance(raw, Mapping | None):
        return raw
    if (raw or {}).get("type", "none") in AUTH_FIELDS.keys() - {"none"}:
        raise InvalidInput(
            "Authentication has an effect only for servers over HTTP.",
            code="no_effect",
            field="auth_config.type",
            remedy="Use `none`, and pass credentials to a stdio server as environment variables.",
        )
    return raw or {"type": "none"}


def _check_key_placement(kind: str, details: Mapping[str, Any], transport: str) -> None:
    """Raise `InvalidInput` if an API key has no header, or can't be sent in that place."""
    if kind == Server.Auth.API_KEY and not details.get("header"):
        raise InvalidInput(
            "The API key has no header to be sent in.",
            code="missing_value",
            field="auth_config.header",
            remedy="Enter the header's name, such as `X-API-Key`.",
        )
    placement = details.get("in", "header") if kind == Server.Auth.API_KEY else "header"
    if placement == "header" or (
        transport == Server.Transport.OPENAPI and placement in API_KEY_LOCATIONS
    ):
        return
    raise InvalidInput(
        format_message("An API key can't be sent in {place!r} here.", place=placement),
        field="auth_config.in",
        remedy="Use `header`. An API that requires it also accepts `query` or `cookie`.",
    )


def mask_auth_config(server: Server) -> dict[str, Any]:
    """Return `auth_config` without secrets, with `type` and `configured`."""
    stored_keys = any(secret.placement == Secret.Placement.AUTH for secret in server.secrets.all())
    # A login needs no secret; whether someone has signed in is part of the server's status.
    by_login = server.auth_config.get("grant") == "authorization_code"
    return {"type": server.auth_type, **server.auth_config, "configured": stored_keys or by_login}


def _list_required_secrets(
    config: Mapping[str, Any], stored_names: Collection[str]
) -> frozenset[str]:
    """Return the required secrets; a private key replaces the client secret.

    Raises `InvalidInput` for invalid fields and combinations.
    """
    grant = _parse_choice(config, "grant")
    _parse_choice(config, "per")
    _parse_choice(config, "dpop")
    _check_strings(config)
    if private_key := _find_entered_value(config, "private_key"):
        from mcp_servers.oauth_client.token_requests import detect_signing_algorithm

        detect_signing_algorithm(private_key)
    if grant != GRANT_TYPES[0] and config.get("token_url"):
        raise InvalidInput(
            "`token_url` applies only to client credentials. Other grants discover the URL "
            "automatically.",
            field="auth_config.token_url",
            remedy="Omit it.",
        )
    if grant == "jwt_bearer" and not _TOKEN_NAME.fullmatch(config.get("workload_token") or ""):
        raise InvalidInput(
            "`workload_token` must be the name of a file with a token.",
            field="auth_config.workload_token",
            remedy="Use letters, digits, `.`, `_` and `-`. The platform administrator provides "
            "the file in the organization's folder of `BONOBOT_WORKLOAD_TOKENS`.",
        )
    if grant != GRANT_TYPES[0]:
        return frozenset()
    if not config.get("client_id"):
        raise InvalidInput(
            "`client_id` is missing.",
            code="missing_value",
            field="auth_config.client_id",
            remedy="Client credentials authentication requires it.",
        )
    has_key = bool(private_key) or (
        "private_key" in stored_names and not _find_entered_value(config, "client_secret")
    )
    return frozenset() if has_key else frozenset({"client_secret"})


def _list_replaced_secrets(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the stored secrets that entered ones replace (a key a secret, and vice versa)."""
    entered_names = frozenset(
        name for name in OAUTH_SECRET_FIELDS if _find_entered_value(config, name)
    )
    return OAUTH_SECRET_FIELDS - entered_names if len(entered_names) == 1 else frozenset()


def check_urls(config: Mapping[str, Any], *, allow_private: bool) -> None:
    """Raise `EgressDenied` with the field for URLs that the egress rules deny."""
    from bonobot.core.http.egress import EgressDenied, check_url

    for name in ("token_url", "issuer"):
        if url := config.get(name):
            try:
                check_url(str(url), allow_private=allow_private)
            except EgressDenied as problem:
                problem.field = f"auth_config.{name}"
                raise


def _parse_choice(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name) or CHOICES[name][0]
    if value not in CHOICES[name]:
        raise InvalidInput(
            format_message("`{name}` can't be {value!r}.", name=name, value=value),
            field=f"auth_config.{name}",
            remedy=format_message("Use one of: {values}.", values=", ".join(CHOICES[name])),
        )
    return str(value)


def _check_strings(config: Mapping[str, Any]) -> None:
    for name in OAUTH_PUBLIC_FIELDS - {"scopes"}:
        value = config.get(name)
        if value is not None and not (isinstance(value, str) and value.isprintable()):
            raise InvalidInput(
                format_message("`{name}` must be a single line of text.", name=name),
                field=f"auth_config.{name}",
            )
    for scope in parse_scopes(config.get("scopes")):
        if not (scope.isascii() and scope.isprintable()) or '"' in scope or "\\" in scope:
            raise InvalidInput(
                format_message("{scope!r} isn't a valid scope.", scope=scope),
                field="auth_config.scopes",
            )


def _find_entered_value(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name)
    return value if isinstance(value, str) and value != MASK else ""


def _list_auth_secrets(old: Server | None) -> list[Secret]:
    secrets = old.secrets.all() if old else ()
    return [s for s in secrets if s.placement == Secret.Placement.AUTH]
