"""The gateway over stdio, with the SDK's client and raw messages."""

import asyncio
import itertools
import json
import os
import sys
from functools import partial
from select import select
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.stdio import stdio_server

from agents.gateway import transports
from agents.gateway.routes import GatewayAddress
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token, revoke_token
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.models import Server
from tests import factories
from tests.agents.gateway.conftest import token_of
from tests.processes import build_environment

pytestmark = pytest.mark.django_db(transaction=True)

LONG_S = 20
COMMAND = ["-m", "bonobot", "mcp", "serve", "--stdio", "--agent", "helper"]


def test_a_client_calls_an_agents_tools(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    """Start a process; the next test uses the handshake era in this process."""
    token = token_of(factories.build_administrator(acme))
    program = StdioServerParameters(
        command=sys.executable, args=COMMAND, env=build_environment({"BONOBOT_TOKEN": token})
    )

    async def call_tool() -> tuple[list[str], str]:
        async with Client(stdio_client(program), mode="auto") as client:
            tools = await client.list_tools()
            result = await client.call_tool("mcp_workshop_echo", {"text": "hello"})
            return [tool.name for tool in tools.tools], result.content[0].text  # type: ignore[union-attr]

    names, text = asyncio.run(call_tool())
    assert ("mcp_workshop_echo" in names, text) == (True, "hello")


class Pipes:
    """The standard input and output of a server in this process, as a client sees them."""

    def __init__(self) -> None:
        stdin_fd, self._write = os.pipe()
        self._read, stdout_fd = os.pipe()
        self.stdin = os.fdopen(stdin_fd, "r")
        self.stdout = os.fdopen(stdout_fd, "w")
        self._answers = os.fdopen(self._read, "r")
        self._numbers = itertools.count(1)

    def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return its response."""
        number = self.begin(method, params or {})
        while True:
            message = self.read()
            if message.get("id") == number:
                return message

    def begin(self, method: str, params: dict[str, Any]) -> int:
        """Send a request and return its id."""
        number = next(self._numbers)
        self.tell({"id": number, "method": method, "params": params})
        return number

    def is_silent(self, seconds: float) -> bool:
        """Return whether the server sends nothing for this time."""
        return not select([self._read], [], [], seconds)[0]

    def read(self) -> dict[str, Any]:
        """Return the next message of the server."""
        assert select([self._read], [], [], LONG_S)[0], "nothing was answered"
        message: dict[str, Any] = json.loads(self._answers.readline())
        return message

    def tell(self, message: dict[str, Any]) -> None:
        os.write(self._write, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def hang_up(self) -> None:
        """Close the server's input."""
        os.close(self._write)

    def close(self) -> None:
        """Close the remaining streams after the server has ended."""
        for stream in (self.stdin, self.stdout, self._answers):
            stream.close()


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Pipes:
    new_pipes = Pipes()
    ends = {"stdin": anyio.wrap_file(new_pipes.stdin), "stdout": anyio.wrap_file(new_pipes.stdout)}
    monkeypatch.setattr(transports, "stdio_server", partial(stdio_server, **ends))
    return new_pipes


def test_stdio_serves_until_its_input_ends_or_the_token_is_revoked(
    acme: Organization, helper: Agent, workshop: Server, pipes: Pipes
) -> None:
    administrator = factories.build_administrator(acme)
    token, text = create_token(administrator, name="stdio", role=Role.OWNER)
    server = get_runtime().spawn(
        transports.serve_stdio(text, GatewayAddress("agent", "helper")), name="stdio"
    )
    params = {"protocolVersion": "2025-11-25", "capabilities": {}}
    call = {"name": "mcp_workshop_echo", "arguments": {"text": "hello"}}
    try:
        initialization = pipes.ask(
            "initialize", {**params, "clientInfo": {"name": "tests", "version": "1"}}
        )
        pipes.tell({"method": "notifications/initialized"})
        listed = pipes.ask("tools/list")
        before = pipes.ask("tools/call", call)
        revoke_token(administrator, token)
        after = pipes.ask("tools/call", call)
    finally:
        pipes.hang_up()
        server.result(timeout=LONG_S)
    pipes.close()
    assert initialization["result"]["serverInfo"]["name"] == "bonobot"
    assert "mcp_workshop_echo" in [tool["name"] for tool in listed["result"]["tools"]]
    assert before["result"]["content"][0]["text"] == "hello"
    assert "bad_token" in str(after)
    assert "hello" not in str(after)


def test_the_visible_definitions_are_counted(
    acme: Organization, helper: Agent, workshop: Server
) -> None:
    token = token_of(factories.build_administrator(acme))
    counts = get_runtime().call(
        transports.count_declarations, token, GatewayAddress("server", "workshop")
    )
    assert counts == {
        "tools": workshop.definitions.filter(kind="tool").count(),
        "resources": workshop.definitions.filter(kind="resource").count(),
        "templates": workshop.definitions.filter(kind="resource_template").count(),
        "skills": 0,
        "prompts": workshop.definitions.filter(kind="prompt").count(),
    }
    with pytest.raises(Problem) as caught:
        get_runtime().call(
            transports.count_declarations, token, GatewayAddress("server", "nowhere")
        )
    assert caught.value.code == "unknown_endpoint"
