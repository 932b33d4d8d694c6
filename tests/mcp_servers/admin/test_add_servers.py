"""Adding servers by form and configuring them, without revealing secrets."""

import re
from typing import Any

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.text.masking import MASK
from mcp_servers.models import Secret, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
HTTP: dict[str, Any] = {
    "name": "weather",
    "transport_type": "http",
    "url": "https://mcp.example.com/mcp",
    "auth_type": "none",
    "approval": "manual",
    "enabled": "on",
}
# As a browser sends it, including collapsed fields.
FORM = HTTP | {"elicitation": "on", "sampling": "off", "sandbox": "none", "session_state": "auto"}
STDIO: dict[str, Any] = {
    "name": "clock",
    "transport_type": "stdio",
    "command": "uvx",
    "args": "mcp-server-time==2026.1.1\n--local-timezone\nUTC",
    "auth_type": "none",
    "approval": "manual",
    "enabled": "on",
}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def browser(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


def get_secret_values(server: Server) -> dict[str, str]:
    return {secret.name: secret.value.open() for secret in server.secrets.all()}


def test_an_http_server_is_added_with_encrypted_headers(browser: admin_client.AdminClient) -> None:
    pairs = {"headers-name": ["X-Team", ""], "headers-value": ["geheim", ""]}
    page = browser.post("mcp_servers_server_add", **HTTP, **pairs)
    server = Server.objects.get()
    assert server.endpoint_config == {"url": "https://mcp.example.com/mcp"}
    assert get_secret_values(server) == {"X-Team": "geheim"}
    assert "data-connect" in page


def test_a_stdio_server_is_added_by_a_platform_administrator(acme: Organization) -> None:
    pairs = {"env-name": ["API_TOKEN"], "env-value": ["geheim"]}
    admin_client.sign_in(acme, None).post("mcp_servers_server_add", **STDIO, **pairs)
    server = Server.objects.get()
    args = ["mcp-server-time==2026.1.1", "--local-timezone", "UTC"]
    assert server.endpoint_config == {"command": "uvx", "args": args}
    assert get_secret_values(server) == {"API_TOKEN": "geheim"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"url": "ftp://x"}, "bad_url"),
        ({"url": ""}, "bad_url"),
        ({"url": "mcp.example.com/mcp"}, "bad_url"),
        ({"url": "http://127.0.0.1/mcp"}, "private_address"),
        ({"name": "  "}, None),
        ({"transport_type": "carrier-pigeon"}, None),
        ({"auth_type": "bearer_token"}, "missing_value"),
        ({"headers-name": ["Host"], "headers-value": ["x"]}, None),
        ({"headers-name": ["", "X"], "headers-value": ["a", "b"]}, None),
        ({"approval": "always"}, None),
    ],
)
def test_invalid_values_are_reported_at_their_field_and_nothing_is_written(
    browser: admin_client.AdminClient, changes: dict[str, Any], code: str | None
) -> None:
    page = browser.post("mcp_servers_server_add", **(HTTP | changes))
    assert not Server.objects.exists()
    assert 'role="alert"' in page
    if code:
        assert f"<code>{code}</code>" in page


OPEN = re.compile(r'<details class="bb-fold bb-setting"\s*open[^>]*>\s*<summary>\s*<b[^>]*>([^<]*)')
SUMMARY = re.compile(
    r'<b class="bb-strong">([^<]*)</b>\s*<span class="bb-setting-summary"[^>]*>([^<]*)'
)


@pytest.mark.parametrize(
    ("changes", "title", "summary"),
    [
        (
            {"headers-name": ["X-Team"], "headers-value": ["v4lue"]},
            "More connection settings",
            "Headers: X-Team",
        ),
        ({"approval": "first"}, "Permissions", "Definition review: Trust the first discovery"),
        ({"calls_per_minute": "90"}, "Limits and prices", "Calls per minute: 90"),
        ({"enabled": ""}, "Description and status", "Enabled: No"),
    ],
)
def test_advanced_fields_are_collapsed_to_the_values_that_were_changed(
    browser: admin_client.AdminClient, changes: dict[str, object], title: str, summary: str
) -> None:
    page = browser.get("mcp_servers_server_add")
    assert dict(SUMMARY.findall(page))[title] == "Default"
    invalid = {"name": ""}  # so that the form is shown again
    page = browser.post("mcp_servers_server_add", **(FORM | invalid | changes))
    assert OPEN.findall(page) == []
    assert dict(SUMMARY.findall(page))[title] == summary


def test_advanced_fields_with_an_error_are_open(browser: admin_client.AdminClient) -> None:
    page = browser.post("mcp_servers_server_add", **(FORM | {"calls_per_minute": "-1"}))
    assert OPEN.findall(page) == ["Limits and prices"]
    page = browser.post("mcp_servers_server_add", **(FORM | {"url": "http://10.0.0.1/mcp"}))
    assert OPEN.findall(page) == ["More connection settings"]
    assert "A platform administrator can allow private" in admin_client.get_text(page)


def test_a_refused_private_address_names_the_checkbox_to_those_who_can_allow_it(
    acme: Organization,
) -> None:
    administrator = admin_client.sign_in(acme, None)
    page = administrator.post("mcp_servers_server_add", **(FORM | {"url": "http://10.0.0.1/mcp"}))
    select = "Select “Allow private or loopback address” and check again."
    assert select in admin_client.get_text(page)


def test_a_stored_server_shows_its_settings(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme)  # at a private address
    page = browser.get("mcp_servers_server_configuration", server.pk)
    summary = dict(SUMMARY.findall(page))["More connection settings"]
    assert summary == "Allow private or loopback address"


def test_an_authentication_chosen_for_another_transport_is_ignored(acme: Organization) -> None:
    changes = {"auth_type": "bearer_token", "token": "geheim"}
    admin_client.sign_in(acme, None).post("mcp_servers_server_add", **(STDIO | changes))
    assert Server.objects.get().auth_type == "none"


def test_an_operator_cant_set_a_command(browser: admin_client.AdminClient) -> None:
    page = browser.post("mcp_servers_server_add", **STDIO)
    assert "platform_admin_only" in page
    assert not Server.objects.exists()


def test_an_operator_cant_allow_a_private_address(browser: admin_client.AdminClient) -> None:
    page = browser.post(
        "mcp_servers_server_add", **(HTTP | {"url": "http://10.0.0.1/mcp", "allow_private": "on"})
    )
    assert "private_address" in page
    assert not Server.objects.exists()


def test_a_platform_administrator_allows_a_private_address(acme: Organization) -> None:
    private = {"url": "http://10.0.0.1/mcp", "allow_private": "on"}
    admin_client.sign_in(acme, None).post("mcp_servers_server_add", **(HTTP | private))
    assert Server.objects.get().allow_private


def test_a_command_that_isnt_a_launcher_is_refused(acme: Organization) -> None:
    page = admin_client.sign_in(acme, None).post(
        "mcp_servers_server_add", **(STDIO | {"command": "bash"})
    )
    assert "launcher_not_allowed" in page
    assert not Server.objects.exists()


def test_a_duplicate_name_is_reported_at_the_name_field(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    admin_client.create_web_server(acme, "weather")
    page = browser.post("mcp_servers_server_add", **HTTP)
    assert "name_taken" in page
    assert Server.objects.count() == 1


def test_a_duplicate_name_is_reported_together_with_a_bad_url(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    admin_client.create_web_server(acme, "weather")
    page = browser.post("mcp_servers_server_add", **(HTTP | {"url": "nowhere"}))
    assert "name_taken" in page
    assert "bad_url" in page


@pytest.fixture
def server_with_secrets(acme: Organization) -> Server:
    return create_server(
        factories.build_administrator(acme),
        ServerSpec(
            name="weather",
            transport_type="http",
            endpoint_config={
                "url": "https://mcp.example.com/mcp",
                "headers": {"X-Team": "geheim", "X-Old": "alt"},
            },
            auth_config={"type": "bearer_token", "token": "sesam"},
        ),
    )


def test_the_mask_keeps_a_value_and_a_removed_row_deletes_it(
    server_with_secrets: Server, browser: admin_client.AdminClient
) -> None:
    fields = HTTP | {"auth_type": "bearer_token", "token": MASK, "description": "New words"}
    pairs = {"headers-name": ["X-Team", "X-New"], "headers-value": [MASK, "neu"]}
    browser.post("mcp_servers_server_configuration", server_with_secrets.pk, **fields, **pairs)
    server_with_secrets.refresh_from_db()
    assert server_with_secrets.description == "New words"
    assert get_secret_values(server_with_secrets) == {
        "X-Team": "geheim",
        "X-New": "neu",
        "token": "sesam",
    }


def test_the_selected_tools_are_shown_and_updated(
    server_with_secrets: Server, browser: admin_client.AdminClient
) -> None:
    fields = HTTP | {"auth_type": "bearer_token", "token": MASK}
    name = "mcp_servers_server_configuration"
    browser.post(name, server_with_secrets.pk, **fields, only_tools="read_*\n\n search \n")
    server_with_secrets.refresh_from_db()
    assert server_with_secrets.only_tools == ["read_*", "search"]
    assert "read_*\nsearch</textarea>" in browser.get(name, server_with_secrets.pk)
    browser.post(name, server_with_secrets.pk, **fields, only_tools="")
    server_with_secrets.refresh_from_db()
    assert server_with_secrets.only_tools == []


def test_a_new_credential_replaces_the_stored_one(
    server_with_secrets: Server, browser: admin_client.AdminClient
) -> None:
    fields = HTTP | {"auth_type": "api_key", "header": "X-Key", "key": "neu"}
    browser.post("mcp_servers_server_configuration", server_with_secrets.pk, **fields)
    server_with_secrets.refresh_from_db()
    assert (server_with_secrets.auth_type, server_with_secrets.auth_config) == (
        "api_key",
        {"header": "X-Key"},
    )
    assert get_secret_values(server_with_secrets) == {"key": "neu"}


def test_a_refused_update_doesnt_change_the_server(
    server_with_secrets: Server, browser: admin_client.AdminClient
) -> None:
    browser.post(
        "mcp_servers_server_configuration", server_with_secrets.pk, **(HTTP | {"url": "ftp://x"})
    )
    server_with_secrets.refresh_from_db()
    assert server_with_secrets.endpoint_config["url"] == "https://mcp.example.com/mcp"
    assert Secret.objects.count() == 3


def test_an_operator_can_rename_a_stdio_server_and_keep_its_command(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    admin_client.sign_in(acme, None).post(
        "mcp_servers_server_add", **STDIO, **{"env-name": ["A"], "env-value": ["geheim"]}
    )
    server = Server.objects.get()
    renamed = STDIO | {"name": "watch", "command": "bash", "args": "-c evil", "enabled": ""}
    browser.post("mcp_servers_server_configuration", server.pk, **renamed)
    server.refresh_from_db()
    assert server.enabled  # the switch in the header sets it
    assert (server.name, server.endpoint_config["command"]) == ("watch", "uvx")
    assert get_secret_values(server) == {"A": "geheim"}


def test_an_auditor_cant_change_a_configuration(
    acme: Organization, server_with_secrets: Server
) -> None:
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    auditor.post(
        "mcp_servers_server_configuration",
        server_with_secrets.pk,
        status=403,
        **(HTTP | {"name": "mine"}),
    )
    server_with_secrets.refresh_from_db()
    assert server_with_secrets.name == "weather"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"grant": "client_credentials", "client_id": "me", "client_secret": "geheim"},
            {"grant": "client_credentials", "client_id": "me"},
        ),
        (
            {"grant": "authorization_code", "per": "user", "scopes": "read write"},
            {"grant": "authorization_code", "per": "user", "scopes": "read write"},
        ),
    ],
)
def test_an_oauth_sign_in_can_be_configured(
    browser: admin_client.AdminClient, fields: dict[str, str], expected: dict[str, str]
) -> None:
    browser.post("mcp_servers_server_add", **(HTTP | {"auth_type": "oauth2"} | fields))
    server = Server.objects.get()
    assert expected.items() <= server.auth_config.items()
    page = browser.get("mcp_servers_server_configuration", server.pk)
    assert "geheim" not in page
    # Saving it again as shown changes nothing.
    unchanged = HTTP | {"auth_type": "oauth2", "description": "x"} | fields
    unchanged |= {"client_secret": MASK} if "client_secret" in fields else {}
    browser.post("mcp_servers_server_configuration", server.pk, **unchanged)
    server.refresh_from_db()
    assert server.description == "x"
    assert get_secret_values(server) == (
        {"client_secret": "geheim"} if "client_secret" in fields else {}
    )
