"""Credentials are listed by name, date and person, replaced individually, and never shown."""

import json

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Secret, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db

OLD, NEW = "old-value-of-a-key", "new-value-of-a-key"


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def server(acme: Organization) -> Server:
    return create_server(
        factories.build_administrator(acme),
        ServerSpec(
            name="web",
            transport_type="http",
            endpoint_config={
                "url": "https://mcp.example.com/mcp",
                "headers": {"X-Team": "team-value", "X-Zone": "zone-value"},
            },
            auth_config={"type": "api_key", "header": "X-Key", "key": OLD},
            approval="first",
        ),
    )


def build_field_name(server: Server, name: str) -> str:
    return f"secret-{server.secrets.get(name=name).pk}"


def decrypt(server: Server, name: str) -> str:
    return str(server.secrets.get(name=name).value.open())


def test_credentials_are_listed_by_name_and_never_shown(acme: Organization, server: Server) -> None:
    page = admin_client.sign_in(acme, Role.AUDITOR).get("mcp_servers_server_credentials", server.pk)
    assert {"key", "X-Team", "X-Zone"} <= set(admin_client.get_text(page).split())
    assert "by cli:" in admin_client.get_text(page)
    for value in (OLD, "team-value", "zone-value"):
        assert value not in page
    assert 'name="secret-' not in page


def test_one_value_is_replaced_and_the_others_kept(acme: Organization, server: Server) -> None:
    browser = admin_client.sign_in(acme, Role.OPERATOR, "ann")
    before = server.secrets.get(name="X-Team").set_at
    page = browser.post(
        "mcp_servers_server_credentials",
        server.pk,
        **{build_field_name(server, "key"): NEW, "x": "y"},
    )
    assert NEW not in page
    assert decrypt(server, "key") == NEW
    assert decrypt(server, "X-Team") == "team-value"
    assert server.secrets.get(name="key").set_by == "user:ann"
    page = browser.get("mcp_servers_server_credentials", server.pk)
    assert "set just now by ann" in admin_client.get_text(page)
    assert server.secrets.get(name="X-Team").set_at == before
    server.refresh_from_db()
    assert server.auth_config == {"header": "X-Key"}
    assert server.approval == "first"
    row = AuditRow.objects.for_organization(acme.pk).filter(action="server_updated")[0]
    details = json.loads(row.opened)["details"]
    assert details["secrets"] == ["auth.key"]


def test_empty_inputs_replace_nothing(acme: Organization, server: Server) -> None:
    browser = admin_client.sign_in(acme, Role.OPERATOR)
    browser.post(
        "mcp_servers_server_credentials", server.pk, **{build_field_name(server, "key"): "  "}
    )
    assert "No new value was entered." in " ".join(browser.messages)
    assert decrypt(server, "key") == OLD


def test_a_read_only_role_cant_replace_credentials(acme: Organization, server: Server) -> None:
    browser = admin_client.sign_in(acme, Role.AUDITOR)
    browser.post(
        "mcp_servers_server_credentials",
        server.pk,
        status=403,
        **{build_field_name(server, "key"): NEW},
    )
    assert decrypt(server, "key") == OLD


def test_only_a_platform_administrator_sets_environment_variables(acme: Organization) -> None:
    server = factories.create_stdio_server(acme)
    Secret.objects.create(
        organization=acme, server=server, placement="env", name="API_TOKEN", value=OLD
    )
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    assert 'name="secret-' not in operator.get("mcp_servers_server_credentials", server.pk)
    operator.post(
        "mcp_servers_server_credentials",
        server.pk,
        status=403,
        **{build_field_name(server, "API_TOKEN"): NEW},
    )
    administrator = admin_client.sign_in(acme, None)
    administrator.post(
        "mcp_servers_server_credentials", server.pk, **{build_field_name(server, "API_TOKEN"): NEW}
    )
    assert decrypt(server, "API_TOKEN") == NEW


def test_the_credentials_of_another_organization_arent_found(server: Server) -> None:
    stranger = admin_client.sign_in(factories.create_organization("evil"), Role.OWNER)
    stranger.get("mcp_servers_server_credentials", server.pk, status=404)
