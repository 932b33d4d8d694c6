"""Access tokens are refreshed once for all callers, across processes and after crashes."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from django.utils import timezone

from bonobot.accounts.roles import Role
from bonobot.core.runtime import get_runtime
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.models import OAuthGrant
from mcp_servers.oauth_client import access_tokens
from mcp_servers.oauth_client.token_requests import OAuthTokens
from tests import factories, processes
from tests.mcp_servers.oauth_client.conftest import LOGIN, call_tool
from tests.mcp_servers.oauth_client.test_authorization_code import browser, signed_in

pytestmark = pytest.mark.django_db(transaction=True)

# Ten concurrent callers in a process with its own loop, connections and database.
CALLERS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import django
django.setup()
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.models import Server
from tests.mcp_servers.oauth_client.conftest import call_tool
server = Server.objects.get(pk=sys.argv[1])
endpoint = build_endpoint(server)
with ThreadPoolExecutor(10) as pool:
    print(*sorted(pool.map(lambda _: call_tool(server, endpoint), range(10))), flush=True)
import os
os._exit(0)
"""


def start_callers(server) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CALLERS, str(server.pk)],
        cwd=Path(__file__).parents[3],
        env=processes.build_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


def test_twenty_callers_in_two_processes_refresh_once(register, organization, protected):
    server = register(LOGIN)
    signed_in(browser(factories.create_member(organization, Role.OWNER)), server)
    OAuthGrant.objects.update(expires_at=timezone.now())
    protected.set(token_pause_s=1.0)
    processes = [start_callers(server), start_callers(server)]
    digests = [
        digest for process in processes for digest in process.communicate(timeout=90)[0].split()
    ]
    assert len(digests) == 20
    assert len(set(digests)) == 1
    grant_types = [process["grant_type"] for process in protected.token_requests]
    assert grant_types == ["authorization_code", "refresh_token"]


def test_a_rotated_refresh_token_is_never_used_twice(register, protected, administrator):
    server = register(LOGIN)
    account = build_endpoint(server).account
    grant = access_tokens.get_or_create_grant(account)
    protected.set(token_pause_s=0.2)
    tokens = _get_tokens(protected)
    authorization_server = {
        "issuer": protected.origin,
        "resource": protected.url,
        "token_endpoint": f"{protected.origin}/token",
    }
    access_tokens.store_tokens(
        grant,
        None,
        tokens,
        authorization_server=authorization_server,
        issuer=protected.origin,
        client_id="c",
    )
    endpoint = build_endpoint(server)  # once, because each thread would keep its own connection
    with ThreadPoolExecutor(10) as pool:
        assert len(set(pool.map(lambda _: call_tool(server, endpoint), range(10)))) == 1
    refreshed = [each for each in protected.token_requests if each["grant_type"] == "refresh_token"]
    assert len(refreshed) == 1
    assert OAuthGrant.objects.get().refresh_token.open() != tokens.refresh


def _get_tokens(protected):
    challenge = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"  # of the empty verifier
    parameters = {"redirect_uri": "http://127.0.0.1/x", "state": "s", "code_challenge": challenge}
    response = httpx.get(f"{protected.origin}/authorize", params=parameters)
    code = httpx.URL(response.headers["location"]).params["code"]
    form = {"grant_type": "authorization_code", "code": code, "resource": protected.url}
    body = httpx.post(f"{protected.origin}/token", data=form).json()
    return OAuthTokens("old", body["refresh_token"], timezone.now(), "")


def test_the_lease_of_a_dead_process_is_taken_over_after_it_expires(register, protected):
    server = register()
    grant = access_tokens.get_or_create_grant(build_endpoint(server).account)
    assert access_tokens.claim_lease(grant, uuid4())
    assert not access_tokens.claim_lease(grant, uuid4())
    OAuthGrant.objects.update(lease_until=timezone.now() + timedelta(seconds=1))
    assert call_tool(server)
    assert len(protected.token_requests) == 1


def test_a_process_that_lost_the_lease_writes_nothing(register, protected):
    server = register()
    grant = access_tokens.get_or_create_grant(build_endpoint(server).account)
    call_tool(server)
    before = OAuthGrant.objects.values().get()
    stale = OAuthTokens("stale", "", None, "")
    assert not access_tokens.store_tokens(grant, uuid4(), stale)
    after = OAuthGrant.objects.values().get()
    assert before["version"] == after["version"]


def test_a_caller_that_leaves_doesnt_cancel_the_refresh(register, protected):
    server = register()
    protected.set(token_pause_s=0.5)
    account = build_endpoint(server).account
    with pytest.raises(TimeoutError):
        get_runtime().call(access_tokens.get_access_token, account, timeout_s=0.2)
    token = get_runtime().call(access_tokens.get_access_token, account)
    assert token.version == 1
    assert len(protected.token_requests) == 1
