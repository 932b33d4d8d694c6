"""The demo organization, also on a host where its servers aren't installed."""

import pytest

from agents import demo_organization
from agents.agent_tools.services import save_settings
from agents.agent_tools.settings import Setting
from agents.calls.snapshots import get_snapshot_cache
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import build_cli_principal
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


def test_the_switch_of_a_demo_server_turns_off_its_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_organization, "_find_repository", lambda: None)
    demo_organization.create_demo_organization()
    agent, administrator = Agent.objects.get(), build_cli_principal(Organization.objects.get())
    time = Server.objects.get(slug="time")
    assert get_verdict(agent, "mcp_time_get_current_time") == "allow"
    save_settings(administrator, agent, {}, {time.pk: Setting.DENY})
    assert get_verdict(agent, "mcp_time_get_current_time") == "deny"


def get_verdict(agent: Agent, name: str) -> str:
    """Return the decision about a tool of an agent."""
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    return str(snapshot.tools[name].decision.verdict)
