"""`bonobot mcp resources|prompts|read|prompt`, with a real server."""

import json
import sys

import pytest

from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from tests import factories
from tests.agents.conftest import LIBRARY

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def library(bonobot):
    result = bonobot(
        "mcp", "add", "library", "--command", f"{sys.executable} {LIBRARY}", "--approve"
    )
    assert result.status == 0, result.err
    yield Server.objects.get()
    get_runtime().call(get_connection_pool().forget_server, Server.objects.get().pk)


def test_resources_and_prompts_are_listed(bonobot):
    resources = {row["name"]: row for row in bonobot("mcp", "resources", "library", "--json").json}
    assert (resources["lib://rules"]["allowed"], resources["lib://rules"]["kind"]) == (
        True,
        "resource",
    )
    assert "template" in bonobot("mcp", "resources", "library").out
    [plain, review] = bonobot("mcp", "prompts", "library", "--json").json
    assert [row["name"] for row in review["arguments"]] == ["book", "tone"]
    assert "book [tone]" in bonobot("mcp", "prompts", "library").out
    assert plain["arguments"] == []


def test_a_resource_is_read_and_a_prompt_rendered(bonobot):
    assert "# Be quiet" in bonobot("mcp", "read", "library", "lib://rules").out
    result = bonobot("mcp", "prompt", "library", "review", "book=Emma", "tone=kindly", "--json")
    assert result.json["result"]["messages"][0]["content"]["text"] == "Review Emma (kindly)"
    invalid = bonobot("mcp", "prompt", "library", "review", "nothing", "--json")
    assert (invalid.status, invalid.error["field"]) == (1, "K=V")


def test_an_agent_reads_its_allowed_resources(bonobot, acme):
    agent = factories.create_agent(acme)
    as_agent = ("--agent", agent.slug, "--json")
    assert (
        bonobot("mcp", "read", "library", "lib://rules", *as_agent).error["code"] == "not_attached"
    )
    selection = ("--resource", "lib://r*", "--prompt", "review")
    assert bonobot("mcp", "connect", "library", *as_agent, *selection).status == 0
    assert bonobot("mcp", "read", "library", "lib://rules", *as_agent).json["outcome"] == "ok"
    denied = bonobot("mcp", "read", "library", "lib://logo", *as_agent)
    assert (denied.status, denied.error["code"]) == (1, "not_selected")
    resources = bonobot("mcp", "resources", "library", *as_agent).json
    assert [row["name"] for row in resources if row["allowed"]] == ["lib://rules"]
    # Selecting tools later keeps the selected resources.
    bonobot("mcp", "connect", "library", *as_agent, "--without", "x*")
    assert agent.agent_servers.get().allowed_resources == ["lib://r*"]


def test_resources_and_prompts_are_selected_for_an_agent(bonobot):
    result = bonobot("mcp", "connect", "library", "--resource", "*", "--json")
    assert (result.status, result.error["field"]) == (1, "--resource")


def test_the_audit_log_has_the_name_of_the_client(bonobot):
    bonobot("mcp", "read", "library", "lib://rules")
    row = AuditRow.objects.get(action="resource_read")
    assert json.loads(row.opened)["details"]["client"].startswith("bonobot-cli/")
