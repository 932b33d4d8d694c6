"""Presets in the admin: an organization's own presets, and saving a server as one."""

import re
from typing import Any

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.models import Preset
from mcp_servers.presets.services import PresetSpec, create_preset
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
FIELDS: dict[str, Any] = {
    "name": "House search",
    "category": "own",
    "icon": "globe",
    "transport_type": "http",
    "url": "https://${TEAM}.example.com/mcp",
    "headers": "X-Api-Key=${TOKEN}\n",
    "auth_type": "none",
    "p-name": ["TEAM", "TOKEN", ""],
    "p-label": ["Team", "Access token", ""],
    "p-default": ["all", "", ""],
    "p-help": ["Which index", "", ""],
    "p-pattern": ["[a-z]+", "", ""],
    "p-secret": ["0", "1", "0"],
    "p-required": ["1", "1", "1"],
    "p-kind": ["", "", ""],
}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def browser(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


@pytest.fixture
def stdio_preset(acme: Organization) -> Preset:
    spec = PresetSpec(
        name="Clock",
        transport_type="stdio",
        endpoint_config={"command": "npx", "args": ["-y", "clock@1.0.0"]},
    )
    return create_preset(factories.build_administrator(acme), spec)


def get_own_presets() -> Any:
    return Preset.objects.filter(organization__isnull=False)


def test_a_preset_of_the_organization_is_created_updated_and_deleted(
    browser: admin_client.AdminClient,
) -> None:
    page = browser.get("mcp_servers_preset_add")
    assert "Add parameter" in page
    for name in ("headers", "env", "auth"):  # drafts of forms leave them out
        assert re.search(rf'<textarea name="{name}"[^>]* data-secret', page), name
    browser.post("mcp_servers_preset_add", **FIELDS)
    preset = get_own_presets().get()
    assert preset.endpoint_config == {
        "url": "https://${TEAM}.example.com/mcp",
        "headers": {"X-Api-Key": "${TOKEN}"},
    }
    assert [(p["name"], p["secret"]) for p in preset.parameters] == [
        ("TEAM", False),
        ("TOKEN", True),
    ]
    assert "X-Api-Key=${TOKEN}" in browser.get("mcp_servers_preset_change", preset.pk)
    browser.post("mcp_servers_preset_change", preset.pk, **(FIELDS | {"description": "New words."}))
    preset.refresh_from_db()
    assert preset.description == "New words."
    assert "House search" in browser.get("mcp_servers_server_presets")
    browser.post("mcp_servers_preset_delete", preset.pk, post="yes")
    assert not get_own_presets().exists()


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"url": "nowhere"}, "bad_url", "url"),
        ({"headers": "X-Api-Key=abc"}, "secret_in_preset", "headers"),
        ({"headers": "no line"}, "NAME=value per line", "headers"),
        ({"p-name": ["TEAM", "lower", ""]}, "valid parameter name", "parameters"),
        ({"transport_type": "stdio", "command": "npx"}, "Select another option.", "transport_type"),
    ],
)
def test_invalid_values_are_reported_at_their_field(
    browser: admin_client.AdminClient, changes: dict[str, Any], code: str, field: str
) -> None:
    page = browser.post("mcp_servers_preset_add", **(FIELDS | changes))
    assert code in page.split(f'data-field="{field}"')[1].split("data-field=")[0]
    assert not get_own_presets().exists()


def test_an_operator_can_change_only_the_texts_of_a_stdio_preset(
    stdio_preset: Preset, browser: admin_client.AdminClient
) -> None:
    page = browser.get("mcp_servers_preset_change", stdio_preset.pk)
    assert "Only a platform administrator can change its command" in page
    assert 'name="command"' not in page
    fields = {"name": "Clock", "category": "own", "icon": "clock", "command": "evil"}
    browser.post("mcp_servers_preset_change", stdio_preset.pk, **fields)
    stdio_preset.refresh_from_db()
    assert (stdio_preset.icon, stdio_preset.endpoint_config["command"]) == ("clock", "npx")


def test_presets_of_the_catalog_are_read_only(browser: admin_client.AdminClient) -> None:
    preset = Preset.objects.get(slug="aws-lambda")
    page = browser.get("mcp_servers_preset_change", preset.pk)
    assert "@aws/mcp-server-lambda" in page
    assert "Save preset" not in page
    browser.post("mcp_servers_preset_delete", preset.pk, status=403, post="yes")


def test_an_auditor_cant_create_a_preset(acme: Organization) -> None:
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    auditor.get("mcp_servers_preset_add", status=403)
    auditor.post("mcp_servers_preset_add", status=403, **FIELDS)
    assert not get_own_presets().exists()


def test_a_server_is_saved_as_a_preset_after_a_preview_and_without_secrets(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    spec = ServerSpec(
        name="docs",
        transport_type="http",
        endpoint_config={"url": "https://docs.example.com/mcp", "headers": {"X-Key": "canary-1"}},
        auth_config={"type": "bearer_token", "token": "canary-2"},
    )
    server = create_server(factories.build_administrator(acme), spec)
    assert "Save as preset" in browser.get("mcp_servers_server_change", server.pk)
    preview = browser.get("mcp_servers_server_save_preset", server.pk)
    assert "X_KEY" in preview
    assert "Sign-in: bearer token" in admin_client.get_text(preview)
    assert "canary" not in preview
    assert not get_own_presets().exists()
    browser.post("mcp_servers_server_save_preset", server.pk, name="Our docs")
    preset = get_own_presets().get()
    assert preset.endpoint_config["headers"] == {"X-Key": "${X_KEY}"}
    assert preset.auth_config == {"token": "${TOKEN}"}
    page = browser.post("mcp_servers_server_save_preset", server.pk, name="our docs")
    assert "name_taken" in page
