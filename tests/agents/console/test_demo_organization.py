"""The demo organization on a host where its servers aren't installed."""

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
    demo = demo_organization.create_demo_organization()
    assert [problem.partition(" ")[0] for problem in demo.problems] == ["time", "fetch"]
    assert all(demo_organization.INSTALL_COMMAND in problem for problem in demo.problems)
    assert not Server.objects.exists()
    assert Agent.objects.get().slug == demo.agent
