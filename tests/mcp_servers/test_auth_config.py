"""Validation of `oauth2` settings, which are returned without secrets."""

import json

import pytest

from bonobot.core.problems import Problem
from mcp_servers.auth_config import mask_auth_config
from mcp_servers.import_export import parse_import
from mcp_servers.models import Secret
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server, update_server
from tests import factories

pytestmark = pytest.mark.django_db

CREDENTIALS = {"type": "oauth2", "client_id": "me", "client_secret": "hidden-secret"}


@pytest.fixture
def administrator():
    return factories.build_administrator(factories.create_organization())


def spec(auth, **more):
    config = {"url": "https://mcp.example.com/mcp"}
    return ServerSpec(
        name="docs", transport_type="http", endpoint_config=config, auth_config=auth, **more
    )


INVALID = {
    "no client id": ({"client_secret": "x"}, "missing_value", "client_id"),
    "no secret of any kind": ({"client_id": "me"}, "missing_value", "client_secret"),
    "a key that is none": (
        {"client_id": "me", "private_key": "x"},
        "bad_private_key",
        "private_key",
    ),
    "a grant that is none": ({"grant": "password"}, "invalid", "grant"),
    "nobody's tokens": ({"grant": "authorization_code", "per": "team"}, "invalid", "per"),
    "a token URL for a login": (
        {"grant": "authorization_code", "token_url": "https://x.example/token"},
        "invalid",
        "token_url",
    ),
    "a token URL for a workload": (
        {"grant": "jwt_bearer", "workload_token": "x", "token_url": "https://x.example/token"},
        "invalid",
        "token_url",
    ),
    "a path of a token": (
        {"grant": "jwt_bearer", "workload_token": "../other/x"},
        "invalid",
        "workload_token",
    ),
    "no token": ({"grant": "jwt_bearer"}, "invalid", "workload_token"),
    "a binding that is none": ({**CREDENTIALS, "dpop": "on"}, "invalid", "dpop"),
    "a token URL inside": (
        {**CREDENTIALS, "token_url": "http://169.254.169.254/token"},
        "egress_denied",
        "token_url",
    ),
    "a scope with a quote": ({**CREDENTIALS, "scopes": 'a"b'}, "invalid", "scopes"),
    "an unknown member": ({**CREDENTIALS, "password": "x"}, "unknown_field", "password"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_settings_are_refused_at_their_field(administrator, name):
    auth, code, field = INVALID[name]
    with pytest.raises(Problem) as caught:
        create_server(administrator, spec({"type": "oauth2", **auth}))
    assert (caught.value.code, caught.value.field) == (code, f"auth_config.{field}")


def test_a_stdio_server_cant_use_oauth(administrator):
    config = {"command": "npx", "args": ["-y", "package@1.2.3"]}
    stdio_spec = ServerSpec(
        name="x", transport_type="stdio", endpoint_config=config, auth_config=CREDENTIALS
    )
    with pytest.raises(Problem) as caught:
        create_server(administrator, stdio_spec)
    assert caught.value.field == "auth_config.type"


def test_the_secret_is_encrypted_and_not_returned(administrator):
    server = create_server(administrator, spec({**CREDENTIALS, "scopes": ["a", "b"]}))
    masked = mask_auth_config(server)
    assert masked == {
        "type": "oauth2",
        "client_id": "me",
        "scopes": ["a", "b"],
        "configured": True,
    }
    assert "hidden-secret" not in json.dumps(masked) + json.dumps(server.auth_config)
    assert Secret.objects.get().value.open() == "hidden-secret"


def test_a_returned_configuration_can_be_written_back(administrator):
    server = create_server(administrator, spec(CREDENTIALS))
    update_server(
        administrator, server, spec({**mask_auth_config(server), "client_secret": "********"})
    )
    assert Secret.objects.get().value.open() == "hidden-secret"


def test_an_authorization_code_login_needs_no_secret(administrator):
    server = create_server(
        administrator, spec({"type": "oauth2", "grant": "authorization_code", "per": "user"})
    )
    assert mask_auth_config(server)["configured"] is True
    assert not Secret.objects.exists()


def test_an_imported_login_needs_no_secret():
    auth = {"type": "oauth2", "grant": "authorization_code", "per": "user", "scopes": ["a", "b"]}
    text = json.dumps({"mcpServers": {"docs": {"url": "https://x.example/mcp", "auth": auth}}})
    (entry,) = parse_import(text)
    assert not entry.problems
    assert entry.auth_config == {"grant": "authorization_code", "per": "user", "scopes": "a b"}


def test_imported_client_credentials_without_a_secret_require_one():
    auth = {"type": "oauth2", "client_id": "me"}
    text = json.dumps({"mcpServers": {"docs": {"url": "https://x.example/mcp", "auth": auth}}})
    (entry,) = parse_import(text)
    assert [problem.field for problem in entry.problems] == ["auth.client_secret"]
