"""Validation of an `auth_config` of type `oauth2`."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.masking import MASK
from mcp_servers.oauth_client.types import (
    DPOP_CHOICES,
    GRANT_TYPES,
    PER_CHOICES,
    parse_scopes,
)

PUBLIC_FIELDS = frozenset(
    {"client_id", "scopes", "token_url", "grant", "per", "issuer", "key_id"}
    | {"workload_token", "dpop"}
)
SECRET_FIELDS = frozenset({"client_secret", "private_key"})
CHOICES = {"grant": GRANT_TYPES, "per": PER_CHOICES, "dpop": DPOP_CHOICES}
# Never a path: the file is in the folder of the organization.
_TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def list_required_secrets(
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


def list_replaced_secrets(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the stored secrets that entered ones replace (a key a secret, and vice versa)."""
    entered_names = frozenset(name for name in SECRET_FIELDS if _find_entered_value(config, name))
    return SECRET_FIELDS - entered_names if len(entered_names) == 1 else frozenset()


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
            remedy=format_message("Use one of: {choices}.", choices=", ".join(CHOICES[name])),
        )
    return str(value)


def _check_strings(config: Mapping[str, Any]) -> None:
    for name in PUBLIC_FIELDS - {"scopes"}:
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
