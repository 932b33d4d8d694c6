"""What `mcp apply` does is what the person confirmed, also if others make changes meanwhile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Agent, ModelEndpoint, Skill, Workflow
from agents.policies.services import PolicySpec, load_policy_spec, set_policy
from agents.services import AgentSpec, update_agent
from agents.skills import SkillSpec, save_skill
from agents.workflows.services import WorkflowSpec, save_workflow
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.core.cli.command_group import CommandContext
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server, update_server
from tests import factories
from tests.command_line import Bonobot, acme, bonobot

__all__ = ["acme", "bonobot"]

pytestmark = pytest.mark.django_db(transaction=True)

FILE = """
agents:
  helper:
    name: Helper
    policy: {mode: all, deny: [read_result]}
"""

WORKFLOW = """
agent: helper
steps:
  - {id: ask, agent: helper, message: Hello}
"""


class Terminal:
    """A standard input that is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.fixture
def administrator(acme: Organization) -> Principal:
    factories.create_agent(acme, "helper")
    return factories.build_administrator(acme)


def deny_another_tool(administrator: Principal) -> None:
    agent = Agent.objects.get(slug="helper")
    set_policy(administrator, agent, PolicySpec(mode="all", deny=("read_skill",)))


def add_skill(administrator: Principal) -> None:
    save_skill(administrator, SkillSpec(name="release", text="Hello", agents=["helper"]))


def change_removed_skill(administrator: Principal) -> None:
    skill = Skill.objects.get(name="old")
    save_skill(administrator, SkillSpec(name="old", text="Rewritten", agents=["helper"]), skill)


def change_removed_agent(administrator: Principal) -> None:
    agent = Agent.objects.get(slug="spare")
    update_agent(administrator, agent, AgentSpec(name="Spare", slug="spare", instructions="New"))


def build_unused_endpoint(api_key: str) -> ModelEndpointSpec:
    return ModelEndpointSpec(
        name="Unused", base_url="https://models.example/v1", model="large", api_key=api_key
    )


def change_removed_endpoint(administrator: Principal) -> None:
    row = ModelEndpoint.objects.get(slug="unused")
    save_endpoint(administrator, build_unused_endpoint("new"), row)


def change_removed_workflow(administrator: Principal) -> None:
    row = Workflow.objects.get(name="daily")
    save_workflow(administrator, WorkflowSpec(name="daily", enabled=False), row)


def build_server_spec(url: str) -> ServerSpec:
    return ServerSpec(name="files", transport_type="http", endpoint_config={"url": url})


def change_removed_server(administrator: Principal) -> None:
    server = Server.objects.get(name="files")
    update_server(administrator, server, build_server_spec("https://files.example/new"))


def change_nothing(administrator: Principal) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "arguments", "applied"),
    [
        (deny_another_tool, (), False),
        (add_skill, ("--prune",), False),
        (change_removed_skill, ("--prune",), False),
        (change_removed_agent, ("--prune",), False),
        (change_removed_endpoint, ("--prune",), False),
        (change_removed_workflow, ("--prune",), False),
        (change_removed_server, ("--prune",), False),
        (change_nothing, (), True),
        (change_nothing, ("--prune",), True),
    ],
)
def test_a_plan_that_changed_after_its_confirmation_isnt_applied(
    administrator: Principal,
    bonobot: Bonobot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Principal], None],
    arguments: tuple[str, ...],
    applied: bool,
) -> None:
    organization = Organization.objects.get(pk=administrator.organization_id)
    helper = Agent.objects.get(slug="helper")
    save_skill(administrator, SkillSpec(name="old", text="Old", agents=["helper"]))
    factories.create_agent(organization, "spare")
    save_endpoint(administrator, build_unused_endpoint("old"))
    save_workflow(administrator, WorkflowSpec(name="daily", source=WORKFLOW))
    create_server(administrator, build_server_spec("https://files.example/old"))
    path = tmp_path / "bonobot.yaml"
    endpoints = f"model_endpoints: {{{helper.model_endpoint.slug}: {{}}}}\n"
    empty_sections = "skills: {}\nworkflows: {}\nservers: {}\n"
    path.write_text(FILE + (empty_sections + endpoints if arguments else ""))

    def change_and_confirm(_self: Any, question: str, **_options: Any) -> bool:
        change(administrator)
        return True

    monkeypatch.setattr(CommandContext, "confirm", change_and_confirm)
    monkeypatch.setattr("sys.stdin", Terminal())
    result = bonobot("mcp", "apply", str(path), *arguments, terminal=True)
    denied = load_policy_spec(Agent.objects.get(slug="helper")).deny
    assert ("read_result" in denied) is applied, result.out
    assert result.status == (0 if applied else 1)
    if not applied:
        assert "plan_changed" in result.out + result.err
    if change is add_skill:
        assert Skill.objects.filter(name="release").exists()
