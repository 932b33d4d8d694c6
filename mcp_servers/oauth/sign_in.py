"""The sign-in `oauth2` as people write it: what it needs, and what its members may be."""

from collections.abc import Collection, Mapping
from typing import Any

from bonobot.lib.egress import EgressDenied, check_url
from bonobot.lib.masking import MASK
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from mcp_servers.oauth.accounts import GRANTS, PER, scopes_of
from mcp_servers.oauth.assertions import algorithm

PUBLIC = frozenset({"client_id", "scopes", "token_url", "grant", "per", "issuer", "key_id"})
SEALED = frozenset({"client_secret", "private_key"})
CHOICES = {"grant": GRANTS, "per": PER}


def needed(members: Mapping[str, Any], stored: Collection[str]) -> frozenset[str]:
    """Return the secrets that have to be there; one of two kinds is enough.

    Raises `Invalid` for members that don't go together or aren't what they should be.
    """
    interactive = _choice(members, "grant") == "authorization_code"
    _choice(members, "per")
    _texts(members)
    if key := _given(members, "private_key"):
        algorithm(key)
    if interactive and members.get("token_url"):
        raise Invalid(
            "`token_url` is for client credentials; a login finds its own.",
            field="auth_config.token_url",
            remedy="Leave it out.",
        )
    if interactive:
        return frozenset()
    if not members.get("client_id"):
        raise Invalid(
            "`client_id` is missing.",
            code="missing_value",
            field="auth_config.client_id",
            remedy="A sign-in by client credentials needs it.",
        )
    has_key = bool(key) or ("private_key" in stored and not _given(members, "client_secret"))
    return frozenset() if has_key else frozenset({"client_secret"})


def dropped(members: Mapping[str, Any]) -> frozenset[str]:
    """Return the stored secrets that what is given replaces: a key a secret, and back."""
    given = frozenset(name for name in SEALED if _given(members, name))
    return SEALED - given if len(given) == 1 else frozenset()


def check_urls(members: Mapping[str, Any], *, allow_private: bool) -> None:
    """Refuse URLs that could never be asked; raises `EgressDenied` with the field."""
    for name in ("token_url", "issuer"):
        if url := members.get(name):
            try:
                check_url(str(url), allow_private=allow_private)
            except EgressDenied as problem:
                problem.field = f"auth_config.{name}"
                raise


def _choice(members: Mapping[str, Any], name: str) -> str:
    value = members.get(name) or CHOICES[name][0]
    if value not in CHOICES[name]:
        raise Invalid(
            say("`{name}` can't be {value!r}.", name=name, value=value),
            field=f"auth_config.{name}",
            remedy=say("Use one of: {choices}.", choices=", ".join(CHOICES[name])),
        )
    return str(value)


def _texts(members: Mapping[str, Any]) -> None:
    for name in PUBLIC - {"scopes"}:
        value = members.get(name)
        if value is not None and not (isinstance(value, str) and value.isprintable()):
            raise Invalid(
                say("`{name}` must be one line of text.", name=name), field=f"auth_config.{name}"
            )
    for scope in scopes_of(members.get("scopes")):
        if not (scope.isascii() and scope.isprintable()) or '"' in scope or "\\" in scope:
            raise Invalid(say("{scope!r} is not a scope.", scope=scope), field="auth_config.scopes")


def _given(members: Mapping[str, Any], name: str) -> str:
    value = members.get(name)
    return value if isinstance(value, str) and value != MASK else ""
