"""Keys of issuers: fetching, expiry, and unavailable issuers."""

import pytest

from agents.models import Agent
from bonobot.accounts.external_issuers import jwks
from bonobot.accounts.models import Issuer
from bonobot.accounts.tokens import cache as token_cache
from tests.agents.gateway.conftest import GatewayClient
from tests.agents.gateway.external_tokens import (
    RESOURCE,
    Clock,
    assert_refused,
    clock,
    list_tools,
    login,
    trusted,
)
from tests.servers.token_issuer import TokenIssuer

__all__ = ["clock", "login", "trusted"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_tokens_of_an_unavailable_issuer_are_refused_and_it_isnt_retried_immediately(
    helper: Agent, gateway_client: GatewayClient, login: TokenIssuer, trusted: Issuer, clock: Clock
) -> None:
    login.down = True
    replies = [list_tools(gateway_client, login.token(RESOURCE, jti=str(n))) for n in range(3)]
    assert {reply.status for reply in replies} == {503}
    assert all(int(reply.headers["retry-after"]) > 0 for reply in replies)
    requests = len(login.http.asked)
    login.down = False
    assert list_tools(gateway_client, login.token(RESOURCE)).status == 503
    assert len(login.http.asked) == requests == 1
    clock.now += jwks.RETRY_S
    assert list_tools(gateway_client, login.token(RESOURCE)).status == 200


def test_a_new_key_is_fetched_once_and_unknown_keys_are_rate_limited(
    helper: Agent, gateway_client: GatewayClient, login: TokenIssuer, trusted: Issuer, clock: Clock
) -> None:
    assert list_tools(gateway_client, login.token(RESOURCE)).status == 200
    clock.now += jwks.RETRY_S
    login.add_key("two")
    assert list_tools(gateway_client, login.token(RESOURCE, kid="two")).status == 200
    assert login.reads == 2
    for number in range(3):
        assert_refused(
            gateway_client, login.token(RESOURCE, kid="one", headers={"kid": f"strange-{number}"})
        )
    assert login.reads == 2


def test_a_removed_key_is_refused(
    helper: Agent, gateway_client: GatewayClient, login: TokenIssuer, trusted: Issuer, clock: Clock
) -> None:
    old = login.token(RESOURCE)
    assert list_tools(gateway_client, old).status == 200
    login.rotate("two")
    clock.now += jwks.FRESH_S + 1
    assert list_tools(gateway_client, login.token(RESOURCE, kid="two")).status == 200
    assert_refused(gateway_client, login.token(RESOURCE, kid="one", jti="2"))
    # A verified token is also verified again.
    token_cache.get_token_cache()._tokens.clear()
    assert_refused(gateway_client, old)


def test_keys_stay_valid_for_a_while_without_their_issuer(
    helper: Agent, gateway_client: GatewayClient, login: TokenIssuer, trusted: Issuer, clock: Clock
) -> None:
    assert list_tools(gateway_client, login.token(RESOURCE)).status == 200
    login.down = True
    clock.now += jwks.FRESH_S + 1
    assert list_tools(gateway_client, login.token(RESOURCE, jti="2")).status == 200
    clock.now += jwks.MAX_STALE_S
    assert list_tools(gateway_client, login.token(RESOURCE, jti="3")).status == 503
