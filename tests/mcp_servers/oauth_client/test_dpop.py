"""Tokens that are bound to a key, with a server that verifies each proof (RFC 9449)."""

from datetime import timedelta

import pytest
from django.utils import timezone

from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from mcp_servers.models import OAuthGrant
from tests import factories
from tests.mcp_servers.oauth_client.conftest import CREDENTIALS, LOGIN, call_tool
from tests.mcp_servers.oauth_client.test_authorization_code import browser, signed_in

pytestmark = pytest.mark.django_db(transaction=True)

SUPPORTED = {"extra": {"dpop_signing_alg_values_supported": ["ES256"]}}


def test_a_token_is_bound_to_a_key_when_both_servers_support_it(register, protected):
    protected.set(**SUPPORTED, dpop=True)
    server = register()
    call_tool(server)
    call_tool(server)
    proofs = protected.seen()["proofs"]
    assert len({proof["jti"] for proof in proofs}) == len(proofs) > 2
    assert len({proof["thumbprint"] for proof in proofs}) == 1
    grant = OAuthGrant.objects.get()
    assert "PRIVATE KEY" in grant.dpop_key.open()
    assert "PRIVATE KEY" not in str(OAuthGrant.objects.values_list("dpop_key").get())


def test_nonces_of_both_servers_are_sent_back(register, protected):
    protected.set(**SUPPORTED, dpop=True, dpop_nonce="n-1")
    server = register()
    call_tool(server)
    assert [request.get("jkt") for request in protected.token_requests] == [None, None]
    protected.set(dpop_nonce="n-2")
    assert call_tool(server)
    assert protected.seen()["proofs"][-1]["nonce"] == "n-2"
    assert protected.seen()["calls"] == 2
    assert len(protected.token_requests) == 2


def test_a_refresh_token_is_sent_with_its_key(register, protected, organization):
    protected.set(**SUPPORTED, dpop=True)
    server = register(LOGIN)
    owner = factories.create_member(organization, Role.OWNER)
    assert signed_in(browser(owner), server).status_code == 200
    first = call_tool(server)
    key = OAuthGrant.objects.get().dpop_key.open()
    OAuthGrant.objects.update(expires_at=timezone.now() + timedelta(seconds=5))
    assert call_tool(server) != first
    assert OAuthGrant.objects.get().dpop_key.open() == key


@pytest.mark.parametrize(
    ("dpop", "choice"), [(False, "auto"), (False, "off")], ids=["not requested", "off"]
)
def test_a_bearer_token_is_used_otherwise(register, protected, dpop, choice):
    protected.set(**SUPPORTED, dpop=dpop)
    call_tool(register({**CREDENTIALS, "dpop": choice}))
    assert protected.seen()["proofs"] == []


def test_a_server_that_requires_it_never_gets_a_bearer_token(register, protected):
    server = register({**CREDENTIALS, "dpop": "required"})
    with pytest.raises(Problem) as caught:
        call_tool(server)
    assert caught.value.code == "dpop_unsupported"
    assert protected.token_requests == []
    protected.set(**SUPPORTED)
    OAuthGrant.objects.update(failed_at=None)
    call_tool(server)
    assert protected.seen()["proofs"]
