"""Server requests of third-party servers: the Python SDK's in both eras, and one from npm."""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from agents.elicitations.services import answer_request
from agents.models import ElicitationRequest, Step
from agents.sessions import services as sessions
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Launcher
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, processes
from tests.agents.conftest import WORKSHOP
from tests.agents.sessions.client_request_sessions import run_until_rest
from tests.wait import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.whole]

SDK = WORKSHOP.with_name("sdk_server.py")
LIVE = "tests.servers.live_requests_server"


@pytest.fixture
def register(acme, helper, administrator):
    """Return a function that registers a program or a URL as a server with all requests."""
    servers = []

    def register_program(command: str, *args: str):
        is_url = command.startswith("http")
        spec = ServerSpec(
            name="other",
            transport_type="http" if is_url else "stdio",
            endpoint_config={"url": command}
            if is_url
            else {"command": command, "args": list(args)},
            allow_private=is_url,
            sampling="allow",
            roots=True,
        )
        server = create_server(administrator, spec)
        servers.append(server)
        return factories.approve_server(acme, server, helper)

    yield register_program
    for server in servers:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def call_tool(administrator, helper, runner):
    """Return a function that calls a tool, answers its elicitation, and returns the result."""

    def call(tool: str, content=None, *, suspends: bool = False, **arguments):
        session = sessions.start_session(
            administrator, helper, f"/mcp_other_{tool} {json.dumps(arguments)}"
        )
        future = get_runtime().spawn(run_until_rest(runner, session.pk), name="run")
        if suspends:  # the session waits for the person without a worker
            future.result(60)
        if content is not None:
            requests = ElicitationRequest.objects.pending().filter(session=session)
            answer_request(administrator, eventually(requests.first), "accept", content)
        future.result(60)
        if suspends:
            get_runtime().call(run_until_rest, runner, session.pk)
        step = Step.objects.get(session=session, kind=Step.Kind.CALL)
        return step.state, step.payload["text"]

    return call


def test_a_server_of_the_sdk_requests_input(register, call_tool):
    server = register(sys.executable, str(SDK), "stdio")
    assert server.era == "modern"
    assert call_tool("introduce", {"name": "Ada", "age": 36}) == ("done", "Hello Ada (36)")
    state, text = call_tool("paint")
    assert (state, text.startswith("painted ")) == ("done", True)


def test_a_server_of_both_eras_requests_input_during_a_call(register, call_tool):
    server = register(sys.executable, "-m", LIVE, "stdio")
    assert server.era == "modern"
    assert call_tool("ask", {"name": "Ada"}) == ("done", "Hello Ada")
    state, text = call_tool("sample")
    assert (state, text.startswith("painted ")) == ("done", True)


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_server_of_both_eras_requests_input_in_the_result_of_a_call(
    register, call_tool, transport: str
):
    with ExitStack() as stack:
        program = (sys.executable, "-m", LIVE, "stdio")
        if transport == "http":
            program = (stack.enter_context(processes.serve("live_requests_server.py", "http")),)
        register(*program)
        state, text = call_tool("greet")
        assert (state, "2026-07-28" in text) == ("failed", True)
        for tool in ("greet", "greet_safely"):
            answer = call_tool(tool, {"name": "Ada"}, suspends=transport == "http")
            assert answer == ("done", "Hello Ada")


@pytest.mark.npm
def test_an_npm_server_requests_input_on_its_connection(
    register, call_tool, node_server: Callable[[str], str]
):
    program = node_server("mcp-server-everything")
    Launcher.objects.create(command=program)
    server = register(program)
    assert server.era == "handshake"
    content = {"name": "Ada", "check": True}
    state, text = call_tool("trigger_elicitation_request", content)
    assert (state, "Ada" in text) == ("done", True)
    state, text = call_tool("trigger_sampling_request", prompt="Name a colour.", maxTokens=40)
    assert (state, "LLM sampling result" in text or "sampling" in text.lower()) == ("done", True)
    state, text = call_tool("get_roots_list")
    assert (state, "/workspaces/" in text) == ("done", True)
    url = "https://example.com/start"
    state, text = call_tool(
        "trigger_url_elicitation", {}, url=url, message="Please", elicitationId="e1"
    )
    assert state == "done"
