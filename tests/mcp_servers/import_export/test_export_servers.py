"""Exports use a unique placeholder per secret, and never Bonobot's own variables."""

import json

import pytest

from mcp_servers.import_export.agent_overrides import parse_overrides
from mcp_servers.import_export.export_servers import (
    SecretPlaceholders,
    build_client_file,
    export_server,
)
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories


@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [
        ("docs", "token", "${DOCS_TOKEN}"),
        ("my-docs", "X-Api-Key", "${MY_DOCS_X_API_KEY}"),
        ("bonobot", "token", "${MCP_BONOBOT_TOKEN}"),
        ("database", "url", "${MCP_DATABASE_URL}"),
        ("1password", "key", "${MCP_1PASSWORD_KEY}"),
    ],
)
def test_a_variable_is_named_after_the_server_and_its_secret(owner, name, expected):
    assert SecretPlaceholders().create_placeholder(owner, name) == expected


def test_two_secrets_never_share_a_variable():
    names = SecretPlaceholders()
    first, second = names.create_placeholder("a-b", "c"), names.create_placeholder("a", "b-c")
    assert (first, second) == ("${A_B_C}", "${A_B_C_2}")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("auth", "headers", "secret"),
    [
        ({"type": "none"}, None, None),
        (
            {"type": "bearer_token", "token": "s3cret"},
            {"Authorization": "Bearer ${DOCS_TOKEN}"},
            {"type": "bearer_token", "token": "${DOCS_TOKEN}"},
        ),
        (
            {"type": "api_key", "header": "X-Key", "key": "s3cret"},
            {"X-Key": "${DOCS_KEY}"},
            {"type": "api_key", "header": "X-Key", "key": "${DOCS_KEY}"},
        ),
        (
            {"type": "oauth2", "client_id": "me", "client_secret": "s3cret"},
            None,
            {"type": "oauth2", "client_id": "me", "client_secret": "${DOCS_CLIENT_SECRET}"},
        ),
    ],
    ids=["none", "bearer token", "API key", "OAuth"],
)
def test_an_authentication_is_written_in_the_clients_format(auth, headers, secret):
    url = "https://docs.example.com/mcp"
    spec = ServerSpec(
        name="docs", transport_type="http", endpoint_config={"url": url}, auth_config=auth
    )
    server = create_server(factories.build_administrator(factories.create_organization()), spec)
    client_file = build_client_file([server])["mcpServers"]["docs"]
    exported = export_server(server, SecretPlaceholders())
    assert (client_file.get("headers"), exported.get("auth_config")) == (headers, secret)
    assert "s3cret" not in f"{client_file} {exported}"


@pytest.mark.django_db
def test_the_selected_tools_of_a_server_are_exported():
    spec = ServerSpec(
        name="docs",
        transport_type="http",
        endpoint_config={"url": "https://docs.example.com/mcp"},
        only_tools=["read_*"],
    )
    server = create_server(factories.build_administrator(factories.create_organization()), spec)
    text = json.dumps(build_client_file([server]))
    assert parse_overrides(text).only_tools == {"docs": ("read_*",)}
    assert export_server(server, SecretPlaceholders())["allowed_tools"] == ["read_*"]
