"""Adding servers: by form, from a preset; configuring them; secrets go in and never come out."""

import re
from typing import Any

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.text.masking import MASK
from mcp_servers.models import Preset, Secret, Server
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
# As a browser sends it: with all that is folded away.
FORM = HTTP | {"elicitation": "on", "sampling": "off", "confinement": "none"}
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
def seat(acme: Organization) -> admin_client.Desk:
    return admin_client.sit(acme, Role.OPERATOR)


def values(server: Server) -> dict[str, str]:
    return {secret.name: secret.value.open() for secret in server.secrets.all()}


def test_an_http_server_is_added_with_encrypted_headers(seat: admin_client.Desk) -> None:
    pairs = {"headers-name": ["X-Team", ""], "headers-value": ["geheim", ""]}
    page = seat.post("mcp_servers_server_add", **HTTP, **pairs)
    server = Server.objects.get()
    assert server.endpoint_config == {"url": "https://mcp.example.com/mcp"}
    assert values(server) == {"X-Team": "geheim"}
    assert "data-connect" in page


def test_a_stdio_server_is_added_by_a_platform_administrator(acme: Organization) -> None:
    pairs = {"env-name": ["API_TOKEN"], "env-value": ["geheim"]}
    admin_client.sit(acme, None).post("mcp_servers_server_add", **STDIO, **pairs)
    server = Server.objects.get()
    args = ["mcp-server-time==2026.1.1", "--local-timezone", "UTC"]
    assert server.endpoint_config == {"command": "uvx", "args": args}
    assert values(server) == {"API_TOKEN": "geheim"}


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"url": "ftp://x"}, "bad_url"),
        ({"url": ""}, "bad_url"),
        ({"url": "mcp.example.com/mcp"}, "bad_url"),
        ({"url": "http://127.0.0.1/mcp"}, "private_address"),
        ({"name": "  "}, None),
        ({"transport_type": "carrier-pigeon"}, None),
        ({"auth_type": "bearer_token"}, "missing_value"),
        ({"headers-name": ["Host"], "headers-value": ["x"]}, "invalid"),
        ({"headers-name": ["", "X"], "headers-value": ["a", "b"]}, None),
        ({"approval": "always"}, None),
    ],
)
def test_invalid_values_are_reported_at_their_field_and_nothing_is_written(
    seat: admin_client.Desk, said: dict[str, Any], code: str | None
) -> None:
    page = seat.post("mcp_servers_server_add", **(HTTP | said))
    assert not Server.objects.exists()
    assert 'role="alert"' in page
    if code:
        assert f"({code})" in page


OPEN = re.compile(r'<details class="bb-fold" open[^>]*><summary>([^<]*)')


def test_advanced_fields_are_collapsed_unless_set_or_invalid(seat: admin_client.Desk) -> None:
    assert OPEN.findall(seat.get("mcp_servers_server_add")) == []
    wrong = {"name": ""}  # so that the form comes back
    for said, title in (
        ({"headers-name": ["X-Team"], "headers-value": ["x"]}, "More connection settings"),
        ({"approval": "first"}, "Permissions"),
        ({"calls_per_minute": "-1"}, "Limits and prices"),
        ({"enabled": ""}, "Description and status"),
    ):
        assert OPEN.findall(seat.post("mcp_servers_server_add", **(FORM | wrong | said))) == [title]


def test_a_refused_private_address_expands_its_permission_field(seat: admin_client.Desk) -> None:
    page = seat.post("mcp_servers_server_add", **(FORM | {"url": "http://10.0.0.1/mcp"}))
    assert OPEN.findall(page) == ["More connection settings"]


def test_a_stored_server_shows_its_settings(acme: Organization, seat: admin_client.Desk) -> None:
    server = admin_client.web_server(acme)  # at a private address
    page = seat.get("mcp_servers_server_configuration", server.pk)
    assert OPEN.findall(page) == ["More connection settings"]


def test_an_authentication_chosen_for_another_transport_is_ignored(acme: Organization) -> None:
    said = {"auth_type": "bearer_token", "token": "geheim"}
    admin_client.sit(acme, None).post("mcp_servers_server_add", **(STDIO | said))
    assert Server.objects.get().auth_type == "none"


def test_an_operator_cant_set_a_command(seat: admin_client.Desk) -> None:
    page = seat.post("mcp_servers_server_add", **STDIO)
    assert "platform_admin_only" in page
    assert not Server.objects.exists()


def test_an_operator_cant_allow_a_private_address(seat: admin_client.Desk) -> None:
    page = seat.post(
        "mcp_servers_server_add", **(HTTP | {"url": "http://10.0.0.1/mcp", "allow_private": "on"})
    )
    assert "private_address" in page
    assert not Server.objects.exists()


def test_a_platform_administrator_allows_a_private_address(acme: Organization) -> None:
    private = {"url": "http://10.0.0.1/mcp", "allow_private": "on"}
    admin_client.sit(acme, None).post("mcp_servers_server_add", **(HTTP | private))
    assert Server.objects.get().allow_private


def test_a_command_that_isnt_a_launcher_is_refused(acme: Organization) -> None:
    page = admin_client.sit(acme, None).post(
        "mcp_servers_server_add", **(STDIO | {"command": "bash"})
    )
    assert "launcher_not_allowed" in page
    assert not Server.objects.exists()


def test_a_duplicate_name_is_reported_at_the_name_field(
    acme: Organization, seat: admin_client.Desk
) -> None:
    admin_client.web_server(acme, "weather")
    page = seat.post("mcp_servers_server_add", **HTTP)
    assert "name_taken" in page
    assert Server.objects.count() == 1


@pytest.fixture
def sealed(acme: Organization) -> Server:
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
    sealed: Server, seat: admin_client.Desk
) -> None:
    fields = HTTP | {"auth_type": "bearer_token", "token": MASK, "description": "New words"}
    pairs = {"headers-name": ["X-Team", "X-New"], "headers-value": [MASK, "neu"]}
    seat.post("mcp_servers_server_configuration", sealed.pk, **fields, **pairs)
    sealed.refresh_from_db()
    assert sealed.description == "New words"
    assert values(sealed) == {"X-Team": "geheim", "X-New": "neu", "token": "sesam"}


def test_the_selected_tools_are_shown_and_updated(sealed: Server, seat: admin_client.Desk) -> None:
    fields = HTTP | {"auth_type": "bearer_token", "token": MASK}
    name = "mcp_servers_server_configuration"
    seat.post(name, sealed.pk, **fields, only_tools="read_*\n\n search \n")
    sealed.refresh_from_db()
    assert sealed.only_tools == ["read_*", "search"]
    assert "read_*\nsearch</textarea>" in seat.get(name, sealed.pk)
    seat.post(name, sealed.pk, **fields, only_tools="")
    sealed.refresh_from_db()
    assert sealed.only_tools == []


def test_a_new_credential_replaces_the_stored_one(sealed: Server, seat: admin_client.Desk) -> None:
    fields = HTTP | {"auth_type": "api_key", "header": "X-Key", "key": "neu"}
    seat.post("mcp_servers_server_configuration", sealed.pk, **fields)
    sealed.refresh_from_db()
    assert (sealed.auth_type, sealed.auth_config) == ("api_key", {"header": "X-Key"})
    assert values(sealed) == {"key": "neu"}


def test_a_refused_update_doesnt_change_the_server(sealed: Server, seat: admin_client.Desk) -> None:
    seat.post("mcp_servers_server_configuration", sealed.pk, **(HTTP | {"url": "ftp://x"}))
    sealed.refresh_from_db()
    assert sealed.endpoint_config["url"] == "https://mcp.example.com/mcp"
    assert Secret.objects.count() == 3


def test_an_operator_can_rename_a_stdio_server_and_keep_its_command(
    acme: Organization, seat: admin_client.Desk
) -> None:
    admin_client.sit(acme, None).post(
        "mcp_servers_server_add", **STDIO, **{"env-name": ["A"], "env-value": ["geheim"]}
    )
    server = Server.objects.get()
    renamed = STDIO | {"name": "watch", "command": "bash", "args": "-c evil"}
    seat.post("mcp_servers_server_configuration", server.pk, **renamed)
    server.refresh_from_db()
    assert (server.name, server.endpoint_config["command"]) == ("watch", "uvx")
    assert values(server) == {"A": "geheim"}


def test_an_auditor_cant_change_a_configuration(acme: Organization, sealed: Server) -> None:
    auditor = admin_client.sit(acme, Role.AUDITOR)
    page = auditor.post("mcp_servers_server_configuration", sealed.pk, **(HTTP | {"name": "mine"}))
    assert "forbidden" in page
    sealed.refresh_from_db()
    assert sealed.name == "weather"


@pytest.fixture
def preset() -> Preset:
    made: Preset = Preset.objects.create(
        slug="forecast",
        name="Forecast",
        category="weather",
        transport_type="http",
        endpoint_config={"url": "https://${REGION}.example.com/mcp"},
        auth_type="bearer_token",
        auth_config={"token": "${TOKEN}"},
        parameters=[
            {
                "name": "REGION",
                "label": "Region",
                "secret": False,
                "required": True,
                "default": "eu",
            },
            {"name": "TOKEN", "label": "Access token", "secret": True, "required": True},
        ],
    )
    return made


def test_the_gallery_shows_presets_by_category(preset: Preset, seat: admin_client.Desk) -> None:
    page = seat.get("mcp_servers_server_presets")
    assert "Forecast" in page
    assert "bonobot/presets/icons.svg#" in page
    assert "Forecast" in seat.get("mcp_servers_server_presets", category="weather")
    assert "Forecast" not in seat.get("mcp_servers_server_presets", category="other")
    Preset.objects.update(category="")
    page = seat.get("mcp_servers_server_presets", category="other")
    assert "Forecast" in page
    assert page.count('class="bb-chip" href="?category=other" aria-current="true"') == 1
    assert 'href="?" aria-current="true"' not in page


def test_an_operator_adds_a_server_from_a_preset(preset: Preset, seat: admin_client.Desk) -> None:
    assert "Access token" in seat.get("mcp_servers_server_preset", "forecast")
    fields = {"name": "sky", "parameter-REGION": "us", "parameter-TOKEN": "sesam"}
    seat.post("mcp_servers_server_preset", "forecast", **fields)
    server = Server.objects.get()
    assert (server.name, server.preset) == ("sky", preset)
    assert server.endpoint_config == {"url": "https://us.example.com/mcp"}
    assert values(server) == {"token": "sesam"}


def test_a_missing_value_is_reported_at_its_parameter(
    preset: Preset, seat: admin_client.Desk
) -> None:
    page = seat.post("mcp_servers_server_preset", "forecast", name="sky")
    assert "This field is required." in page
    assert not Server.objects.exists()


def test_a_preset_of_another_organization_isnt_found(
    preset: Preset, seat: admin_client.Desk
) -> None:
    Preset.objects.update(organization=factories.create_organization("other"))
    assert "Forecast" not in seat.get("mcp_servers_server_presets")
    seat.get("mcp_servers_server_preset", "forecast", status=404)


@pytest.mark.parametrize(
    ("said", "kept"),
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
    seat: admin_client.Desk, said: dict[str, str], kept: dict[str, str]
) -> None:
    seat.post("mcp_servers_server_add", **(HTTP | {"auth_type": "oauth2"} | said))
    server = Server.objects.get()
    assert kept.items() <= server.auth_config.items()
    page = seat.get("mcp_servers_server_configuration", server.pk)
    assert "geheim" not in page
    # Saved again as it is shown, nothing changes.
    again = HTTP | {"auth_type": "oauth2", "description": "x"} | said
    again |= {"client_secret": MASK} if "client_secret" in said else {}
    seat.post("mcp_servers_server_configuration", server.pk, **again)
    server.refresh_from_db()
    assert server.description == "x"
    assert values(server) == ({"client_secret": "geheim"} if "client_secret" in said else {})
