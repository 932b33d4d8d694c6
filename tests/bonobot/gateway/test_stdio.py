"""The gateway over standard input and output, used by the SDK's own client."""

import asyncio
import sys

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from agents.models import Agent
from bonobot.tenancy.models import Organization
from mcp_servers.models import Server
from tests.agents import casting
from tests.bonobot.gateway.conftest import token_of
from tests.processes import environment

pytestmark = pytest.mark.django_db(transaction=True)

WORDS = ["-m", "bonobot", "mcp", "serve", "--stdio", "--agent", "helper"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_calls_an_agents_tools(
    acme: Organization, helper: Agent, workshop: Server, mode: str
) -> None:
    token = token_of(casting.administrator(acme))
    program = StdioServerParameters(
        command=sys.executable, args=WORDS, env=environment({"BONOBOT_TOKEN": token})
    )

    async def use() -> tuple[list[str], str]:
        async with Client(stdio_client(program), mode=mode) as client:
            tools = await client.list_tools()
            called = await client.call_tool("mcp_workshop_echo", {"text": "hello"})
            return [tool.name for tool in tools.tools], called.content[0].text  # type: ignore[union-attr]

    names, text = asyncio.run(use())
    assert ("mcp_workshop_echo" in names, text) == (True, "hello")
