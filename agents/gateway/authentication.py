"""Authentication of MCP clients, and `WWW-Authenticate` challenges.

Authenticated clients are cached, so that a warm request takes no queries: admission detects an
outdated policy generation, and then the client is refreshed. Requests without an admission, such as
lists, check the generation themselves.

The metadata follows RFC 9728, the challenge RFC 6750 with RFC 9728's `resource_metadata`, as MCP
requires.
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
    """The credentials of a request: token, gateway address and remote address."""

    token: str
    address: GatewayAddress
    caller: str

    def __repr__(self) -> str:
        return f"Entry(…, {self.address!r}, {self.caller!r})"


@dataclass(frozen=True, slots=True)
class AuthenticatedClient:
    """A principal at a gateway target, as of a policy generation."""

    known: VerifiedToken
    place: GatewayTarget
    entry: ClientAccess

    @property
    def principal(self) -> Principal:
        """The token's principal."""
        return self.known.principal

    @property
    def key(self) -> str:
        """The unique key of this principal at this target."""
        return f"{self.place.kind}:{self.place.id}:{self.principal.kind}:{self.principal.id}"

    def without_token(self, value: Any) -> Any:
        """Return a JSON value with the client's token masked.

        Tokens must not be passed on (MCP security best practices: token passthrough).
        """
        return _build_token_masker(self.entry.token).exact(value)

    async def current(self) -> "AuthenticatedClient":
        """Return the current client (one query if unchanged); raises as `authenticate_client`."""
        now = await get_runtime().orm(load_policy_generation, self.principal.organization_id)
        return self if now == self.known.generation else await self.renewed()

    async def renewed(self) -> "AuthenticatedClient":
        """Return the client, loaded again; raises as `authenticate_client`."""
        entry = self.entry
        known = await get_token_cache().current(entry.token, entry.caller)
        return await _admit_client(known, entry)

    async def principal_again(self) -> Principal:
        """Return the reloaded principal for the same target; raises as `authenticate_client`."""
        now = await self.renewed()
        if now.place.id != self.place.id:
            raise NotFound("This address means something else by now.", code="unknown_endpoint")
        return now.principal

    async def may_stay(self) -> bool:
        """Tell whether principal and target are unchanged; raises as `authenticate_client`."""
        now = await self.current()
        return (now.principal, now.place) == (self.principal, self.place)


# The client whose message is being answered; the SDK copies the context for each message.
_visitor: ContextVar[AuthenticatedClient] = ContextVar("visitor")
_kept: OrderedDict[tuple[bytes, GatewayAddress], AuthenticatedClient] = OrderedDict()


async def authenticate_client(
    token: str, address: GatewayAddress, caller: str
) -> AuthenticatedClient:
    """Return the client of a token at an address, used from `remote_address`.

    It may be older than the latest change. Raises the token cache's errors and `NotFound`.
    """
    known = await get_token_cache().known(token, caller)
    kept = _kept.get(_build_cache_key(token, address))
    if kept is not None and kept.known is known:
        return kept
    return await _admit_client(known, ClientAccess(token, address, caller))


def set_current_client(visitor: AuthenticatedClient) -> None:
    """Set the client that the current task works for."""
    _visitor.set(visitor)


def get_current_client() -> AuthenticatedClient:
    """Return the client that the current task works for."""
    return _visitor.get()


async def _admit_client(known: VerifiedToken, entry: ClientAccess) -> AuthenticatedClient:
    if not known.is_for(settings.BONOBOT_URL + entry.address.path):
        # The token was issued for another resource.
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


# The scopes advertised for MCP; REST has others.
SCOPES = (TokenScope.TOOLS, TokenScope.AGENTS, TokenScope.MANAGE)


def build_resource_metadata(resource_url: str, *, issuers: Sequence[str] = ()) -> dict[str, Any]:
    """Return the protected resource metadata of an address (RFC 9728).

    `issuers` are the authorization servers whose tokens are accepted; omitted if empty.
    """
    found: dict[str, Any] = {
        "resource": resource_url,
        "resource_name": "Bonobot",
        "bearer_methods_supported": ["header"],
        "scopes_supported": [scope.value for scope in SCOPES],
    }
    return found | ({"authorization_servers": list(issuers)} if issuers else {})


def build_challenge(metadata_url: str, problem: Problem, usual: str = "") -> str:
    """Return the value of `WWW-Authenticate` for a 401, or for a 403 because of a missing scope.

    `default_scope` is the scope that clients without a token should request.
    """
    members = {"resource_metadata": metadata_url}
    if usual and problem.status == HTTPStatus.UNAUTHORIZED:
        members["scope"] = usual
    if isinstance(problem, InsufficientScope):
        # Any of them is enough: request the narrowest.
        members |= {"error": problem.code, "scope": problem.scopes[0]}
    elif problem.code == "bad_token":
        members["error"] = "invalid_token"
    return "Bearer " + ", ".join(
        f'{name}="{_escape_quotes(text)}"' for name, text in members.items()
    )


def _escape_quotes(text: str) -> str:
    """Escape a text for a quoted string (RFC 9110, 5.6.4)."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
