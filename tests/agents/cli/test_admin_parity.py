"""Command line equivalents of admin pages: session approvals, labels, launchers, and more."""

import pytest

from agents.models import Agent, SessionApproval
from bonobot.accounts.models import Organization
from bonobot.ledger.models import AuditRow, FlowCell
from mcp_servers.flow_labels import build_flow_key
from mcp_servers.models import Launcher, Preset
from mcp_servers.presets.sync_catalog import load_presets
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


def list_recorded_actions() -> set[str]:
    return set(AuditRow.objects.values_list("action", flat=True))


def test_a_session_approval_is_listed_and_revoked(bonobot, acme):
    agent = factories.create_agent(acme)
    session = factories.create_answered_session(agent)
    session_approval = session.grants.create(
        organization=acme, agent=agent, own_name="add", label="mcp_web_add", granted_by="anna"
    )
    (row,) = bonobot("agents", "session-approvals", str(session.pk), "--json").json
    assert (row["id"], row["name"]) == (str(session_approval.pk), "mcp_web_add")
    assert bonobot("agents", "revoke-session-approval", str(session_approval.pk)).status == 0
    assert not SessionApproval.objects.exists()
    assert "session_approval_revoked" in list_recorded_actions()


def test_flow_labels_are_shown_and_cleared(bonobot, acme):
    agent = factories.create_agent(acme)
    assert bonobot("agents", "flow-labels", agent.slug, "--json").json == {
        "name": agent.slug,
        "flow_labels": [],
    }
    assert bonobot("agents", "clear-flow-labels", agent.slug, "--json").status == 0
    assert "flow_labels_cleared" in list_recorded_actions()


def test_labels_of_stored_data_are_shown_and_cleared(bonobot, acme):
    agent, server = (
        factories.create_agent(acme),
        factories.create_http_server(acme, "http://127.0.0.1:9/mcp"),
    )
    key = build_flow_key(acme.pk, "server", server.pk)
    FlowCell.objects.create(pk=key, organization_id=acme.pk, labels=3, touched=1_000_000)
    Agent.objects.filter(pk=agent.pk).update(workspace_labels=1)
    labels = ["private_data", "untrusted_content"]
    store = bonobot("mcp", "store-labels", server.slug, "--json").json
    written_at = "1970-01-01T00:00:01+00:00"
    assert store == {
        "server": server.slug,
        "labels": labels,
        "written_at": written_at,
        "written": [],
    }
    assert bonobot("mcp", "clear-store-labels", server.slug).out.endswith("none.\n")
    stores = bonobot("agents", "store-labels", agent.slug, "--json").json["stores"]
    assert stores[0] == {"name": "workspace", "labels": ["private_data"], "written_at": None}
    cleared = bonobot("agents", "clear-store-labels", agent.slug, "--json").json["stores"]
    assert [row["labels"] for row in cleared] == [[], [], []]
    assert "store_labels_cleared" in list_recorded_actions()


def test_a_launcher_is_added_and_removed(bonobot, acme):
    assert bonobot("mcp", "add-launcher", "deno", "--note", "ours").status == 0
    assert {"command": "deno", "note": "ours", "from": "added"} in bonobot(
        "mcp", "launchers", "--json"
    ).json
    assert bonobot("mcp", "add-launcher", "deno").status == 0  # idempotent
    assert bonobot("mcp", "remove-launcher", "deno").status == 0
    assert not Launcher.objects.exists()
    assert bonobot("mcp", "add-launcher", "sh", "--json").error["field"] == "command"
    assert bonobot("mcp", "remove-launcher", "npx", "--json").error["code"] == "not_found"


def test_an_organization_is_created_and_its_audit_log_begins_with_that(bonobot, acme):
    created = bonobot("org", "add", "second", "--name", "Second Ltd", "--json").json
    second = Organization.objects.get(slug="second")
    assert (created["slug"], second.name) == ("second", "Second Ltd")
    assert AuditRow.objects.get(organization_id=second.pk).action == "organization_created"
    denied = bonobot("org", "add", "second", "--json")
    assert (denied.status, denied.error["field"]) == (1, "slug")


def test_a_stdio_preset_is_enabled_and_disabled_for_an_organization(bonobot, acme):
    load_presets()
    factories.create_organization("other")

    def get_state(org: str) -> tuple[bool, str]:
        (row,) = bonobot("mcp", "presets", "time", "--org", org, "--json").json
        line = bonobot("mcp", "presets", "time", "--org", org).out.splitlines()[-1]
        return row["enabled"], " ".join(line.split()[:4])

    assert get_state("acme") == (False, "time reference no Returns")
    enabled = bonobot("mcp", "enable-preset", "time", "--org", "acme")
    assert (enabled.status, enabled.out) == (0, "Time was enabled for the organization.\n")
    assert get_state("acme")[0] is True
    assert "time reference yes" in get_state("acme")[1]
    assert get_state("other")[0] is False
    assert (
        bonobot("mcp", "disable-preset", "time", "--org", "acme", "--json").json["enabled"] is False
    )
    assert get_state("acme")[0] is False
    denied = bonobot("mcp", "enable-preset", "linear", "--org", "acme", "--json")
    assert (denied.status, denied.error["code"]) == (1, "preset_always_enabled")


def test_only_presets_of_the_organization_can_be_deleted(bonobot, acme):
    load_presets()
    denied = bonobot("mcp", "remove-preset", "time", "--json")
    assert (denied.status, denied.error["code"]) == (1, "platform_preset")
    Preset.objects.create(organization=acme, slug="ours", name="Ours", transport_type="http")
    assert bonobot("mcp", "remove-preset", "ours").status == 0
    assert not Preset.objects.filter(slug="ours").exists()
