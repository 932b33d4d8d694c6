"""Export over REST, in the format that other clients and imports read."""

import json

import pytest

from bonobot.accounts.roles import Role
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, rest

pytestmark = pytest.mark.django_db

SECRET = "tok-in-the-clear-0123456789"


@pytest.fixture
def acme():
    organization = factories.create_organization()
    config = {"url": "https://mcp.example.com/mcp", "headers": {"X-Team": SECRET}}
    auth = {"type": "bearer_token", "token": SECRET}
    spec = ServerSpec(name="docs", transport_type="http", endpoint_config=config, auth_config=auth)
    create_server(factories.build_administrator(organization), spec)
    return organization


def test_the_pool_is_exported_without_its_secrets(acme):
    response = rest.as_role(acme, Role.AUDITOR).get("mcp-servers/export")
    assert response.status == 200
    assert response.json["mcpServers"]["docs"] == {
        "type": "http",
        "url": "https://mcp.example.com/mcp",
        "headers": {"X-Team": "${DOCS_X_TEAM}", "Authorization": "Bearer ${DOCS_TOKEN}"},
    }
    assert SECRET not in json.dumps(response.json)


def test_an_export_can_be_imported_elsewhere_with_its_values(acme):
    exported = rest.as_role(acme, Role.OPERATOR).get("mcp-servers/export").json
    other_organization = factories.create_organization("other")
    client = rest.as_role(other_organization, Role.OPERATOR)
    values = {"DOCS_TOKEN": "one", "DOCS_X_TEAM": "two"}
    body = {"text": json.dumps(exported), "apply": True, "fill": values}
    response = client.post("mcp-servers/import", body)
    assert response.json["entries"][0]["action"] == "added", response.json
    server = Server.objects.get(organization=other_organization)
    assert {s.name: s.value.open() for s in server.secrets.all()} == {
        "token": "one",
        "X-Team": "two",
    }


def test_only_the_named_servers_are_exported(acme):
    client = rest.as_role(acme, Role.OPERATOR)
    assert list(client.get("mcp-servers/export?name=docs").json["mcpServers"]) == ["docs"]
    response = client.get("mcp-servers/export?name=docs&name=dogs")
    assert (response.status, response.json["code"]) == (400, "unknown_server")


def test_a_member_cant_export(acme):
    assert rest.as_role(acme, Role.MEMBER).get("mcp-servers/export").status == 403
