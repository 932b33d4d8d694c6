"""Fixtures for the tests of the command line."""

import pytest

from tests import factories
from tests.command_line import acme, bonobot

__all__ = ["acme", "bonobot"]


@pytest.fixture
def agent(acme):
    """An agent without servers."""
    return factories.create_agent(acme, "helper", mode="none")


@pytest.fixture
def time_server(acme, agent):
    """A real server, discovered, approved, and attached to the agent."""
    return factories.approve_server(acme, factories.create_stdio_server(acme), agent)
