"""Names of tools are made once, whoever comes first."""

import pytest

from agents.calls import snapshots
from agents.calls.snapshots import create_tool_names
from agents.models import ToolName
from tests import factories
from tests.agents.conftest import acme, effects, helper, workshop

__all__ = ["acme", "effects", "helper", "workshop"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_a_second_process_uses_the_names_of_the_first(acme, helper, workshop, monkeypatch):
    rows = list(workshop.definitions.filter(kind="tool"))
    ToolName.objects.all().delete()
    firsts, stored = [], snapshots._load_tool_names

    def read_just_before(agent):
        found = stored(agent)
        if not firsts:
            firsts.append({})
            firsts[0] = create_tool_names(agent, [workshop], rows)
        return found

    monkeypatch.setattr(snapshots, "_load_tool_names", read_just_before)
    second = create_tool_names(helper, [workshop], rows)
    assert (second, len(second)) == (firsts[0], len(rows))
    assert ToolName.objects.count() == len(rows)


def test_a_stored_name_isnt_given_to_another_tool(acme, helper, workshop):
    other = factories.create_agent(acme, "other")
    rows = list(workshop.definitions.filter(kind="tool"))
    mine, theirs = (create_tool_names(agent, [workshop], rows) for agent in (helper, other))
    assert mine == theirs  # an agent's names are its own
    assert len(set(mine.values())) == len(rows)
