"""An external issuer and its tokens at an agent's endpoint."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings

from agents.gateway import authentication
from bonobot.accounts.external_issuers import jwks
from bonobot.accounts.models import Issuer, Organization
from bonobot.accounts.tokens import cache as token_cache
from bonobot.accounts.tokens.cache import VerifiedTokenCache
from tests import factories
from tests.agents.gateway.conftest import GatewayClient
from tests.servers.token_issuer import TokenIssuer, listening

AGENT = "/mcp/agents/helper"
RESOURCE = f"{settings.BONOBOT_URL}{AGENT}"


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Empty caches of keys and tokens, with this clock for the age of keys."""
    clock = Clock()
    monkeypatch.setattr(jwks, "_JWKS_CACHE", jwks.JwksCache(clock))
    monkeypatch.setattr(token_cache, "_TOKEN_CACHE", VerifiedTokenCache())
    authentication._cached_clients.clear()
    return clock


@pytest.fixture
def login(clock: Clock) -> Iterator[TokenIssuer]:
    with listening() as issuer:
        yield issuer


@pytest.fixture
def trusted(acme: Organization, login: TokenIssuer) -> Issuer:
    return factories.create_issuer(acme, login.url, role="operator", allow_private=True)


def list_tools(gateway_client: GatewayClient, token: str, path: str = AGENT) -> Any:
    return gateway_client.modern(path, "tools/list", token=token)


def assert_refused(gateway_client: GatewayClient, token: str, path: str = AGENT) -> None:
    """Check that a token is refused without a reason."""
    reply = list_tools(gateway_client, token, path)
    assert (reply.status, reply.message["code"]) == (401, "bad_token"), reply.message
    assert reply.headers["www-authenticate"].endswith(', error="invalid_token"')


def can_list_tools(gateway_client: GatewayClient, token: str) -> bool:
    """Return whether the tools are listed; a refusal may be a JSON-RPC error."""
    return "result" in list_tools(gateway_client, token).message
