"""What `mcp apply` does is what the person confirmed, also if others make changes meanwhile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.models import Agent, Skill
from agents.policies.services import PolicySpec, load_policy_spec, set_policy
from agents.skills import SkillSpec, save_skill
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.core.cli.command_group import CommandContext
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


def change_nothing(administrator: Principal) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "arguments", "applied"),
    [
        (deny_another_tool, (), False),
        (add_skill, ("--prune",), False),
        (change_nothing, (), True),
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
    path = tmp_path / "bonobot.yaml"
    path.write_text(FILE + ("skills: {}\n" if arguments else ""))

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
