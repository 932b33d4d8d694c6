"""`bonobot elicitations`: input that servers request, on the command line."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.models import ElicitationRequest, Session
from agents.sessions.services import start_session
from bonobot.accounts.models import Organization
from bonobot.core.cli.command_group import CommandContext
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import admin_client, factories
from tests.command_line import Bonobot

pytestmark = pytest.mark.django_db(transaction=True)

SERVER = Path(__file__).parents[2] / "servers" / "client_request_server.py"
FORM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Who are you?",
        "requestedSchema": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    },
}


@pytest.fixture
def start_input_server(acme: Organization, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """A function that attaches a stdio server that requests input, in a protocol era."""
    servers = []

    def start_server(era: str) -> None:
        config = {
            "command": sys.executable,
            "args": [str(SERVER), era],
            "env": {"ASKER_FILE": str(tmp_path / "asker")},
        }
        spec = ServerSpec(name="asker", transport_type="stdio", endpoint_config=config)
        servers.append(create_server(factories.build_administrator(acme), spec))
        factories.approve_server(acme, servers[-1], factories.create_agent(acme))

    yield start_server
    for server in servers:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


def test_a_run_ends_as_waiting_when_a_server_requests_input(
    bonobot: Bonobot, start_input_server: Callable[[str], None]
) -> None:
    """The run ends although the server's process could wait longer."""
    start_input_server("modern")
    text = f"/mcp_asker_script {json.dumps({'rounds': [{'inputRequests': {'a': FORM}}]})}"
    result = bonobot("agents", "run", "helper", text, "--timeout", "60", "--json")
    request = ElicitationRequest.objects.pending().get()
    assert (result.status, result.json["status"]) == (1, "waiting")
    assert [row["id"] for row in result.json["questions"]] == [str(request.pk)]
    text_result = bonobot("agents", "run", "helper", text, "--timeout", "60")
    assert text_result.status == 1
    assert "bonobot elicitations answer" in text_result.out
    assert set(Session.objects.values_list("status", flat=True)) == {"waiting"}


def test_a_run_cancels_a_request_that_can_only_be_answered_while_it_runs(
    bonobot: Bonobot, start_input_server: Callable[[str], None]
) -> None:
    """A server of the handshake era waits on a connection of the command's process."""
    start_input_server("handshake")
    text = f"/mcp_asker_ask {json.dumps({'requests': [FORM]})}"
    result = bonobot("agents", "run", "helper", text, "--timeout", "60")
    assert (result.status, ElicitationRequest.objects.get().state) == (0, "withdrawn")
    assert '"action": "cancel"' in result.out
    assert "The request of asker for input was canceled. Use --wait" in result.out + result.err
    assert Session.objects.get().status == "done"


@pytest.mark.parametrize("era", ["modern", "handshake"])
def test_a_terminal_answers_while_the_server_waits(
    bonobot: Bonobot,
    start_input_server: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    era: str,
) -> None:
    start_input_server(era)
    monkeypatch.setattr(CommandContext, "can_ask", True)
    answers = iter(["y", "Ada"])
    monkeypatch.setattr("rich.prompt.PromptBase.get_input", lambda *_, **__: next(answers))
    call = {
        "modern": f"script {json.dumps({'rounds': [{'inputRequests': {'a': FORM}}]})}",
        "handshake": f"ask {json.dumps({'requests': [FORM]})}",
    }[era]
    result = bonobot("agents", "run", "helper", f"/mcp_asker_{call}", "--timeout", "60")
    assert (result.status, ElicitationRequest.objects.get().state) == (0, "accept")
    assert "Ada" in result.out


def test_the_command_line_lists_shows_and_answers(bonobot: Bonobot, acme: Organization) -> None:
    agent, server = factories.create_agent(acme), admin_client.create_web_server(acme)
    session = start_session(factories.build_administrator(acme), agent, "Provision it")
    first, second = (factories.create_elicitation(session, server) for _ in range(2))
    assert len(bonobot("elicitations", "list", "--json").json) == 2
    text = bonobot("elicitations", "show", str(first.pk)).out
    assert ("Which region?" in text, "choice, required: eu, us" in text) == (True, True)
    invalid = bonobot(
        "elicitations", "answer", str(first.pk), "accept", "--set", "count=x", "--json"
    )
    assert invalid.status == 1
    options = ("--set", "region=eu", "--set", "count=2", "--set", "sure=yes")
    assert bonobot("elicitations", "answer", str(first.pk), "accept", *options).status == 0
    first.refresh_from_db()
    assert first.content.open() == {"region": "eu", "count": 2, "sure": True}
    content = json.dumps({"region": "us"})
    bonobot("elicitations", "answer", str(second.pk), "accept", "--content", content)
    second.refresh_from_db()
    assert (second.state, second.content.open()) == ("accept", {"region": "us"})
