"""Requests that a server may send: permissions, storage, and declared capabilities."""

import json

import pytest

from agents.config_file.apply_config import apply_config
from agents.config_file.export_config import export_config, to_yaml
from agents.config_file.read_config import read_config_file
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.ledger.models import AuditRow
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client_capabilities import (
    get_allowed_requests,
    get_sampling_tokens,
)
from mcp_servers.import_export.export_servers import SecretPlaceholders, export_server
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec, build_changed_spec
from mcp_servers.services import create_server, update_server
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


def spec(**more):
    config = {"url": "https://mcp.example.com/mcp"}
    return ServerSpec(name="ours", transport_type="http", endpoint_config=config, **more)


def test_sampling_and_roots_are_disabled_by_default(administrator, settings):
    server = create_server(administrator, spec())
    assert (
        get_allowed_requests(server) == build_endpoint(server).allowed_requests == {"elicitation"}
    )
    assert get_sampling_tokens(server) == settings.BONOBOT_SAMPLING_TOKENS == 10_000
    before = build_endpoint(server).fingerprint
    server = update_server(
        administrator, server, spec(sampling="ask", sampling_tokens=7, roots=True)
    )
    assert get_allowed_requests(server) == {"elicitation", "sampling", "roots"}
    assert get_sampling_tokens(server) == 7
    # Capabilities declared at a handshake apply to its session, so another one is opened.
    assert build_endpoint(server).fingerprint != before
    update_server(administrator, server, spec())
    server.refresh_from_db()
    assert (server.sampling, server.sampling_tokens) == ("ask", 7)
    assert update_server(administrator, server, spec(sampling_tokens=0)).sampling_tokens is None


@pytest.mark.parametrize(
    "capabilities",
    [{"sampling": "always"}, {"sampling_tokens": -1}, {"sampling_tokens": True}, {"roots": "yes"}],
)
def test_invalid_combinations_are_refused(administrator, capabilities):
    with pytest.raises(Problem) as caught:
        create_server(administrator, spec(**capabilities))
    assert (caught.value.code, caught.value.field) == ("invalid", next(iter(capabilities)))
    assert caught.value.remedy


def test_a_change_is_recorded_and_needs_permission(acme, administrator):
    server = create_server(administrator, spec())
    changed = build_changed_spec(server, sampling="allow")
    with pytest.raises(Problem):
        update_server(factories.create_member(acme, Role.MEMBER), server, changed)
    update_server(administrator, server, changed)
    assert Server.objects.get().sampling == "allow"
    (row,) = AuditRow.objects.filter(action="server_updated")
    assert json.loads(row.opened)["details"]["changed"] == ["sampling"]


def test_capabilities_are_exported_and_applied(administrator):
    server = create_server(
        administrator, spec(sampling="ask", sampling_tokens=500, elicitation=False)
    )
    exported = export_server(server, SecretPlaceholders())
    assert (exported["sampling"], exported["sampling_tokens"], exported["elicitation"]) == (
        "ask",
        500,
        False,
    )
    assert "roots" not in exported
    text = to_yaml(export_config(administrator, None))
    assert not apply_config(administrator, read_config_file(text, {}), dry_run=True).changes
    plan = apply_config(
        administrator, read_config_file(text.replace("sampling: ask", "sampling: allow"), {})
    )
    assert not plan.problems
    server.refresh_from_db()
    assert (server.sampling, server.elicitation) == ("allow", False)


def test_rest_and_the_form_read_and_write_capabilities(acme, administrator):
    server = create_server(administrator, spec())
    operator = rest.as_role(acme, Role.OPERATOR)
    data = operator.get(f"mcp-servers/{server.pk}").json
    assert (data["sampling"], data["elicitation"], data["roots"]) == ("off", True, False)
    changed = operator.patch(f"mcp-servers/{server.pk}", {"sampling": "ask", "roots": True}).json
    assert (changed["sampling"], changed["roots"], changed["elicitation"]) == ("ask", True, True)
    assert operator.patch(f"mcp-servers/{server.pk}", {"sampling": "x"}).status == 400

    fields = {
        **{"name": "ours", "transport_type": "http", "url": "https://mcp.example.com/mcp"},
        **{"auth_type": "none", "approval": "manual", "sampling": "allow", "sampling_tokens": "9"},
    }
    browser = admin_client.sign_in(acme, Role.OPERATOR)
    assert admin_client.get_text(browser.get("mcp_servers_server_configuration", server.pk)).count(
        "agent's model"
    )
    browser.post("mcp_servers_server_configuration", server.pk, **fields)
    server.refresh_from_db()
    assert (server.sampling, server.sampling_tokens, server.elicitation) == ("allow", 9, False)
