"""Names of tools are made once, whoever comes first."""

import pytest

from agents.governance import names
from agents.governance.names import name_tools
from agents.models import ToolName
from tests.agents import casting
from tests.agents.conftest import acme, effects, helper, workshop

__all__ = ["acme", "effects", "helper", "workshop"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_who_comes_second_takes_the_names_of_the_first(acme, helper, workshop, monkeypatch):
    rows = list(workshop.definitions.filter(kind="tool"))
    ToolName.objects.all().delete()
    firsts, stored = [], names._stored

    def read_just_before(agent):
        found = stored(agent)
        if not firsts:
            firsts.append({})
            firsts[0] = name_tools(agent, [workshop], rows)
        return found

    monkeypatch.setattr(names, "_stored", read_just_before)
    second = name_tools(helper, [workshop], rows)
    assert (second, len(second)) == (firsts[0], len(rows))
    assert ToolName.objects.count() == len(rows)


def test_a_name_that_is_taken_is_given_to_nobody_else(acme, helper, workshop):
    other = casting.agent(acme, "other")
    rows = list(workshop.definitions.filter(kind="tool"))
    mine, theirs = (name_tools(agent, [workshop], rows) for agent in (helper, other))
    assert mine == theirs  # an agent's names are its own
    assert len(set(mine.values())) == len(rows)
