"""Fixtures of the agents' tests: an organization, an agent, and a real server with its effects."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import calls
from agents.models import Agent
from bonobot.ledger.writer import writer
from bonobot.lib.runtime import runtime
from bonobot.tenancy.models import Organization
from mcp_servers.configuration import ServerSpec
from mcp_servers.connections.pool import connections
from mcp_servers.models import Server
from mcp_servers.registration import add
from tests.agents import casting

WORKSHOP = Path(__file__).parents[1] / "servers" / "workshop.py"
LIBRARY = WORKSHOP.with_name("library.py")


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    """An organization whose rows every thread sees."""
    return casting.organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    """An agent with the offline model that may call everything."""
    return casting.agent(acme)


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    """The file into which the workshop writes a line for each counted effect."""
    file = tmp_path / "effects"
    file.touch()
    return file


@pytest.fixture
def workshop(acme: Organization, helper: Agent, effects: Path) -> Iterator[Server]:
    """A real stdio server, discovered, approved and given to the agent."""
    server = add(
        casting.administrator(acme),
        ServerSpec(
            name="workshop",
            transport_type="stdio",
            endpoint_config={
                "command": sys.executable,
                "args": [str(WORKSHOP), "stdio"],
                "env": {"WORKSHOP_FILE": str(effects)},
            },
        ),
    )
    yield casting.ready(acme, server, helper)
    runtime().call(connections().forget, server.pk)


@pytest.fixture
def library(acme: Organization, helper: Agent, effects: Path) -> Iterator[Server]:
    """A real stdio server of resources and prompts, approved and given, nothing of it ticked."""
    server = add(
        casting.administrator(acme),
        ServerSpec(
            name="library",
            transport_type="stdio",
            endpoint_config={
                "command": sys.executable,
                "args": [str(LIBRARY)],
                "env": {"LIBRARY_FILE": str(effects)},
            },
        ),
    )
    yield casting.ready(acme, server, helper)
    runtime().call(connections().forget, server.pk)


@pytest.fixture
def call(acme: Organization, helper: Agent) -> Iterator[Callable[..., calls.Outcome]]:
    """A function that makes one governed call of the agent's tool."""
    boss = casting.administrator(acme)
    holder = "server:tests:caller"

    def make(tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> calls.Outcome:
        asked = {"principal": boss, "agent_id": helper.pk, "via": "rest", "holder": holder} | more
        request = calls.Request(tool=tool, arguments=arguments or {}, **asked)
        return runtime().call(calls.call, request)

    yield make
    runtime().call(calls.release, holder)
    writer().close()
