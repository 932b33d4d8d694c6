"""How an imported server signs in: from its headers, or from what says so itself."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from mcp_servers.secret_values import SecretValue

AUTH_TYPES = ("none", "bearer_token", "api_key", "oauth2")
OAUTH_PUBLIC = frozenset(("client_id", "scopes", "token_url", "grant", "per", "issuer", "key_id"))
OAUTH_SEALED = ("client_secret", "private_key")
DEFAULT_KEY_HEADER = "X-API-Key"

_BEARER = re.compile(r"(?i)\s*bearer\s+(\S.*)", re.DOTALL)
_KEY_HEADER = re.compile(
    r"(?i)(?:.*-)?(?:api-?key|subscription-key|(?:access|api|auth|private)-token)"
)

# Fills a secret's text and reports what is missing in the field; None when it can't be used yet.
Fill = Callable[[str, str], str | None]


@dataclass(frozen=True, slots=True)
class SignIn:
    """A way to sign in: its type, its readable part and its secrets."""

    type: str = "none"
    config: dict[str, str] = field(default_factory=dict)
    secrets: tuple[SecretValue, ...] = ()


def from_headers(
    headers: Iterable[tuple[str, str]], fill: Fill, *, taken: bool
) -> tuple[SignIn, tuple[SecretValue, ...]]:
    """Return the sign-in among (name, text) headers, and all other headers as secrets.

    The first bearer token is the sign-in, else the first header of an API key; none of them when
    one is `taken` already.
    """
    pairs = tuple(headers)
    chosen = None if taken else _chosen(pairs)
    others = tuple(_headers((pair for pair in pairs if pair is not chosen), fill))
    if chosen is None:
        return SignIn(), others
    name, text = chosen
    token = _BEARER.fullmatch(text) if name.lower() == "authorization" else None
    value = fill(token.group(1).strip() if token else text, f"headers.{name}")
    if token:
        return SignIn("bearer_token", {}, _sealed("token", value)), others
    return SignIn("api_key", {"header": name}, _sealed("key", value)), others


def _headers(pairs: Iterator[tuple[str, str]], fill: Fill) -> Iterator[SecretValue]:
    for name, text in pairs:
        value = fill(text, f"headers.{name}")
        if value is not None:
            yield SecretValue("header", name, value)


def _chosen(pairs: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    bearer = (p for p in pairs if p[0].lower() == "authorization" and _BEARER.fullmatch(p[1]))
    keys = (pair for pair in pairs if _KEY_HEADER.fullmatch(pair[0].replace("_", "-")))
    return next(bearer, None) or next(keys, None)


def _sealed(name: str, value: str | None) -> tuple[SecretValue, ...]:
    return () if value is None else (SecretValue("auth", name, value),)


def from_members(kind: str, members: dict[str, str], fill: Fill, where: str) -> SignIn:
    """Return the sign-in that `auth_config` describes; a masked secret is to be filled."""
    if kind == "bearer_token":
        return SignIn(kind, {}, _sealed("token", fill(members.get("token", ""), f"{where}.token")))
    if kind == "api_key":
        header = members.get("header") or DEFAULT_KEY_HEADER
        key = fill(members.get("key", ""), f"{where}.key")
        place = {"in": members["in"]} if members.get("in") else {}
        return SignIn(kind, {"header": header, **place}, _sealed("key", key))
    if kind == "oauth2":
        return _oauth(members, fill, where)
    return SignIn()


def _oauth(members: dict[str, str], fill: Fill, where: str) -> SignIn:
    """Return an OAuth sign-in: a secret is asked for only where neither a key nor a login is."""
    public = {name: text for name, text in members.items() if name in OAUTH_PUBLIC}
    given = [name for name in OAUTH_SEALED if members.get(name)]
    if not given and members.get("grant") != "authorization_code":
        given = ["client_secret"]
    filled = ((name, fill(members.get(name, ""), f"{where}.{name}")) for name in given)
    return SignIn(
        "oauth2", public, tuple(one for name, text in filled for one in _sealed(name, text))
    )
