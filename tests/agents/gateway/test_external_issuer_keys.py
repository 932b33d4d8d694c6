"""Keys of issuers: where they come from, how long they hold, and what is done without them."""

import pytest

from agents.models import Agent
from bonobot.accounts.external_issuers import jwks
from bonobot.accounts.models import Issuer
from bonobot.accounts.tokens import cache as token_cache
from tests.agents.gateway.conftest import Wire
from tests.agents.gateway.external_tokens import HERE, Clock, clock, login, refused, tools, trusted
from tests.servers.token_issuer import TokenIssuer

__all__ = ["clock", "login", "trusted"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_unavailable_issuer_admits_nobody_and_isnt_retried_immediately(
    helper: Agent, wire: Wire, login: TokenIssuer, trusted: Issuer, clock: Clock
) -> None:
    login.down = True
    answers = [tools(wire, login.token(HERE, jti=str(n))) for n in range(3)]
    assert {one.status for one in answers} == {503}
    asked = len(login.http.asked)
    login.down = False
    assert tools(wire, login.token(HERE)).status == 503
    assert len(login.http.asked) == asked == 1
    clock.now += jwks.RETRY_S
    assert tools(wire, login.token(HERE)).status == 200


def test_a_new_key_is_fetched_once_and_unknown_keys_are_rate_limited(
    helper: Agent, wire: Wire, login: TokenIssuer, trusted: Issuer, clock: Clock
) -> None:
    assert tools(wire, login.token(HERE)).status == 200
    clock.now += jwks.RETRY_S
    login.add_key("two")
    assert tools(wire, login.token(HERE, kid="two")).status == 200
    assert login.reads == 2
    for number in range(3):
        refused(wire, login.token(HERE, kid="one", headers={"kid": f"strange-{number}"}))
    assert login.reads == 2


def test_a_removed_key_is_refused(
    helper: Agent, wire: Wire, login: TokenIssuer, trusted: Issuer, clock: Clock
) -> None:
    old = login.token(HERE)
    assert tools(wire, old).status == 200
    login.rotate("two")
    clock.now += jwks.FRESH_S + 1
    assert tools(wire, login.token(HERE, kid="two")).status == 200
    refused(wire, login.token(HERE, kid="one", jti="2"))
    # What was believed a while ago is looked at again, too.
    token_cache.get_token_cache()._tokens.clear()
    refused(wire, old)


def test_keys_stay_valid_for_a_while_without_their_issuer(
    helper: Agent, wire: Wire, login: TokenIssuer, trusted: Issuer, clock: Clock
) -> None:
    assert tools(wire, login.token(HERE)).status == 200
    login.down = True
    clock.now += jwks.FRESH_S + 1
    assert tools(wire, login.token(HERE, jti="2")).status == 200
    clock.now += jwks.MAX_STALE_S
    assert tools(wire, login.token(HERE, jti="3")).status == 503
