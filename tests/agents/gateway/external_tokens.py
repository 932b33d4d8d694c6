"""Signed in elsewhere: an issuer that is trusted, and its tokens at an agent's address."""

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
from tests.agents.gateway.conftest import Wire
from tests.servers.token_issuer import TokenIssuer, listening

AGENT = "/mcp/agents/helper"
HERE = f"{settings.BONOBOT_URL}{AGENT}"


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Nothing is known of keys and tokens yet, and this clock says how old the keys are."""
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


def tools(wire: Wire, token: str, path: str = AGENT) -> Any:
    return wire.modern(path, "tools/list", token=token)


def refused(wire: Wire, token: str, path: str = AGENT) -> None:
    """Look that a token lets nobody in, and that nothing says why."""
    reply = tools(wire, token, path)
    assert (reply.status, reply.message["code"]) == (401, "bad_token"), reply.message
    assert reply.headers["www-authenticate"].endswith(', error="invalid_token"')


def answered(wire: Wire, token: str) -> bool:
    """Tell whether the tools are listed; within a request, a refusal is an error of MCP's."""
    return "result" in tools(wire, token).message
