"""What the servers of others ask back: the Python SDK's in both eras, and one of npm."""

import json
import sys
from collections.abc import Callable

import pytest

from agents.elicitations.services import answer_request
from agents.models import ElicitationRequest, Step
from agents.sessions import services as sessions
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Launcher
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.agents.conftest import WORKSHOP
from tests.agents.sessions.client_request_sessions import run_until_rest
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

SDK = WORKSHOP.with_name("sdk_server.py")
LIVE = "tests.servers.live_requests_server"


@pytest.fixture
def given(acme, helper, boss):
    """A function that gives the agent a program that may ask for everything."""
    made = []

    def give(command: str, *args: str):
        server = create_server(
            boss,
            ServerSpec(
                name="other",
                transport_type="stdio",
                endpoint_config={"command": command, "args": list(args)},
                sampling="allow",
                roots=True,
            ),
        )
        made.append(server)
        return factories.approve_server(acme, server, helper)

    yield give
    for server in made:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def asks(boss, helper, runner):
    """A function that has a tool called, answers what its server asks, and returns the result."""

    def ask(tool: str, content=None, **arguments):
        session = sessions.start_session(boss, helper, f"/mcp_other_{tool} {json.dumps(arguments)}")
        running = get_runtime().spawn(run_until_rest(runner, session.pk), name="run")
        if content is not None:
            mine = ElicitationRequest.objects.waiting().filter(session=session)
            answer_request(boss, eventually(mine.first), "accept", content)
        running.result(60)
        step = Step.objects.get(session=session, kind=Step.Kind.CALL)
        return step.state, step.payload["text"]

    return ask


def test_the_sdks_server_asks_in_either_era(given, asks):
    server = given(sys.executable, str(SDK), "stdio")
    assert server.era == "modern"
    assert asks("introduce", {"name": "Ada", "age": 36}) == ("done", "Hello Ada (36)")
    state, text = asks("paint")
    assert (state, text.startswith("painted ")) == ("done", True)


def test_a_server_of_both_eras_asks_in_the_middle_of_a_call(given, asks):
    server = given(sys.executable, "-m", LIVE, "stdio")
    assert server.era == "modern"
    assert asks("ask", {"name": "Ada"}) == ("done", "Hello Ada")
    state, text = asks("sample")
    assert (state, text.startswith("painted ")) == ("done", True)


@pytest.mark.npm
def test_an_npm_server_requests_input_on_its_connection(
    given, asks, node_server: Callable[[str], str]
):
    program = node_server("mcp-server-everything")
    Launcher.objects.create(command=program)
    server = given(program)
    assert server.era == "handshake"
    entered = {"name": "Ada", "check": True}
    state, text = asks("trigger_elicitation_request", entered)
    assert (state, "Ada" in text) == ("done", True)
    state, text = asks("trigger_sampling_request", prompt="Name a colour.", maxTokens=40)
    assert (state, "LLM sampling result" in text or "sampling" in text.lower()) == ("done", True)
    state, text = asks("get_roots_list")
    assert (state, "/workspaces/" in text) == ("done", True)
    url = "https://example.com/start"
    state, text = asks("trigger_url_elicitation", {}, url=url, message="Please", elicitationId="e1")
    assert state == "done"
