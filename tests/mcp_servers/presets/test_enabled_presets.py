"""Stdio presets of the catalog are disabled for an organization until they are enabled."""

from argparse import Namespace
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from agents.config_file.apply_config import apply_config
from agents.config_file.read_config import read_config_file
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.cli import command_group
from bonobot.core.problems import Forbidden, InvalidInput
from bonobot.ledger.models import AuditRow
from mcp_servers.cli import servers
from mcp_servers.import_export.import_plan import plan_servers
from mcp_servers.models import Preset, Server
from mcp_servers.presets.enabled_presets import (
    can_use,
    disable_preset,
    enable_preset,
    list_enabled_ids,
)
from mcp_servers.presets.services import build_server_spec, get_preset
from mcp_servers.presets.sync_catalog import load_presets
from mcp_servers.services import create_server
from tests import admin_client, factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db

CODE = "preset_not_enabled"
BODY = {"preset": "time", "name": "clock"}
ROLES = (Role.OWNER, Role.OPERATOR, Role.REVIEWER, Role.AUDITOR, Role.MEMBER)


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def operator(acme: Organization) -> RestClient:
    return rest.as_role(acme, Role.OPERATOR)


@pytest.fixture
def preset() -> Preset:
    time_preset: Preset = Preset.objects.from_platform().get(slug="time")
    return time_preset


def list_records(organization: Organization) -> list[tuple[str, str]]:
    """Return an organization's audit log entries about presets."""
    rows = AuditRow.objects.filter(organization_id=organization.pk, resource_type="mcp_preset")
    return list(rows.order_by("seq").values_list("action", "resource_name"))


# -- The rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_a_stdio_preset_is_refused_to_every_role_until_it_is_enabled(
    acme: Organization, preset: Preset, role: Role
) -> None:
    person = factories.create_member(acme, role)
    assert not can_use(person, preset)
    with pytest.raises(Forbidden) as caught:
        build_server_spec(person, preset, {})
    assert (caught.value.code, caught.value.field) == (CODE, "preset")
    assert "platform administrator" in caught.value.remedy
    assert "bonobot mcp enable-preset time" in caught.value.remedy
    enable_preset(factories.build_administrator(acme), preset)
    assert build_server_spec(person, preset, {}).transport_type == "stdio"


def test_stdio_presets_are_disabled_and_http_presets_enabled_by_default(acme: Organization) -> None:
    enabled = list_enabled_ids(acme.pk)
    transports = {row.pk: row.transport_type for row in Preset.objects.from_platform()}
    assert {transports[pk] for pk in enabled} == {"http"}
    assert {transports[pk] for pk in transports.keys() - enabled} == {"stdio"}


def test_platform_administrators_can_always_use_a_preset(
    acme: Organization, preset: Preset
) -> None:
    assert build_server_spec(factories.build_administrator(acme), preset, {}).endpoint_config[
        "command"
    ]


def test_an_organizations_own_stdio_preset_is_always_enabled(acme: Organization) -> None:
    own_preset = Preset.objects.create(
        organization=acme,
        slug="time",
        name="Our time",
        transport_type="stdio",
        endpoint_config={"command": "uvx", "args": ["mcp-server-time@2026.1.1"]},
    )
    person = factories.create_member(acme, Role.OPERATOR)
    assert get_preset(person, "time") == own_preset
    assert can_use(person, own_preset)
    assert own_preset.pk in list_enabled_ids(acme.pk)


def test_a_refused_preset_creates_no_folder(
    acme: Organization, settings: Any, tmp_path: Any
) -> None:
    settings.BONOBOT_VAR = tmp_path
    person = factories.create_member(acme, Role.OPERATOR)
    files = get_preset(person, "filesystem")
    with pytest.raises(Forbidden):
        build_server_spec(
            person, files, {"FOLDER": str(tmp_path / "workspaces" / "acme" / "papers")}
        )
    assert not (tmp_path / "workspaces").exists()


def test_adding_a_server_with_a_preset_is_checked_too(acme: Organization, preset: Preset) -> None:
    """A server with a preset may set its command, so the preset is checked."""
    spec = build_server_spec(factories.build_administrator(acme), preset, {})
    with pytest.raises(Forbidden) as caught:
        create_server(factories.create_member(acme, Role.OPERATOR), spec, preset=preset)
    assert caught.value.code == CODE


# -- Enabling and disabling ----------------------------------------------------------------------


def test_a_preset_is_enabled_for_one_organization(acme: Organization, preset: Preset) -> None:
    other_organization = factories.create_organization("other")
    enable_preset(factories.build_administrator(acme), preset)
    assert can_use(factories.create_member(acme, Role.OPERATOR), preset)
    assert not can_use(factories.create_member(other_organization, Role.OPERATOR), preset)
    assert preset.pk in list_enabled_ids(acme.pk)
    assert preset.pk not in list_enabled_ids(other_organization.pk)


def test_disabling_a_preset_refuses_new_servers_and_keeps_existing_ones(
    acme: Organization, preset: Preset, operator: RestClient
) -> None:
    administrator = factories.build_administrator(acme)
    enable_preset(administrator, preset)
    created = operator.post("mcp-servers", BODY)
    assert created.status == 201, created
    disable_preset(administrator, preset)
    assert operator.post("mcp-servers", BODY | {"name": "second"}).code == CODE
    path = f"mcp-servers/{created.json['id']}"
    assert operator.patch(path, {"description": "Tells the time."}).status == 200
    assert operator.post(f"{path}/disable").status == 200
    assert operator.post(f"{path}/enable").json["enabled"] is True
    assert Server.objects.get().preset == preset


def test_enabling_and_disabling_are_recorded_once(acme: Organization, preset: Preset) -> None:
    administrator = factories.build_administrator(acme)
    disable_preset(administrator, preset)
    enable_preset(administrator, preset)
    enable_preset(administrator, preset)
    disable_preset(administrator, preset)
    disable_preset(administrator, preset)
    assert list_records(acme) == [("preset_enabled", "Time"), ("preset_disabled", "Time")]


@pytest.mark.parametrize("write", [enable_preset, disable_preset])
def test_only_a_platform_administrator_can_enable_presets(
    acme: Organization, preset: Preset, write: Any
) -> None:
    with pytest.raises(Forbidden) as caught:
        write(factories.create_member(acme, Role.OWNER), preset)
    assert caught.value.code == "platform_admin_only"
    assert list_records(acme) == []


@pytest.mark.parametrize("write", [enable_preset, disable_preset])
def test_a_preset_that_is_always_enabled_cant_be_enabled(acme: Organization, write: Any) -> None:
    own_preset = Preset.objects.create(
        organization=acme, slug="o", name="O", transport_type="stdio"
    )
    for preset in (own_preset, Preset.objects.from_platform().get(slug="linear")):
        with pytest.raises(InvalidInput) as caught:
            write(factories.build_administrator(acme), preset)
        assert (caught.value.code, caught.value.field) == ("preset_always_enabled", "preset")


def test_reloading_the_catalog_keeps_enabled_presets(acme: Organization, preset: Preset) -> None:
    enable_preset(factories.build_administrator(acme), preset)
    Preset.objects.filter(pk=preset.pk).update(description="Older.", catalog="older")
    load_presets()
    assert preset.pk in list_enabled_ids(acme.pk)


def test_an_organization_with_enabled_presets_can_be_deleted(
    acme: Organization, preset: Preset
) -> None:
    enable_preset(factories.build_administrator(acme), preset)
    acme.delete()
    assert Preset.objects.filter(pk=preset.pk).exists()


# -- All surfaces -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["mcp-servers", "agents/helper/mcp-servers"])
def test_rest_refuses_an_operator_until_the_preset_is_enabled(
    acme: Organization, operator: RestClient, path: str
) -> None:
    factories.create_agent(acme)
    response = operator.post(path, BODY)
    assert (response.status, response.code, response.json["field"]) == (403, CODE, "preset")
    assert not Server.objects.exists()
    assert rest.as_administrator().post("presets/time/enable").json["enabled"] is True
    assert operator.post(path, BODY).status == 201


def test_rest_returns_whether_presets_are_enabled(acme: Organization, operator: RestClient) -> None:
    def states() -> dict[str, bool]:
        rows = operator.get("presets?limit=500").json["results"]
        return {row["slug"]: row["enabled"] for row in rows}

    assert (states()["time"], states()["linear"]) == (False, True)
    assert operator.get("presets/time").json["enabled"] is False
    administrator = rest.as_administrator()
    assert administrator.post("presets/time/enable").json["enabled"] is True
    assert states()["time"] is True
    other_client = rest.as_role(factories.create_organization("other"), Role.OPERATOR)
    assert other_client.get("presets/time").json["enabled"] is False
    assert (
        administrator.post("presets/time/disable", Bonobot_Organization="acme").json["enabled"]
        is False
    )
    assert states()["time"] is False


@pytest.mark.parametrize("action", ["enable", "disable"])
def test_rest_lets_only_platform_administrators_enable_presets(
    operator: RestClient, action: str
) -> None:
    response = operator.post(f"presets/time/{action}")
    assert (response.status, response.code) == (403, "platform_admin_only")
    assert operator.post(f"presets/nothing/{action}").status == 404
    always = rest.as_administrator().post(f"presets/linear/{action}")
    assert (always.status, always.code) == (400, "preset_always_enabled")


def test_an_operator_can_add_an_http_preset(operator: RestClient) -> None:
    assert operator.post("mcp-servers", {"preset": "linear"}).status == 201


def test_the_list_uses_the_same_queries_for_any_number_of_presets(
    acme: Organization, operator: RestClient, django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(10):
        assert len(operator.get("presets?limit=500").json["results"]) > 40


def test_the_command_line_refuses_other_roles(
    acme: Organization, preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line is always a platform administrator today; the rule doesn't rely on it."""
    person = factories.create_member(acme, Role.OPERATOR)
    monkeypatch.setattr(command_group.command_principal, "_implementation", lambda _: person)
    cli = command_group.CommandContext(
        org="acme", as_json=True, stdout=StringIO(), stderr=StringIO()
    )
    with pytest.raises(Forbidden) as caught:
        servers._build_preset_spec(cli, Namespace(preset="time", set=None), {"name": "clock"})
    assert caught.value.code == CODE


@pytest.mark.parametrize(
    ("page", "args"),
    [
        ("mcp_servers_server_preset", ()),
        ("first_run_preset", ()),
        ("agents_agent_preset", ("agent",)),
    ],
)
def test_the_admin_refuses_an_operator_until_the_preset_is_enabled(
    acme: Organization, preset: Preset, page: str, args: tuple[str, ...]
) -> None:
    page_args = (*([factories.create_agent(acme).pk] if args else []), "time")
    browser = admin_client.sign_in(acme, Role.OPERATOR)
    fields = {"name": "clock", "parameter-TIMEZONE": "UTC"}
    html = browser.get(page, *page_args)
    assert "A platform administrator must enable this preset for your organization." in html
    assert CODE in browser.post(page, *page_args, **fields)
    assert not Server.objects.exists()
    enable_preset(factories.build_administrator(acme), preset)
    assert "must enable this preset" not in browser.get(page, *page_args)
    browser.post(page, *page_args, **fields)
    assert Server.objects.get().preset == preset


def test_the_gallery_links_enabled_presets_and_says_who_can_enable_others(
    acme: Organization, preset: Preset
) -> None:
    browser = admin_client.sign_in(acme, Role.OPERATOR)
    link = admin_client.build_url("mcp_servers_server_preset", "time")
    page = browser.get("mcp_servers_server_presets")
    assert not admin_client.find_links(page, link)
    assert admin_client.find_links(
        page, admin_client.build_url("mcp_servers_server_preset", "linear")
    )
    disabled_count = Preset.objects.from_platform().filter(transport_type="stdio").count()
    sentence = "A platform administrator must enable this preset for your organization."
    assert admin_client.get_text(page).count(sentence) == disabled_count
    assert admin_client.find_links(
        admin_client.sign_in(acme, None).get("mcp_servers_server_presets"), link
    )
    enable_preset(factories.build_administrator(acme), preset)
    page = browser.get("mcp_servers_server_presets")
    assert admin_client.find_links(page, link)
    assert admin_client.get_text(page).count(sentence) == disabled_count - 1


def test_a_platform_administrator_enables_a_preset_on_its_page(
    acme: Organization, preset: Preset
) -> None:
    root = admin_client.sign_in(acme, None)
    for page in (
        root.get("mcp_servers_server_preset", "time"),
        root.get("mcp_servers_preset_change", preset.pk),
    ):
        assert "Enable for Acme" in page
        form = page[: page.index("Enable for Acme")].rpartition("<form")[2]
        assert "csrfmiddlewaretoken" in form
        assert admin_client.build_url("mcp_servers_preset_enable", preset.pk) in form
    root.post("mcp_servers_preset_enable", preset.pk)
    assert root.messages == ["Time is enabled for Acme."]
    assert preset.pk in list_enabled_ids(acme.pk)
    assert "Disable for Acme" in root.get("mcp_servers_server_preset", "time")
    assert "Disable for Acme" in root.get("mcp_servers_preset_change", preset.pk)
    root.post("mcp_servers_preset_disable", preset.pk)
    assert root.messages == ["Time is disabled for Acme. Existing servers aren't affected."]
    assert preset.pk not in list_enabled_ids(acme.pk)
    assert "Enable for Acme" not in root.get("mcp_servers_server_preset", "linear")


def test_other_roles_have_no_switch_and_are_refused(acme: Organization, preset: Preset) -> None:
    owner = admin_client.sign_in(acme, Role.OWNER)
    assert "Enable for" not in owner.get("mcp_servers_server_preset", "time")
    assert "Enable for" not in owner.get("mcp_servers_preset_change", preset.pk)
    for action in ("enable", "disable"):
        page = owner.post(f"mcp_servers_preset_{action}", preset.pk, status=403)
        assert "platform_admin_only" in page
        owner.get(f"mcp_servers_preset_{action}", preset.pk, status=405)
    assert preset.pk not in list_enabled_ids(acme.pk)


def test_the_preset_list_shows_the_state(acme: Organization, preset: Preset) -> None:
    browser = admin_client.sign_in(acme, Role.OPERATOR)
    assert "not enabled" in browser.get("mcp_servers_preset_changelist", q="time zones")
    assert "not enabled" in browser.get("mcp_servers_preset_change", preset.pk)
    enable_preset(factories.build_administrator(acme), preset)
    assert "not enabled" not in browser.get("mcp_servers_preset_change", preset.pk)


DECLARED = """servers:
  clock:
    transport: stdio
    command: uvx
    args: [mcp-server-time@2026.1.1]
"""


def test_imports_and_configuration_files_refuse_commands(acme: Organization) -> None:
    """An operator can set a command only with a preset, so enabling one doesn't allow these."""
    person = factories.create_member(acme, Role.OPERATOR)
    enable_preset(factories.build_administrator(acme), get_preset(person, "time"))
    (declared,) = apply_config(person, read_config_file(DECLARED, {})).problems
    pasted = '{"mcpServers": {"clock": {"command": "uvx", "args": ["mcp-server-time@2026.1.1"]}}}'
    ((imported,),) = (planned.problems for planned in plan_servers(person, pasted))
    assert {declared.code, imported.code} == {"platform_admin_only"}
    assert not Server.objects.exists()


# -- Existing installations ----------------------------------------------------------------------


def test_the_migration_enables_presets_in_use(acme: Organization, preset: Preset) -> None:
    administrator, other_organization = (
        factories.build_administrator(acme),
        factories.create_organization("other"),
    )
    for number in range(2):
        create_server(
            administrator,
            build_server_spec(administrator, preset, {}, name=f"clock{number}"),
            preset=preset,
        )
    linear = Preset.objects.from_platform().get(slug="linear")
    create_server(administrator, build_server_spec(administrator, linear, {}), preset=linear)
    assert preset.pk not in list_enabled_ids(acme.pk)
    migration = MigrationLoader(connection).disk_migrations[
        "mcp_servers", "0002_preset_enabled_for"
    ]
    code = migration.operations[-1].code  # type: ignore[attr-defined]
    for _ in range(2):
        code(apps, SimpleNamespace(connection=connection))
    assert list(Preset.objects.filter(enabled_for=acme)) == [preset]
    assert not Preset.objects.filter(enabled_for=other_organization).exists()
