"""The gallery of presets, and servers that are added from a preset."""

import re
from typing import Any

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.models import Preset, Server
from mcp_servers.presets.enabled_presets import enable_preset
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def browser(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


def get_secret_values(server: Server) -> dict[str, str]:
    return {secret.name: secret.value.open() for secret in server.secrets.all()}


@pytest.fixture
def preset() -> Preset:
    forecast: Preset = Preset.objects.create(
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
    return forecast


def test_the_gallery_shows_presets_by_category(
    preset: Preset, browser: admin_client.AdminClient
) -> None:
    page = browser.get("mcp_servers_server_presets")
    assert "Forecast" in page
    assert "bonobot/presets/icons.svg#" in page
    assert "Forecast" in browser.get("mcp_servers_server_presets", category="weather")
    assert "Forecast" not in browser.get("mcp_servers_server_presets", category="other")
    Preset.objects.update(category="")
    page = browser.get("mcp_servers_server_presets", category="other")
    assert "Forecast" in page
    assert page.count('class="bb-chip" href="?category=other" aria-current="true"') == 1
    assert 'href="?" aria-current="true"' not in page


def test_the_gallery_marks_presets_that_were_added(
    preset: Preset, browser: admin_client.AdminClient
) -> None:
    assert "task_alt" not in browser.get("mcp_servers_server_presets", category="weather")
    server = admin_client.create_web_server(Organization.objects.get(slug="acme"), "forecast")
    Server.objects.filter(pk=server.pk).update(preset=preset)
    assert "task_alt" in browser.get("mcp_servers_server_presets", category="weather")


def test_an_operator_adds_a_server_from_a_preset(
    preset: Preset, browser: admin_client.AdminClient
) -> None:
    assert "Access token" in browser.get("mcp_servers_server_preset", "forecast")
    fields = {"name": "sky", "parameter-REGION": "us", "parameter-TOKEN": "sesam"}
    browser.post("mcp_servers_server_preset", "forecast", **fields)
    server = Server.objects.get()
    assert (server.name, server.preset) == ("sky", preset)
    assert server.endpoint_config == {"url": "https://us.example.com/mcp"}
    assert get_secret_values(server) == {"token": "sesam"}


def test_a_missing_value_is_reported_at_its_parameter(
    preset: Preset, browser: admin_client.AdminClient
) -> None:
    page = browser.post("mcp_servers_server_preset", "forecast", name="sky")
    assert "This field is required." in page
    assert not Server.objects.exists()


def test_a_preset_of_another_organization_isnt_found(
    preset: Preset, browser: admin_client.AdminClient
) -> None:
    Preset.objects.update(organization=factories.create_organization("other"))
    assert "Forecast" not in browser.get("mcp_servers_server_presets")
    browser.get("mcp_servers_server_preset", "forecast", status=404)


def test_the_gallery_shows_requirements_and_replaced_packages_of_a_preset(
    browser: admin_client.AdminClient,
) -> None:
    page = browser.get("mcp_servers_server_presets")
    assert "@aws/mcp-server-s3" in page  # found by its search
    text = admin_client.get_text(page)
    names = ("Most used", "GitHub", "Slack", "Playwright", "All others", "AWS API", "AWS Lambda")
    places = [text.index(f" {name} ") for name in names]
    assert places == sorted(places)
    needs = dict(
        re.findall(
            r'bb-strong">([^<]+)</b>.*?<li class="bb-preset-need".*?</span>([^<]+)', page, re.S
        )
    )
    needs = {name: need.strip() for name, need in needs.items()}
    assert needs["GitHub"] == "Token"
    assert needs["Linear"] == "Sign-in"
    assert needs["Time"] == "No account"
    assert needs["Exa"] == "Token optional"
    assert needs["Git"] == "Settings"
    assert "launcher not allowed" not in page
    assert "Replaces" in browser.get("mcp_servers_server_preset", "aws-lambda")
    assert "with Bonobot&#x27;s own permissions" in browser.get(
        "mcp_servers_server_preset", "aws-lambda"
    )
    assert "Sandbox" not in browser.get("mcp_servers_server_preset", "linear")


def test_a_missing_launcher_is_explained_with_who_can_add_it(
    acme: Organization, browser: admin_client.AdminClient, settings: Any
) -> None:
    settings.BONOBOT_LAUNCHERS = ("uvx",)
    assert "launcher not allowed" in browser.get("mcp_servers_server_presets")
    page = browser.get("mcp_servers_server_preset", "everything")
    assert "A platform administrator must add it" in page
    assert "Add it to the launchers" in admin_client.sign_in(acme, None).get(
        "mcp_servers_server_preset", "everything"
    )
    browser.post("mcp_servers_server_preset", "everything", name="everything")
    assert not Server.objects.exists()


def test_a_folder_outside_the_allowed_ones_is_refused_at_its_field(
    acme: Organization, browser: admin_client.AdminClient
) -> None:
    enable_preset(factories.build_administrator(acme), Preset.objects.get(slug="filesystem"))
    page = browser.get("mcp_servers_server_preset", "filesystem")
    assert "workspaces/acme" in page
    fields = {"name": "files", "parameter-FOLDER": "/etc"}
    page = browser.post("mcp_servers_server_preset", "filesystem", **fields)
    assert "folder_not_allowed" in page.split('data-field="parameter-FOLDER"')[1]
    assert not Server.objects.exists()
