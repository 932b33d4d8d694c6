"""A server saved as a preset contains no secret and creates the same server."""

from dataclasses import replace

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.principals import build_cli_principal
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden, NotFound
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Preset, Server
from mcp_servers.presets.catalog import fill_preset
from mcp_servers.presets.save_as_preset import save_as_preset
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return Organization.objects.create(name="Acme", slug="acme")


def create_stdio_server(acme: Organization) -> Server:
    spec = ServerSpec(
        name="files",
        transport_type="stdio",
        endpoint_config={
            "command": "npx",
            "args": ["-y", "server@1.0.0"],
            "env": {"A_KEY": "canary-1", "a_key": "canary-2"},
        },
    )
    return create_server(build_cli_principal(acme), spec)


def test_the_saved_preset_creates_the_same_server(acme: Organization) -> None:
    preset = save_as_preset(build_cli_principal(acme), create_stdio_server(acme), "Our files")
    assert [p["name"] for p in preset.parameters] == ["A_KEY", "A_KEY_2"]
    assert "canary" not in repr(Preset.objects.filter(pk=preset.pk).values())
    spec = fill_preset(preset, {"A_KEY": "1", "A_KEY_2": "2"}, name="again")
    server = create_server(build_cli_principal(acme), spec, preset=preset)
    assert server.endpoint_config == {"command": "npx", "args": ["-y", "server@1.0.0"]}
    assert {s.name: s.value.open() for s in server.secrets.all()} == {"A_KEY": "1", "a_key": "2"}


def test_saving_a_preset_is_recorded(acme: Organization) -> None:
    save_as_preset(build_cli_principal(acme), create_stdio_server(acme), "Our files")
    assert AuditRow.objects.filter(organization_id=acme.pk, action="preset_saved").count() == 1


def test_only_roles_that_can_set_a_command_can_save_one(acme: Organization) -> None:
    owner = replace(build_cli_principal(acme), platform_admin=False, role=Role.OWNER)
    with pytest.raises(Forbidden) as caught:
        save_as_preset(owner, create_stdio_server(acme), "Our files")
    assert caught.value.code == "platform_admin_only"
    assert not Preset.objects.filter(organization=acme).exists()


def test_a_server_of_another_organization_isnt_found(acme: Organization) -> None:
    other_organization = Organization.objects.create(name="Other", slug="other")
    with pytest.raises(NotFound):
        save_as_preset(build_cli_principal(other_organization), create_stdio_server(acme), "Theirs")
