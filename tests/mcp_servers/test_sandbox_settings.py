"""The sandbox of a stdio server: permissions, valid combinations, and storage."""

import pytest

from agents.config_file.apply_config import apply_config
from agents.config_file.export_config import export_config, to_yaml
from agents.config_file.read_config import read_config_file
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.import_export.export_servers import SecretPlaceholders, export_server
from mcp_servers.models import Server
from mcp_servers.presets.catalog import fill_preset
from mcp_servers.presets.save_as_preset import save_as_preset
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server, update_server
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db

STDIO = {"command": "npx", "args": ["-y", "package@1.2.3"]}


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


def spec(transport_type="stdio", **more):
    config = STDIO if transport_type == "stdio" else {"url": "https://mcp.example.com/mcp"}
    return ServerSpec(name="ours", transport_type=transport_type, endpoint_config=config, **more)


def get_sandbox(server):
    server.refresh_from_db()
    return server.sandbox, server.network


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ((None, None), ("none", "host")),
        (("namespaces", None), ("namespaces", "host")),
        (("namespaces", "none"), ("namespaces", "none")),
        (("bubblewrap", None), ("bubblewrap", "none")),
        (("bubblewrap", "host"), ("bubblewrap", "host")),
    ],
)
def test_omitted_sandbox_settings_have_safe_defaults(administrator, requested, expected):
    assert (
        get_sandbox(create_server(administrator, spec(sandbox=requested[0], network=requested[1])))
        == expected
    )


@pytest.mark.parametrize(
    ("before", "requested", "expected"),
    [
        (("namespaces", "none"), (None, None), ("namespaces", "none")),
        (("bubblewrap", "host"), (None, None), ("bubblewrap", "host")),
        (("namespaces", "none"), ("bubblewrap", None), ("bubblewrap", "none")),
        (("bubblewrap", "none"), ("namespaces", None), ("namespaces", "none")),
        (("namespaces", "none"), ("none", None), ("none", "host")),
    ],
)
def test_omitted_settings_of_a_stored_sandbox_are_kept(administrator, before, requested, expected):
    server = create_server(administrator, spec(sandbox=before[0], network=before[1]))
    assert (
        get_sandbox(
            update_server(administrator, server, spec(sandbox=requested[0], network=requested[1]))
        )
        == expected
    )


@pytest.mark.parametrize(
    ("transport", "settings", "code", "field"),
    [
        ("stdio", {"network": "none"}, "needs_sandbox", "network"),
        ("stdio", {"sandbox": "jail"}, "unknown_sandbox", "sandbox"),
        ("stdio", {"sandbox": "namespaces", "network": "x"}, "unknown_network", "network"),
        ("http", {"sandbox": "bubblewrap"}, "not_for_http", "sandbox"),
        ("http", {"network": "none"}, "not_for_http", "sandbox"),
    ],
)
def test_invalid_combinations_are_refused(administrator, transport, settings, code, field):
    with pytest.raises(Problem) as caught:
        create_server(administrator, spec(transport, **settings))
    assert (caught.value.code, caught.value.field) == (code, field)
    assert caught.value.remedy


def test_a_server_that_becomes_remote_has_no_sandbox(administrator):
    server = create_server(administrator, spec(sandbox="bubblewrap"))
    assert get_sandbox(update_server(administrator, server, spec("http"))) == ("none", "host")


def test_only_a_platform_administrator_can_change_a_sandbox(acme, administrator):
    server = create_server(administrator, spec(sandbox="bubblewrap"))
    owner = factories.create_member(acme, Role.OWNER)
    for change in ({"sandbox": "none"}, {"network": "host"}, {"sandbox": "namespaces"}):
        with pytest.raises(Problem) as caught:
            update_server(owner, server, spec(**change))
        assert (caught.value.code, caught.value.field) == ("platform_admin_only", "sandbox")
        server.refresh_from_db()
    assert get_sandbox(update_server(owner, server, spec(description="new"))) == (
        "bubblewrap",
        "none",
    )


def test_an_organization_uses_a_preset_with_its_own_sandbox(acme, administrator):
    saved = save_as_preset(
        administrator, create_server(administrator, spec(sandbox="bubblewrap")), "Boxed"
    )
    owner = factories.create_member(acme, Role.OWNER)
    server = create_server(owner, fill_preset(saved, {}, name="mine"), preset=saved)
    assert get_sandbox(server) == ("bubblewrap", "none")


def test_the_endpoint_hides_the_folder_of_bonobot(administrator, settings):
    sandbox = build_endpoint(create_server(administrator, spec(sandbox="bubblewrap"))).sandbox_mode
    assert (sandbox.kind, sandbox.network) == ("bubblewrap", "none")
    assert sandbox.hidden == (str(settings.BONOBOT_VAR),)


def test_a_changed_sandbox_is_another_configuration(administrator):
    server = create_server(administrator, spec(sandbox="namespaces"))
    before = build_endpoint(server).fingerprint
    assert (
        build_endpoint(update_server(administrator, server, spec(network="none"))).fingerprint
        != before
    )


def test_a_sandbox_is_exported_and_applied(administrator):
    server = create_server(administrator, spec(sandbox="bubblewrap", network="host"))
    exported = export_server(server, SecretPlaceholders())
    assert (exported["sandbox"], exported["network"]) == ("bubblewrap", "host")
    text = to_yaml(export_config(administrator, None))
    assert not apply_config(administrator, read_config_file(text, {}), dry_run=True).changes
    plan = apply_config(
        administrator, read_config_file(text.replace("bubblewrap", "namespaces"), {})
    )
    assert not plan.problems
    assert get_sandbox(server) == ("namespaces", "host")
    plain = create_server(
        administrator, ServerSpec(name="plain", transport_type="stdio", endpoint_config=STDIO)
    )
    assert "sandbox" not in export_server(plain, SecretPlaceholders())


def test_rest_reads_and_writes_the_sandbox(acme):
    administrator = rest.as_administrator()
    body = {"name": "ours", "transport_type": "stdio", "endpoint_config": STDIO}
    created = administrator.post("mcp-servers", {**body, "sandbox": "bubblewrap"})
    assert (created.json["sandbox"], created.json["network"]) == ("bubblewrap", "none")
    path = f"mcp-servers/{created.json['id']}"
    changed = administrator.patch(path, {"network": "host"})
    assert (changed.json["sandbox"], changed.json["network"]) == ("bubblewrap", "host")
    assert administrator.patch(path, {"sandbox": "jail"}).status == 400
    response = rest.as_role(acme, Role.OWNER).patch(path, {"sandbox": "none"})
    assert (response.status, response.code) == (403, "platform_admin_only")


def test_the_admin_shows_and_updates_the_sandbox(acme):
    browser = admin_client.sign_in(acme, None)
    fields = {
        **{"name": "ours", "transport_type": "stdio", "command": "npx", "args": "a@1.2.3"},
        **{"auth_type": "none", "approval": "manual", "sandbox": "bubblewrap", "network": ""},
    }
    browser.post("mcp_servers_server_add", **fields)
    server = Server.objects.get()
    assert get_sandbox(server) == ("bubblewrap", "none")
    assert "Bubblewrap" in admin_client.get_text(
        browser.get("mcp_servers_server_change", server.pk)
    )
    changed = {**fields, "sandbox": "namespaces", "network": "none"}
    browser.post("mcp_servers_server_configuration", server.pk, **changed)
    assert get_sandbox(server) == ("namespaces", "none")


def test_the_form_of_an_operator_keeps_the_sandbox(acme, administrator):
    server = create_server(administrator, spec(sandbox="namespaces", network="none"))
    fields = {
        **{"name": "ours", "description": "new", "transport_type": "stdio", "command": "npx"},
        **{"args": "-y\npackage@1.2.3", "auth_type": "none", "approval": "manual"},
        **{"sandbox": "none", "network": "host", "enabled": "on"},
    }
    browser = admin_client.sign_in(acme, Role.OPERATOR)
    browser.post("mcp_servers_server_configuration", server.pk, **fields)
    assert get_sandbox(server) == ("namespaces", "none")
    assert server.description == "new"
