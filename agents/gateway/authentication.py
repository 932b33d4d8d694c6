"""Who calls which address; WWW-Authenticate challenges.

A visitor is kept with its pass, so that a warm request reads nothing: admission tells whether it is
older than the latest change, and then it is renewed (`passes`). What no admission stands behind,
lists above all, asks for the current one.

The document is RFC 9728's, the header RFC 6750's with RFC 9728's member, as MCP asks for both.
"""

from collections import OrderedDict
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from http import HTTPStatus
from typing import Any

from django.conf import settings

from agents.gateway.routes import GatewayAddress, GatewayTarget, find
from bonobot.accounts.principals import InsufficientScope, Principal
from bonobot.accounts.roles import TokenScope
from bonobot.accounts.tokens.cache import VerifiedToken, get_token_cache
from bonobot.accounts.tokens.services import build_invalid_token_error, parse_token
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.masking import Masker
from bonobot.ledger.queries import load_policy_generation

KEPT = 10_000
KEPT_MASKERS = 1_000


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """How somebody came in: with which token, at which address, from where."""

    token: str
    address: GatewayAddress
    caller: str

    def __repr__(self) -> str:
        return f"Entry(…, {self.address!r}, {self.caller!r})"


@dataclass(frozen=True, slots=True)
class AuthenticatedClient:
    """A principal at a place of the gateway, as of a policy generation."""

    known: VerifiedToken
    place: GatewayTarget
    entry: ClientAccess

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self.known.principal

    @property
    def key(self) -> str:
        """What tells this principal at this place from every other."""
        return f"{self.place.kind}:{self.place.id}:{self.principal.kind}:{self.principal.id}"

    def without_token(self, value: Any) -> Any:
        """Return a JSON value without the token that the visitor came in with, in whatever form.

        What a client shows to us is for us alone (MCP, security best practices: token passthrough).
        """
        return _build_token_masker(self.entry.token).exact(value)

    async def current(self) -> "AuthenticatedClient":
        """Return the visitor as of now (one query where nothing changed); raises as `welcome`."""
        now = await get_runtime().orm(load_policy_generation, self.principal.organization_id)
        return self if now == self.known.generation else await self.renewed()

    async def renewed(self) -> "AuthenticatedClient":
        """Return the visitor, read again; raises as `welcome`."""
        entry = self.entry
        known = await get_token_cache().current(entry.token, entry.caller)
        return await _admit_client(known, entry)

    async def principal_again(self) -> Principal:
        """Return the principal, read again, for a call at this very place; raises as `welcome`."""
        now = await self.renewed()
        if now.place.id != self.place.id:
            raise NotFound("This address means something else by now.", code="unknown_endpoint")
        return now.principal

    async def may_stay(self) -> bool:
        """Tell whether it is still the same principal with the same rights; raises as `welcome`."""
        now = await self.current()
        return (now.principal, now.place) == (self.principal, self.place)


# Whose message is being answered; the SDK carries it along with each message.
_visitor: ContextVar[AuthenticatedClient] = ContextVar("visitor")
_kept: OrderedDict[tuple[bytes, GatewayAddress], AuthenticatedClient] = OrderedDict()


async def authenticate_client(
    token: str, address: GatewayAddress, caller: str
) -> AuthenticatedClient:
    """Return who a token is at an address, used from `caller`.

    Raises `BadToken`, `TooManyFailures`, `IssuerUnreachable`, `NotFound`. It may be older than the
    latest change.
    """
    known = await get_token_cache().known(token, caller)
    kept = _kept.get(_build_cache_key(token, address))
    if kept is not None and kept.known is known:
        return kept
    return await _admit_client(known, ClientAccess(token, address, caller))


def set_current_client(visitor: AuthenticatedClient) -> None:
    """Have what this task does from now on be done for `visitor`."""
    _visitor.set(visitor)


def get_current_client() -> AuthenticatedClient:
    """Return for whom this task works."""
    return _visitor.get()


async def _admit_client(known: VerifiedToken, entry: ClientAccess) -> AuthenticatedClient:
    if not known.is_for(settings.BONOBOT_URL + entry.address.path):
        # It was issued for another address, or for something else.
        raise build_invalid_token_error()
    place = await get_runtime().orm(find, entry.address, known.principal)
    key = _build_cache_key(entry.token, entry.address)
    found = _kept[key] = AuthenticatedClient(known, place, entry)
    _kept.move_to_end(key)
    while len(_kept) > KEPT:
        _kept.popitem(last=False)
    return found


@lru_cache(KEPT_MASKERS)
def _build_token_masker(token: str) -> Masker:
    _, secret = parse_token(token)
    return Masker((token, secret))


def _build_cache_key(token: str, address: GatewayAddress) -> tuple[bytes, GatewayAddress]:
    return sha256(token.encode("utf-8", "surrogatepass")).digest(), address


# What a program may ask for here; REST is another door.
SCOPES = (TokenScope.TOOLS, TokenScope.AGENTS, TokenScope.MANAGE)


def build_resource_metadata(resource_url: str, *, issuers: Sequence[str] = ()) -> dict[str, Any]:
    """Return what describes an address as a protected resource.

    `issuers` are the authorization servers whose tokens are taken; without any, tokens are made by
    hand, and the member is left out.
    """
    found: dict[str, Any] = {
        "resource": resource_url,
        "resource_name": "Bonobot",
        "bearer_methods_supported": ["header"],
        "scopes_supported": [scope.value for scope in SCOPES],
    }
    return found | ({"authorization_servers": list(issuers)} if issuers else {})


def build_challenge(metadata_url: str, problem: Problem, usual: str = "") -> str:
    """Return the value of `WWW-Authenticate` for a refusal (401, or 403 for want of a scope).

    `usual` is the scope that whoever has no token should ask for.
    """
    members = {"resource_metadata": metadata_url}
    if usual and problem.status == HTTPStatus.UNAUTHORIZED:
        members["scope"] = usual
    if isinstance(problem, InsufficientScope):
        # One of them would do: the narrowest is asked for, so that nobody is given more.
        members |= {"error": problem.code, "scope": problem.scopes[0]}
    elif problem.code == "bad_token":
        members["error"] = "invalid_token"
    return "Bearer " + ", ".join(
        f'{name}="{_escape_quotes(text)}"' for name, text in members.items()
    )


def _escape_quotes(text: str) -> str:
    """Return a text as it stands between quotation marks (RFC 9110, 5.6.4)."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
