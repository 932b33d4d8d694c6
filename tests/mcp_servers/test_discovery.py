"""Discovery: what a server declares is kept whole, and nothing new may be called by itself."""

import sys
from dataclasses import replace

import pytest

from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.discovery import run_discovery
from mcp_servers.models import Definition, HealthCheck, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server, update_server
from tests import factories
from tests.agents.conftest import WORKSHOP

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def boss(transactional_db):
    return factories.build_administrator(factories.create_organization())


def workshop(tools="", **more):
    config = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}
    return ServerSpec(
        name="workshop",
        transport_type="stdio",
        endpoint_config=config | {"env": {"WORKSHOP_TOOLS": tools}},
        **more,
    )


@pytest.fixture
def server(boss):
    made = create_server(boss, workshop("one two"))
    yield made
    get_runtime().call(get_connection_pool().forget_server, made.pk)


def look(boss, server):
    found = get_runtime().call(run_discovery, server.pk, actor=boss.actor)
    server.refresh_from_db()
    return found


def states(server):
    return {row.name: row.state.value for row in server.definitions.tools()}


def test_a_first_discovery_stores_everything_and_allows_no_call(boss, server):
    found = look(boss, server)
    assert found.new == len(found.tools) + 1  # and the instructions
    assert set(states(server).values()) == {"pending"}
    assert not server.definitions.callable().exists()
    assert server.status == Server.Status.CONNECTED
    assert server.era == "modern"
    assert server.latency_ms is not None
    assert server.last_connected_at is not None


def test_the_complete_declaration_is_stored(boss, server):
    look(boss, server)
    row = server.definitions.get(name="echo")
    assert row.payload["inputSchema"]["required"] == ["text"]
    assert (row.description, row.schema_verdict) == ("Return the text.", "inline")


def test_instructions_are_a_separate_definition(boss, server):
    look(boss, server)
    (row,) = server.definitions.filter(kind=Definition.Kind.INSTRUCTIONS)
    assert "Tools to test with." in str(row.payload)


def test_a_second_identical_discovery_changes_nothing(boss, server):
    look(boss, server)
    before = AuditRow.objects.filter(action="definitions_discovered").count()
    found = look(boss, server)
    assert (found.new, found.changed, found.gone) == (0, 0, 0)
    assert AuditRow.objects.filter(action="definitions_discovered").count() == before


def test_a_missing_definition_keeps_its_approved_digest(boss, server):
    look(boss, server)
    approve_definitions(boss, server)
    update_server(boss, server, workshop("one"))
    assert look(boss, server).gone == 1
    assert states(server)["two"] == "gone"
    update_server(boss, server, workshop("one two"))
    look(boss, server)
    assert states(server)["two"] == "approved"


def test_a_server_limited_to_some_tools_has_the_others_disabled(boss):
    server = create_server(boss, replace(workshop("one two"), only_tools=["o*"]))
    look(boss, server)
    on = dict(server.definitions.tools().values_list("name", "enabled"))
    assert {name for name, enabled in on.items() if enabled} == {"one"}
    assert on["two"] is False


def test_new_definitions_after_an_approval_are_pending_review(boss, server):
    look(boss, server)
    approve_definitions(boss, server)
    update_server(boss, server, workshop("one two three"))
    assert look(boss, server).new == 1
    assert states(server)["three"] == "pending"
    assert states(server)["one"] == "approved"


def test_approval_mode_first_approves_only_the_first_discovery(boss):
    server = create_server(boss, workshop("one", approval="first"))
    look(boss, server)
    assert set(states(server).values()) == {"approved"}
    update_server(boss, server, workshop("one two", approval="first"))
    look(boss, server)
    assert states(server)["two"] == "pending"
    get_runtime().call(get_connection_pool().forget_server, server.pk)


def test_approval_mode_always_approves_changes_too(boss):
    server = create_server(boss, workshop("one", approval="always"))
    look(boss, server)
    update_server(boss, server, workshop("one two", approval="always"))
    look(boss, server)
    assert set(states(server).values()) == {"approved"}
    get_runtime().call(get_connection_pool().forget_server, server.pk)


def test_a_tool_with_hidden_text_is_refused_and_doesnt_hide_others(boss, server):
    update_server(boss, server, workshop("one ev\u200bil"))
    look(boss, server)
    found = states(server)
    assert found["ev\u200bil"] == "refused"
    assert found["one"] == "pending"
    approve_definitions(boss, server)
    assert states(server)["ev\u200bil"] == "refused"


def test_a_server_that_doesnt_start_is_an_error_with_its_reason(boss, server):
    Server.objects.filter(pk=server.pk).update(
        endpoint_config={
            "command": sys.executable,
            "args": ["-c", "import sys; sys.exit('no luck')"],
        }
    )
    with pytest.raises(Problem) as caught:
        look(boss, server)
    server.refresh_from_db()
    assert server.status == Server.Status.ERROR
    assert server.status_code == caught.value.code
    assert server.failures == 1
    check = HealthCheck.objects.get()
    assert (check.ok, check.code) == (False, caught.value.code)
    assert server.next_check_at > server.checked_at


def test_a_failed_discovery_keeps_the_known_definitions(boss, server):
    look(boss, server)
    approve_definitions(boss, server)
    Server.objects.filter(pk=server.pk).update(
        endpoint_config={"command": "/nowhere/at-all", "args": []}
    )
    with pytest.raises(Problem):
        look(boss, server)
    assert server.definitions.callable().exists()
