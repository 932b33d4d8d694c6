"""Launchers are added and removed by platform administrators; shells are refused."""

import pytest

from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Launcher
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


def test_a_launcher_is_added_and_recorded() -> None:
    administrator = admin_client.sign_in(factories.create_organization(), None)
    text = admin_client.get_text(administrator.get("mcp_servers_launcher_add"))
    assert text.count("Add launcher") >= 2  # the title and the button
    assert "can start local servers with this command" in text
    administrator.post("mcp_servers_launcher_add", command="deno", note="for tests")
    assert Launcher.objects.get().command == "deno"
    assert AuditRow.objects.filter(action="launcher_created", resource_name="deno").count() == 1


@pytest.mark.parametrize("command", ["bash", "/bin/sh", "../x", "deno run"])
def test_a_forbidden_launcher_is_refused(command: str) -> None:
    page = admin_client.sign_in(factories.create_organization(), None).post(
        "mcp_servers_launcher_add", command=command
    )
    assert "can&#x27;t start a server" in page
    assert not Launcher.objects.exists()


def test_an_owner_cant_see_launchers() -> None:
    owner = admin_client.sign_in(factories.create_organization(), Role.OWNER)
    owner.get("mcp_servers_launcher_changelist", status=403)
    owner.post("mcp_servers_launcher_add", command="deno", status=403)
    assert not Launcher.objects.exists()


def test_a_launcher_is_removed_by_the_service() -> None:
    root = admin_client.sign_in(factories.create_organization(), None)
    row = Launcher.objects.create(command="deno")
    root.post("mcp_servers_launcher_delete", row.pk, post="yes")
    assert not Launcher.objects.exists()
    assert AuditRow.objects.filter(action="launcher_deleted").count() == 1
