"""Helpers for the tests of built-in tools."""

from typing import Any

from agents.models import Agent
from agents.services import AgentSpec, update_agent
from tests import factories


def configure_agent(agent: Agent, **fields: Any) -> None:
    """Update an agent's built-in tools or its workspace."""
    spec = AgentSpec(name=agent.name, **fields)
    update_agent(factories.build_administrator(agent.organization), agent, spec)
