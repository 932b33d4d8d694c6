"""What the tests of built-in tools share."""

from typing import Any

from agents.models import Agent
from agents.services import AgentSpec, update_agent
from tests import factories


def give(helper: Agent, **said: Any) -> None:
    """Change an agent's built-in tools or its workspace."""
    spec = AgentSpec(name=helper.name, **said)
    update_agent(factories.build_administrator(helper.organization), helper, spec)
