"""Fixtures of sessions: the server that asks back, and sessions that call it."""

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
from tests.agents.sessions.client_request_sessions import goes

ASKER = WORKSHOP.with_name("client_request_server.py")


@pytest.fixture
def boss(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def asker(acme, helper, boss, tmp_path, settings):
    """A function that registers the server that asks, in an era, for the agent."""
    made = []

    def make(era):
        if era == "modern":
            settings.BONOBOT_ANSWER_S = 0  # its state needs no process: the session rests at once
        server = create_server(
            boss,
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
        made.append(server)
        return factories.approve_server(acme, server, helper)

    yield make
    for server in made:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def came(tmp_path):
    """A function that returns what the server was sent, by method."""

    def read(method):
        lines = [json.loads(line) for line in (tmp_path / "asker").read_text().splitlines()]
        return [line for line in lines if line.get("method") == method]

    return read


@pytest.fixture
def says(boss, helper, runner):
    """A function that gives the agent typed lines, and runs the session until it rests."""

    def go(tool, **arguments):
        session = sessions.start_session(boss, helper, f"/mcp_asker_{tool} {json.dumps(arguments)}")
        return goes(session, runner)

    return go
