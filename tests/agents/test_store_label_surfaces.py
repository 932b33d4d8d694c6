"""Viewing and clearing labels of stored data in REST and the admin."""

from collections.abc import Iterator

import pytest

from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from mcp_servers.flow_labels.store_labels import get_store_labels
from tests import admin_client, rest
from tests.agents.labeled_stores import BOTH, World, create_world

pytestmark = pytest.mark.django_db(transaction=True)

LABELS = [str(label) for label in BOTH]


@pytest.fixture
def world(acme: Organization, helper: Agent) -> Iterator[World]:
    with create_world(acme, helper) as new_world:
        writer = new_world.start_session().read_labeled_data()
        assert writer.use("mcp_records_create_record", {"text": "x"}) == ""
        Agent.objects.filter(pk=helper.pk).update(workspace_labels=3)
        yield new_world


def test_rest_shows_and_clears_store_labels(world: World) -> None:
    server = f"mcp-servers/{world.records.pk}/store-labels"
    agent = f"agents/{world.helper.slug}/store-labels"
    reader, reviewer = (rest.as_role(world.acme, role) for role in (Role.AUDITOR, Role.REVIEWER))
    labels = reader.get(server).json
    assert labels["labels"] == LABELS
    assert [entry["tool"] for entry in labels["written"]] == ["create_record"]
    stores = {entry["name"]: entry["labels"] for entry in reader.get(agent).json["stores"]}
    assert stores == {"workspace": LABELS, "notes": [], "instructions": []}
    for path in (server, agent):
        assert rest.as_role(world.acme, Role.OPERATOR).delete(path).status == 403
        assert reviewer.delete(path).status == 204
    assert reader.get(server).json["labels"] == []
    assert reader.get(server).json["written"][0]["cleared_by"]
    assert [entry["labels"] for entry in reader.get(agent).json["stores"]] == [[], [], []]
    assert AuditRow.objects.filter(action="store_labels_cleared").count() == 2


def test_the_admin_shows_and_clears_store_labels(world: World) -> None:
    reader, reviewer = (
        admin_client.sign_in(world.acme, role) for role in (Role.AUDITOR, Role.REVIEWER)
    )
    server, agent = "mcp_servers_server", "agents_agent"
    page = reader.get(f"{server}_data_labels", world.records.pk)
    assert "create_record" in page
    assert "Clear data labels" not in page
    assert "Clear data labels" in reviewer.get(f"{server}_data_labels", world.records.pk)
    assert "Clear data labels" in reviewer.get(f"{agent}_builtin", world.helper.pk)
    reviewer.post(f"{server}_clear_data_labels", world.records.pk)
    reviewer.post(f"{agent}_clear_data_labels", world.helper.pk)
    assert get_store_labels(world.records) == ()
    world.helper.refresh_from_db()
    assert world.helper.workspace_labels == 0
    assert "has no labels" in reviewer.get(f"{server}_data_labels", world.records.pk)
