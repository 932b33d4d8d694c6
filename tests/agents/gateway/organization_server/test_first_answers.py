"""The first requests to a process, which arrive while its shared values are still computed."""

import json
import subprocess
import sys

import pytest

from agents.models import Agent
from bonobot.accounts.models import Organization
from tests import factories
from tests.agents.gateway.conftest import token_of
from tests.processes import build_environment

pytestmark = pytest.mark.django_db(transaction=True)

COMMAND = (sys.executable, "-m", "bonobot", "mcp", "serve", "--stdio")
CLIENT = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "tests", "version": "1"},
}
FIRST_METHODS = ("tools/list", "resources/templates/list", "prompts/list", "resources/list") * 3


@pytest.mark.whole("postgres")
def test_all_requests_that_a_client_sends_at_once_are_answered(
    acme: Organization, helper: Agent
) -> None:
    token = token_of(factories.build_administrator(acme))
    messages = [
        {"id": 0, "method": "initialize", "params": CLIENT},
        {"method": "notifications/initialized"},
        *({"id": number, "method": name} for number, name in enumerate(FIRST_METHODS, 1)),
    ]
    with subprocess.Popen(
        COMMAND,
        env=build_environment({"BONOBOT_TOKEN": token}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for message in messages:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(len(FIRST_METHODS) + 1)]
        _, errors = server.communicate(timeout=60)
    assert not [answer["error"] for answer in answers if "error" in answer]
    names = [
        {tool["name"] for tool in answer["result"]["tools"]}
        for answer in answers
        if "tools" in answer.get("result", {})
    ]
    assert len(names) == FIRST_METHODS.count("tools/list")
    assert all(listed == names[0] for listed in names)
    assert {"helper_chat", "create_agent", "list_sessions"} <= names[0]
    assert "Traceback" not in errors
