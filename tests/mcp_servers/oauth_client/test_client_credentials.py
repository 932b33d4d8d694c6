"""Client credentials with a real authorization server: storing and refreshing tokens, no leaks."""

import hashlib
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from django.utils import timezone

from bonobot.core import runtime as runtimes
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.auth_config import mask_auth_config
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.discovery import run_discovery
from mcp_servers.models import HealthCheck, OAuthGrant, Server
from mcp_servers.oauth_client.http import open_http_client
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import update_server
from tests.mcp_servers.oauth_client.conftest import CREDENTIALS, call_tool
from tests.servers.oauth_protected_server import CLIENT_ID, CLIENT_SECRET

pytestmark = pytest.mark.django_db(transaction=True)


def call_and_fail(server) -> Problem:
    with pytest.raises(Problem) as caught:
        call_tool(server)
    return caught.value


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
def test_a_client_secret_gets_a_token_that_is_sent(register, protected, method):
    protected.set(methods=[method])
    server = register()
    digest = call_tool(server)
    (request,) = protected.token_requests
    assert request["grant_type"] == "client_credentials"
    assert request["resource"] == protected.url
    token = OAuthGrant.objects.get(server=server).access_token.open()
    assert hashlib.sha256(token.encode()).hexdigest() == digest


@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_a_private_key_can_replace_the_secret(register, protected, kind):
    key = rsa.generate_private_key(65537, 2048) if kind == "rsa" else None
    key = key or ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    protected.set(public_key=public.decode(), methods=["private_key_jwt"])
    server = register({"type": "oauth2", "client_id": CLIENT_ID, "private_key": pem})
    assert call_tool(server)
    (request,) = protected.token_requests
    assert request["client_assertion_type"].endswith("jwt-bearer")
    assert "client_secret" not in request
    assert request["authorization"] == ""
    assert mask_auth_config(server) == {
        "type": "oauth2",
        "client_id": CLIENT_ID,
        "configured": True,
    }


def test_one_token_is_used_for_many_calls(register, protected):
    server = register()
    assert len({call_tool(server) for _ in range(5)}) == 1
    assert len(protected.token_requests) == 1


def test_discovery_uses_a_token_too(register, protected, administrator):
    server = register()
    result = get_runtime().call(run_discovery, server.pk, actor=administrator.actor)
    assert result.tools == ("whoami",)


def test_an_expiring_token_is_refreshed_before_it_is_refused(register, protected):
    server = register()
    first = call_tool(server)
    OAuthGrant.objects.update(expires_at=timezone.now() + timedelta(seconds=5))
    assert call_tool(server) != first
    assert len(protected.token_requests) == 2


def test_a_revoked_token_is_refreshed_and_the_request_repeated_once(register, protected):
    server = register()
    first = call_tool(server)
    protected.set(forget=True)
    assert call_tool(server) != first
    assert len(protected.token_requests) == 2
    assert protected.seen()["calls"] == 2


def test_the_expiry_is_known_after_a_restart(register, protected):
    server = register()
    first = call_tool(server)
    expires_at = OAuthGrant.objects.get().expires_at
    runtimes.close_runtime()
    assert call_tool(server) == first
    assert OAuthGrant.objects.get().expires_at == expires_at
    assert timedelta(minutes=59) < expires_at - timezone.now() < timedelta(minutes=61)
    assert len(protected.token_requests) == 1


def test_concurrent_calls_wait_for_one_token(register, protected):
    server = register()
    protected.set(token_pause_s=0.3)
    endpoint = build_endpoint(server)  # once, because each thread would keep its own connection
    with ThreadPoolExecutor(10) as pool:
        digests = set(pool.map(lambda _: call_tool(server, endpoint), range(10)))
    assert len(digests) == 1
    assert len(protected.token_requests) == 1


def test_a_refused_client_marks_the_server_as_needing_credentials(register, protected):
    server = register({**CREDENTIALS, "client_secret": "not-the-one"})
    problem = call_and_fail(server)
    assert problem.code == "needs_reauth"
    assert "credentials" in problem.remedy
    server.refresh_from_db()
    assert server.status == Server.Status.NEEDS_REAUTH
    assert call_and_fail(server).code == "needs_reauth"
    assert len(protected.token_requests) == 1  # a refusal is cached for a while


def test_new_credentials_are_tried_immediately(register, protected, administrator):
    server = register({**CREDENTIALS, "client_secret": "not-the-one"})
    call_and_fail(server)
    spec = ServerSpec(
        name=server.name,
        transport_type="http",
        endpoint_config=server.endpoint_config,
        auth_config=CREDENTIALS,
        allow_private=True,
    )
    update_server(administrator, server, spec)
    assert call_tool(server)


def test_additional_scopes_are_requested_once_with_the_previous_ones(register, protected):
    server = register({**CREDENTIALS, "scopes": ["read"]})
    call_tool(server)
    protected.set(needed_scope="write")
    call_tool(server)
    assert [each["scope"] for each in protected.token_requests] == ["read", "read write"]


def test_an_insufficient_scope_is_requested_only_once(register, protected):
    server = register({**CREDENTIALS, "scopes": ["read"]})
    call_tool(server)
    protected.set(needed_scope="x y")  # no token has both
    assert [call_and_fail(server).code for _ in range(4)] == [
        "needs_reauth",
        *["token_rejected"] * 3,
    ]
    assert len(protected.token_requests) == 2


def test_scopes_default_to_those_of_the_resource_metadata(register, protected):
    protected.set(scopes_supported=["docs:read", "docs:write"])
    call_tool(register())
    assert protected.token_requests[0]["scope"] == "docs:read docs:write"


BROKEN = {
    "another issuer": ({"issuer": "https://evil.example"}, "issuer_mismatch"),
    "an issuer with a slash more": ({"issuer": "SLASH"}, "issuer_mismatch"),
    "another resource": ({"resource": "https://elsewhere.example/mcp"}, "resource_mismatch"),
    "cloud metadata as the resource's": (
        {"resource_metadata": "http://169.254.169.254/latest"},
        "egress_denied",
    ),
    "a file as the resource's metadata": ({"resource_metadata": "file:///etc/passwd"}, "bad_url"),
    "cloud metadata as authority": (
        {"authorization_servers": ["http://169.254.169.254"]},
        "egress_denied",
    ),
    "cloud metadata as token endpoint": (
        {"extra": {"token_endpoint": "http://169.254.169.254/token"}},
        "egress_denied",
    ),
    "no token endpoint": ({"extra": {"token_endpoint": None}}, "oauth_metadata_invalid"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_metadata_is_refused_with_its_code(register, protected, name):
    settings, code = BROKEN[name]
    if settings.get("issuer") == "SLASH":
        settings = {"issuer": f"{protected.origin}/"}
    protected.set(**settings)
    assert call_and_fail(register()).code == code
    assert not protected.token_requests


def test_credentials_arent_sent_to_another_authorization_server(register, protected):
    server = register()
    call_tool(server)
    other = "https://as.elsewhere.example"
    protected.set(authorization_servers=[other], forget=True)
    assert call_and_fail(server).code == "issuer_changed"
    assert len(protected.token_requests) == 1


def test_credentials_arent_sent_to_a_default_token_endpoint(register, protected):
    protected.set(resource_metadata_served=False, metadata_served=False)
    assert call_and_fail(register()).code == "oauth_metadata_invalid"
    assert not protected.token_requests


def test_a_token_url_needs_no_metadata(register, protected):
    protected.set(authorization_servers=["https://nowhere.example"])
    assert call_tool(register({**CREDENTIALS, "token_url": f"{protected.origin}/token"}))


def test_an_outage_doesnt_require_a_login(register, protected):
    server = register({**CREDENTIALS, "token_url": "http://127.0.0.1:9/token"})
    problem = call_and_fail(server)
    assert problem.code == "authorization_server_unreachable"
    assert problem.retryable


def test_no_secret_reaches_a_log_or_a_row(register, protected, caplog, administrator):
    caplog.set_level(logging.DEBUG)
    server = register()
    call_tool(server)
    protected.set(forget=True)
    get_runtime().call(run_discovery, server.pk, actor=administrator.actor)
    grant = OAuthGrant.objects.get()
    output = caplog.text + repr(grant.__dict__) + repr(Server.objects.values().get())
    output += repr(OAuthGrant.objects.values()) + repr(describe_endpoint(server))
    for secret in (CLIENT_SECRET, grant.access_token.open()):
        assert secret not in output


def test_an_error_that_repeats_our_token_is_masked(register, protected, administrator):
    server = register()
    protected.set(echo=True)
    assert "********" in str(call_and_fail(server))
    with pytest.raises(Problem):
        get_runtime().call(run_discovery, server.pk, actor=administrator.actor)
    output = repr(Server.objects.values().get()) + repr(HealthCheck.objects.values())
    assert OAuthGrant.objects.get().access_token.open() not in output


@pytest.mark.parametrize(
    ("allow_private", "url", "code"),
    [
        (False, "http://as.example.com/token", "oauth_insecure"),
        (False, "https://127.0.0.1/token", "private_address"),
        (False, "ftp://as.example.com/token", "bad_url"),
        (True, "http://169.254.169.254/token", "egress_denied"),
    ],
)
def test_credentials_are_sent_only_over_https_to_public_addresses(
    register, allow_private, url, code
):
    account = replace(build_endpoint(register()).account, allow_private=allow_private)

    async def send_request() -> None:
        async with open_http_client(account) as client:
            await client.post(url, "token endpoint", form={})

    with pytest.raises(Problem) as caught:
        get_runtime().call(send_request)
    assert caught.value.code == code


def describe_endpoint(server) -> str:
    endpoint = build_endpoint(server)
    return repr(endpoint) + repr(endpoint.account) + str(endpoint.auth)


@pytest.fixture
def workload_token(settings, tmp_path, organization, protected):
    """Return a function that writes the platform's token for an audience."""
    settings.BONOBOT_WORKLOAD_TOKENS = str(tmp_path)
    (tmp_path / str(organization.pk)).mkdir()

    def write_token(audience: str) -> str:
        token = jwt.encode({"sub": "bonobot", "aud": audience}, "k" * 32)
        (tmp_path / str(organization.pk) / "platform").write_text(f"{token}\n")
        return token

    return write_token


WORKLOAD = {"type": "oauth2", "grant": "jwt_bearer", "workload_token": "platform"}


def test_a_workload_token_is_exchanged_and_read_again_for_each_exchange(
    register, protected, workload_token
):
    server = register(WORKLOAD)
    first = workload_token(protected.origin)
    call_tool(server)
    second = workload_token(f"{protected.origin}/token")
    protected.set(forget=True)
    call_tool(server)
    requests = protected.token_requests
    assert [request["assertion"] for request in requests] == [first, second]
    assert {request["grant_type"] for request in requests} == {
        "urn:ietf:params:oauth:grant-type:jwt-bearer"
    }
    assert "client_id" not in requests[0]


def test_a_workload_token_is_sent_to_its_audience_only(register, protected, workload_token):
    workload_token("https://other.example")
    problem = call_and_fail(register(WORKLOAD))
    assert problem.code == "workload_token_unusable"
    assert protected.token_requests == []


def test_client_credentials_use_no_workload_token(register, protected, workload_token):
    workload_token(protected.origin)
    call_tool(register({**CREDENTIALS, "workload_token": "../another/platform"}))
    assert "assertion" not in protected.token_requests[0]


def test_workload_tokens_of_another_organization_cant_be_used(
    register, protected, workload_token, tmp_path, organization
):
    workload_token(protected.origin)
    (tmp_path / str(organization.pk)).rename(tmp_path / "another")
    assert call_and_fail(register(WORKLOAD)).code == "workload_token_unusable"


def test_a_refused_workload_token_is_not_sent_again(register, protected, workload_token):
    workload_token(protected.origin)
    protected.set(refuse_grants="invalid_grant")
    problem = call_and_fail(register(WORKLOAD))
    assert problem.code == "needs_reauth"
    assert "workload token" in problem.remedy
    assert len(protected.token_requests) == 1
