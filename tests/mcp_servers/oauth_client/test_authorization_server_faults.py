"""Invalid or late responses of authorization servers, and crashes during a refresh."""

import subprocess
import sys
from datetime import timedelta
from uuid import uuid4

import httpx
import pytest
from django.utils import timezone

from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth_client import access_tokens
from mcp_servers.oauth_client.http import open_http_client
from tests import factories, processes
from tests.mcp_servers.oauth_client.conftest import LOGIN, call_tool
from tests.mcp_servers.oauth_client.test_authorization_code import (
    browser,
    get_error_code,
    signed_in,
    start_login,
)
from tests.servers.oauth_protected_server import INVALID_RESPONSES

pytestmark = pytest.mark.django_db(transaction=True)

CLAIM = """
import os, signal, sys
import django
django.setup()
from uuid import uuid4
from mcp_servers.models import OAuthGrant
from mcp_servers.oauth_client import access_tokens
assert access_tokens.claim_lease(OAuthGrant.objects.get(server=sys.argv[1]), uuid4())
os.kill(os.getpid(), signal.SIGKILL)
"""

CODES = {"too much": "response_too_large", "go elsewhere": "redirect_denied"}


def code_of_call(server) -> str:
    with pytest.raises(Problem) as caught:
        call_tool(server)
    return caught.value.code


@pytest.fixture
def owners(organization):
    return browser(factories.create_member(organization, Role.OWNER))


def test_an_invalid_token_response_is_refused(register, protected):
    server = register()
    codes = {}
    for name in INVALID_RESPONSES:
        protected.set(token_says=name)
        codes[name] = code_of_call(server)
        OAuthGrant.objects.all().delete()  # it caches a failure for a while
    assert codes == {name: CODES.get(name, "token_rejected") for name in INVALID_RESPONSES}
    protected.set(token_says="")
    assert call_tool(server)


def test_a_slow_response_times_out(register, protected, monkeypatch):
    server = register()
    protected.set(token_pause_s=2.0)
    monkeypatch.setattr(access_tokens, "TOKEN_REQUEST_TIMEOUT_S", 0.3)
    assert code_of_call(server) == "authorization_server_unreachable"
    grant = OAuthGrant.objects.get()
    assert (grant.lease_holder, grant.lease_until) == (None, None)


def test_a_token_without_expiry_is_used_until_it_is_refused(register, protected):
    protected.set(lifetime_told=False)
    server = register()
    assert call_tool(server) == call_tool(server)
    assert OAuthGrant.objects.get().expires_at is None
    assert len(protected.token_requests) == 1
    protected.set(forget=True)
    assert call_tool(server)
    assert len(protected.token_requests) == 2


def test_a_token_that_expires_immediately_is_used_for_its_call(register, protected):
    protected.set(lifetime_s=5)  # within our margin, like with a wrong clock
    server = register()
    assert call_tool(server) != call_tool(server)
    assert len(protected.token_requests) == 3  # the first call also detects the server's era


def test_a_refresh_that_crashed_before_it_was_stored_requires_a_login(owners, register, protected):
    server = register(LOGIN)
    signed_in(owners, server)
    grant = OAuthGrant.objects.get()
    # The process with the lease gets new tokens, and is killed before it stores them.
    assert access_tokens.claim_lease(grant, uuid4())
    form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token.open()}
    httpx.post(f"{protected.origin}/token", data=form).raise_for_status()
    past = timezone.now() - timedelta(seconds=1)
    OAuthGrant.objects.update(expires_at=past, lease_until=past)
    assert code_of_call(server) == "needs_reauth"
    server.refresh_from_db()
    assert server.status == Server.Status.NEEDS_REAUTH
    signed_in(owners, server)
    assert call_tool(server)


def test_a_killed_process_blocks_others_only_until_its_lease_expires(owners, register, protected):
    server = register(LOGIN)
    signed_in(owners, server)
    OAuthGrant.objects.update(expires_at=timezone.now())
    claims = subprocess.run(
        [sys.executable, "-c", CLAIM, str(server.pk)],
        env=processes.build_environment(),
        check=False,
    )
    assert claims.returncode == -9
    assert OAuthGrant.objects.get().lease_holder is not None
    OAuthGrant.objects.update(lease_until=timezone.now() + timedelta(milliseconds=500))
    assert call_tool(server)  # the refresh token wasn't used, so no login is needed


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd"])
def test_only_http_urls_are_accepted_as_authorization_urls(owners, register, protected, url):
    protected.set(extra={"authorization_endpoint": url})
    assert get_error_code(start_login(owners, register(LOGIN))) == "bad_url"


def test_metadata_at_a_private_address_isnt_fetched(register, protected, administrator):
    server = register()
    Server.objects.filter(pk=server.pk).update(
        allow_private=False, endpoint_config={"url": "https://mcp.example.com/mcp"}
    )
    account = build_endpoint(Server.objects.get(pk=server.pk)).account
    assert not account.allow_private
    code = _metadata_code(account, f"{protected.origin}/.well-known/oauth-authorization-server")
    assert code in ("private_address", "egress_denied")


def _metadata_code(account, url: str) -> str:
    async def fetch():
        async with open_http_client(account) as client:
            await client.get(url, "metadata")

    with pytest.raises(Problem) as caught:
        get_runtime().call(fetch)
    return caught.value.code
