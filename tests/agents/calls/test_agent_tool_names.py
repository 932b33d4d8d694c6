"""Tool names are created once, by the first of several processes."""

import pytest

from agents.calls import agent_tool_names
from agents.calls.agent_tool_names import create_tool_names
from agents.models import ToolName
from tests import factories
from tests.agents.conftest import acme, effects, helper, workshop

__all__ = ["acme", "effects", "helper", "workshop"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_a_second_process_uses_the_names_of_the_first(acme, helper, workshop, monkeypatch):
    rows = list(workshop.definitions.filter(kind="tool"))
    ToolName.objects.all().delete()
    first_names, load_tool_names = [], agent_tool_names._load_tool_names

    def load_before_first_process(agent):
        names = load_tool_names(agent)
        if not first_names:
            first_names.append({})
            first_names[0] = create_tool_names(agent, [workshop], rows)
        return names

    monkeypatch.setattr(agent_tool_names, "_load_tool_names", load_before_first_process)
    second_names = create_tool_names(helper, [workshop], rows)
    assert (second_names, len(second_names)) == (first_names[0], len(rows))
    assert ToolName.objects.count() == len(rows)


def test_stored_names_are_unique_within_an_agent(acme, helper, workshop):
    other_agent = factories.create_agent(acme, "other")
    rows = list(workshop.definitions.filter(kind="tool"))
    names, other_names = (
        create_tool_names(agent, [workshop], rows) for agent in (helper, other_agent)
    )
    assert names == other_names  # names are unique per agent only
    assert len(set(names.values())) == len(rows)
