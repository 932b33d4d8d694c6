"""Fixtures of sessions: the client request server, and sessions that call it."""

import json
import sys

import pytest

from agents.sessions import services as sessions
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.agents.conftest import WORKSHOP
from tests.agents.sessions.client_request_sessions import run_session

ASKER = WORKSHOP.with_name("client_request_server.py")


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def register_asker(acme, helper, administrator, tmp_path, settings):
    """Return a function that registers the client request server in an era for the agent."""
    servers = []

    def register(era):
        if era == "modern":
            settings.BONOBOT_ANSWER_S = (
                0  # its state needs no process, so the session rests immediately
            )
        server = create_server(
            administrator,
            ServerSpec(
                name="asker",
                transport_type="stdio",
                endpoint_config={
                    "command": sys.executable,
                    "args": [str(ASKER), era],
                    "env": {"ASKER_FILE": str(tmp_path / "asker")},
                },
            ),
        )
        servers.append(server)
        return factories.approve_server(acme, server, helper)

    yield register
    for server in servers:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def get_received(tmp_path):
    """Return a function that lists the messages the server received, by method."""

    def read_requests(method):
        lines = [json.loads(line) for line in (tmp_path / "asker").read_text().splitlines()]
        return [line for line in lines if line.get("method") == method]

    return read_requests


@pytest.fixture
def run_tool(administrator, helper, runner):
    """Return a function that starts a session with a tool call and runs it until it rests."""

    def run(tool, **arguments):
        session = sessions.start_session(
            administrator, helper, f"/mcp_asker_{tool} {json.dumps(arguments)}"
        )
        return run_session(session, runner)

    return run
