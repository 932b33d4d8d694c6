"""The demo where its servers aren't installed: it says so, instead of promising them."""

import pytest

from agents.console import demo_organization
from agents.models import Agent
from mcp_servers.models import Server

pytestmark = pytest.mark.django_db(transaction=True)


def test_missing_demo_servers_are_reported_with_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo_organization, "find_spec", lambda name: None)
    monkeypatch.setattr(demo_organization, "_find_repository", lambda: None)
    made = demo_organization.create_demo_organization()
    assert [problem.partition(" ")[0] for problem in made.problems] == ["time", "fetch"]
    assert all(demo_organization.INSTALL_COMMAND in problem for problem in made.problems)
    assert not Server.objects.exists()
    assert Agent.objects.get().slug == made.agent
