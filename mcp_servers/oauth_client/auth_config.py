"""Validation of an `auth_config` of type `oauth2`."""

from collections.abc import Collection, Mapping
from typing import Any

from bonobot.core.http.egress import EgressDenied, check_url
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.masking import MASK
from mcp_servers.oauth_client.token_requests import detect_signing_algorithm
from mcp_servers.oauth_client.types import GRANTS, PER, parse_scopes

PUBLIC = frozenset({"client_id", "scopes", "token_url", "grant", "per", "issuer", "key_id"})
SEALED = frozenset({"client_secret", "private_key"})
CHOICES = {"grant": GRANTS, "per": PER}


def list_required_secrets(members: Mapping[str, Any], stored: Collection[str]) -> frozenset[str]:
    """Return the required secrets; a private key replaces the client secret.

    Raises `InvalidInput` for invalid fields and combinations.
    """
    interactive = _parse_choice(members, "grant") == "authorization_code"
    _parse_choice(members, "per")
    _check_texts(members)
    if key := _find_entered_value(members, "private_key"):
        detect_signing_algorithm(key)
    if interactive and members.get("token_url"):
        raise InvalidInput(
            "`token_url` is for client credentials; a login finds its own.",
            field="auth_config.token_url",
            remedy="Leave it out.",
        )
    if interactive:
        return frozenset()
    if not members.get("client_id"):
        raise InvalidInput(
            "`client_id` is missing.",
            code="missing_value",
            field="auth_config.client_id",
            remedy="A sign-in by client credentials needs it.",
        )
    has_key = bool(key) or (
        "private_key" in stored and not _find_entered_value(members, "client_secret")
    )
    return frozenset() if has_key else frozenset({"client_secret"})


def list_replaced_secrets(members: Mapping[str, Any]) -> frozenset[str]:
    """Return the stored secrets that entered ones replace (a key a secret, and vice versa)."""
    given = frozenset(name for name in SEALED if _find_entered_value(members, name))
    return SEALED - given if len(given) == 1 else frozenset()


def check_urls(members: Mapping[str, Any], *, allow_private: bool) -> None:
    """Raise `EgressDenied` with the field for URLs that the egress rules deny."""
    for name in ("token_url", "issuer"):
        if url := members.get(name):
            try:
                check_url(str(url), allow_private=allow_private)
            except EgressDenied as problem:
                problem.field = f"auth_config.{name}"
                raise


def _parse_choice(members: Mapping[str, Any], name: str) -> str:
    value = members.get(name) or CHOICES[name][0]
    if value not in CHOICES[name]:
        raise InvalidInput(
            format_message("`{name}` can't be {value!r}.", name=name, value=value),
            field=f"auth_config.{name}",
            remedy=format_message("Use one of: {choices}.", choices=", ".join(CHOICES[name])),
        )
    return str(value)


def _check_texts(members: Mapping[str, Any]) -> None:
    for name in PUBLIC - {"scopes"}:
        value = members.get(name)
        if value is not None and not (isinstance(value, str) and value.isprintable()):
            raise InvalidInput(
                format_message("`{name}` must be one line of text.", name=name),
                field=f"auth_config.{name}",
            )
    for scope in parse_scopes(members.get("scopes")):
        if not (scope.isascii() and scope.isprintable()) or '"' in scope or "\\" in scope:
            raise InvalidInput(
                format_message("{scope!r} is not a scope.", scope=scope), field="auth_config.scopes"
            )


def _find_entered_value(members: Mapping[str, Any], name: str) -> str:
    value = members.get(name)
    return value if isinstance(value, str) and value != MASK else ""
