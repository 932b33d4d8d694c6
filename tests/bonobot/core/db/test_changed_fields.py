"""Saving an outdated row doesn't revert the changes of others."""

import pytest

from agents.models import Agent, ModelEndpoint
from bonobot.core.problems import NotFound
from mcp_servers.models import Definition, Server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def agent() -> Agent:
    return factories.create_agent(factories.create_organization())


def test_a_save_keeps_fields_that_others_changed(agent: Agent) -> None:
    first, second = Agent.objects.get(pk=agent.pk), Agent.objects.get(pk=agent.pk)
    first.enabled = False
    first.save()
    second.description = "Ours"
    second.save()
    agent.refresh_from_db()
    assert (agent.enabled, agent.description) == (False, "Ours")


def test_a_second_save_writes_only_later_changes(agent: Agent) -> None:
    row = Agent.objects.get(pk=agent.pk)
    row.description, row.name = "One", "Other"
    row.save(update_fields=["description"])
    Agent.objects.filter(pk=agent.pk).update(description="Theirs")
    row.save()
    agent.refresh_from_db()
    assert (agent.description, agent.name) == ("Theirs", "Other")


def test_a_new_row_is_tracked_after_its_first_save(agent: Agent) -> None:
    row = factories.create_agent(agent.organization, "made")
    Agent.objects.filter(pk=row.pk).update(description="Theirs")
    row.enabled = False
    row.save()
    row.refresh_from_db()
    assert (row.description, row.enabled) == ("Theirs", False)


def test_a_json_value_that_is_changed_in_place_is_saved(agent: Agent) -> None:
    row = Agent.objects.get(pk=agent.pk)
    row.builtin_tools["search"] = {}
    row.save()
    assert "search" in Agent.objects.get(pk=agent.pk).builtin_tools


def test_a_secret_that_others_set_is_kept(agent: Agent) -> None:
    endpoint = agent.model_endpoint
    row = ModelEndpoint.objects.get(pk=endpoint.pk)
    assert not row.api_key  # reading isn't a change
    other_copy = ModelEndpoint.objects.get(pk=endpoint.pk)
    other_copy.api_key = "theirs"  # type: ignore[assignment]  # the field encrypts it
    other_copy.save()
    row.name = "Ours"
    row.save()
    stored = ModelEndpoint.objects.get(pk=endpoint.pk)
    assert (stored.name, stored.api_key.open()) == ("Ours", "theirs")


def test_saving_a_deleted_row_doesnt_recreate_it(agent: Agent) -> None:
    row = Agent.objects.get(pk=agent.pk)
    Agent.objects.filter(pk=agent.pk).delete()
    row.name = "Back"
    with pytest.raises(NotFound):
        row.save()
    assert not Agent.objects.filter(pk=row.pk).exists()


def test_discovery_keeps_states_and_labels_that_were_set_meanwhile(agent: Agent) -> None:
    server: Server = admin_client.create_web_server(agent.organization, "web")
    definition = admin_client.declare_tool(server, "read")
    row = Definition.objects.get(pk=definition.pk)  # as discovery loaded it
    Definition.objects.filter(pk=definition.pk).update(enabled=False)
    row.payload, row.digest = {"name": "read", "description": "New"}, "d" * 64
    row.save()
    row.refresh_from_db()
    assert (row.enabled, row.digest) == (False, "d" * 64)
