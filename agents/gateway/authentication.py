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
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from django.conf import settings

from agents.gateway.routes import GatewayAddress, GatewayTarget, find_target
from bonobot.accounts.principals import InsufficientScope, Principal
from bonobot.accounts.roles import TokenScope
from bonobot.accounts.tokens.cache import VerifiedToken, get_token_cache
from bonobot.accounts.tokens.services import build_invalid_token_error
from bonobot.accounts.tokens.token_secrets import parse_token
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.masking import Masker
from bonobot.ledger.policy_generations import load_policy_generation

MAX_CACHED_CLIENTS = 10_000
MAX_CACHED_MASKERS = 1_000
# The scopes advertised for MCP; REST has others.
SCOPES = (TokenScope.TOOLS, TokenScope.AGENTS, TokenScope.MANAGE)


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """The credentials of a request: token, gateway address and remote address."""

    token: str
    address: GatewayAddress
    remote_address: str

    def __repr__(self) -> str:
        return f"Entry(…, {self.address!r}, {self.remote_address!r})"


@dataclass(frozen=True, slots=True)
class AuthenticatedClient:
    """A principal at a gateway target, as of a policy generation."""

    verified_token: VerifiedToken
    target: GatewayTarget
    access: ClientAccess
    # Values derived from it and its latest request.
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def principal(self) -> Principal:
        """The token's principal."""
        return self.verified_token.principal

    @property
    def key(self) -> str:
        """The unique key of this principal at this target and view."""
        key = f"{self.target.kind}:{self.target.id}:{self.principal.kind}:{self.principal.id}"
        return f"{key}:{self.target.view}" if self.target.view else key

    def mask_token(self, value: Any) -> Any:
        """Return a JSON value with the client's token masked.

        Tokens must not be passed on (MCP security best practices: token passthrough).
        """
        return _build_token_masker(self.access.token).mask_known(value)

    async def refresh_if_changed(self) -> "AuthenticatedClient":
        """Return the current client (one query if unchanged); raises as `authenticate_client`."""
        generation = await get_runtime().run_orm(
            load_policy_generation, self.principal.organization_id
        )
        return self if generation == self.verified_token.generation else await self.refresh()

    async def refresh(self) -> "AuthenticatedClient":
        """Return the client, loaded again; raises as `authenticate_client`."""
        access = self.access
        verified_token = await get_token_cache().verify_current_token(
            access.token, access.remote_address
        )
        return await _admit_client(verified_token, access)

    async def refresh_principal(self) -> Principal:
        """Return the reloaded principal for the same target; raises as `authenticate_client`."""
        refreshed = await self.refresh()
        if refreshed.target.id != self.target.id:
            raise NotFound(
                "This URL now refers to a different agent or server.", code="unknown_endpoint"
            )
        return refreshed.principal

    async def has_same_access(self) -> bool:
        """Tell whether principal and target are unchanged; raises as `authenticate_client`."""
        refreshed = await self.refresh_if_changed()
        return (refreshed.principal, refreshed.target) == (self.principal, self.target)


# The client whose message is being answered; the SDK copies the context for each message.
_current_client: ContextVar[AuthenticatedClient] = ContextVar("visitor")
_cached_clients: OrderedDict[tuple[str, ...], AuthenticatedClient] = OrderedDict()


async def authenticate_client(
    token: str, address: GatewayAddress, remote_address: str
) -> AuthenticatedClient:
    """Return the client of a token at an address, used from `remote_address`.

    It may be older than the latest change. Raises the token cache's errors and `NotFound`.
    """
    verified_token = await get_token_cache().verify_token(token, remote_address)
    cached_client = _cached_clients.get(_build_cache_key(token, address))
    if cached_client is not None and cached_client.verified_token is verified_token:
        return cached_client
    return await _admit_client(verified_token, ClientAccess(token, address, remote_address))


def set_current_client(caller: AuthenticatedClient) -> None:
    """Set the client that the current task works for."""
    _current_client.set(caller)


def get_current_client() -> AuthenticatedClient:
    """Return the client that the current task works for."""
    return _current_client.get()


async def _admit_client(verified_token: VerifiedToken, access: ClientAccess) -> AuthenticatedClient:
    if not verified_token.is_for(settings.BONOBOT_URL + access.address.path):
        # The token was issued for another resource.
        raise build_invalid_token_error()
    target = await get_runtime().run_orm(find_target, access.address, verified_token.principal)
    key = _build_cache_key(access.token, access.address)
    client = _cached_clients[key] = AuthenticatedClient(verified_token, target, access)
    _cached_clients.move_to_end(key)
    while len(_cached_clients) > MAX_CACHED_CLIENTS:
        _cached_clients.popitem(last=False)
    return client


@lru_cache(MAX_CACHED_MASKERS)
def _build_token_masker(token: str) -> Masker:
    _, secret = parse_token(token)
    return Masker((token, secret))


def _build_cache_key(token: str, address: GatewayAddress) -> tuple[str, ...]:
    return token, address.kind, address.slug, address.view


def build_resource_metadata(resource_url: str, *, issuers: Sequence[str] = ()) -> dict[str, Any]:
    """Return the protected resource metadata of an address (RFC 9728).

    `issuers` are the authorization servers whose tokens are accepted; omitted if empty.
    """
    metadata: dict[str, Any] = {
        "resource": resource_url,
        "resource_name": "Bonobot",
        "bearer_methods_supported": ["header"],
        "scopes_supported": [scope.value for scope in SCOPES],
    }
    return metadata | ({"authorization_servers": list(issuers)} if issuers else {})


def build_challenge(metadata_url: str, problem: Problem, default_scope: str = "") -> str:
    """Return the value of `WWW-Authenticate` for a 401, or for a 403 because of a missing scope.

    `default_scope` is the scope that clients without a token should request.
    """
    parameters = {"resource_metadata": metadata_url}
    if default_scope and problem.status == HTTPStatus.UNAUTHORIZED:
        parameters["scope"] = default_scope
    if isinstance(problem, InsufficientScope):
        # Any of them is enough: request the narrowest.
        parameters |= {"error": problem.code, "scope": problem.scopes[0]}
    elif problem.code == "bad_token":
        parameters["error"] = "invalid_token"
    return "Bearer " + ", ".join(
        f'{name}="{_escape_quotes(text)}"' for name, text in parameters.items()
    )


def _escape_quotes(text: str) -> str:
    """Escape a text for a quoted string (RFC 9110, 5.6.4)."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
