"""Discovery stores complete declarations, and new tools can't be called without review."""

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
def administrator(transactional_db):
    return factories.build_administrator(factories.create_organization())


def build_spec(tools="", **more):
    config = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}
    return ServerSpec(
        name="workshop",
        transport_type="stdio",
        endpoint_config=config | {"env": {"WORKSHOP_TOOLS": tools}},
        **more,
    )


@pytest.fixture
def server(administrator):
    workshop_server = create_server(administrator, build_spec("one two"))
    yield workshop_server
    get_runtime().call(get_connection_pool().forget_server, workshop_server.pk)


def discover(administrator, server):
    result = get_runtime().call(run_discovery, server.pk, actor=administrator.actor)
    server.refresh_from_db()
    return result


def states(server):
    return {row.name: row.state.value for row in server.definitions.tools()}


def test_a_first_discovery_stores_everything_and_allows_no_call(administrator, server):
    result = discover(administrator, server)
    assert result.new == len(result.tools) + 1  # plus the instructions
    assert set(states(server).values()) == {"pending"}
    assert not server.definitions.callable().exists()
    assert server.status == Server.Status.CONNECTED
    assert server.era == "modern"
    assert server.latency_ms is not None
    assert server.last_connected_at is not None


def test_the_complete_declaration_is_stored(administrator, server):
    discover(administrator, server)
    row = server.definitions.get(name="echo")
    assert row.payload["inputSchema"]["required"] == ["text"]
    assert (row.description, row.schema_verdict) == ("Return the text.", "inline")


def test_instructions_are_a_separate_definition(administrator, server):
    discover(administrator, server)
    (row,) = server.definitions.filter(kind=Definition.Kind.INSTRUCTIONS)
    assert "Tools to test with." in str(row.payload)


def test_a_second_identical_discovery_changes_nothing(administrator, server):
    discover(administrator, server)
    before = AuditRow.objects.filter(action="definitions_discovered").count()
    result = discover(administrator, server)
    assert (result.new, result.changed, result.removed) == (0, 0, 0)
    assert AuditRow.objects.filter(action="definitions_discovered").count() == before


def test_a_missing_definition_keeps_its_approved_digest(administrator, server):
    discover(administrator, server)
    approve_definitions(administrator, server)
    update_server(administrator, server, build_spec("one"))
    assert discover(administrator, server).removed == 1
    assert states(server)["two"] == "gone"
    update_server(administrator, server, build_spec("one two"))
    discover(administrator, server)
    assert states(server)["two"] == "approved"


def test_a_server_limited_to_some_tools_has_the_others_disabled(administrator):
    server = create_server(administrator, replace(build_spec("one two"), only_tools=["o*"]))
    discover(administrator, server)
    enabled_by_name = dict(server.definitions.tools().values_list("name", "enabled"))
    assert {name for name, enabled in enabled_by_name.items() if enabled} == {"one"}
    assert enabled_by_name["two"] is False


def test_new_definitions_after_an_approval_are_pending_review(administrator, server):
    discover(administrator, server)
    approve_definitions(administrator, server)
    update_server(administrator, server, build_spec("one two three"))
    assert discover(administrator, server).new == 1
    assert states(server)["three"] == "pending"
    assert states(server)["one"] == "approved"


def test_approval_mode_first_approves_only_the_first_discovery(administrator):
    server = create_server(administrator, build_spec("one", approval="first"))
    discover(administrator, server)
    assert set(states(server).values()) == {"approved"}
    update_server(administrator, server, build_spec("one two", approval="first"))
    discover(administrator, server)
    assert states(server)["two"] == "pending"
    get_runtime().call(get_connection_pool().forget_server, server.pk)


def test_approval_mode_always_approves_changes_too(administrator):
    server = create_server(administrator, build_spec("one", approval="always"))
    discover(administrator, server)
    update_server(administrator, server, build_spec("one two", approval="always"))
    discover(administrator, server)
    assert set(states(server).values()) == {"approved"}
    get_runtime().call(get_connection_pool().forget_server, server.pk)


def test_a_tool_with_hidden_text_is_refused_and_doesnt_hide_others(administrator, server):
    update_server(administrator, server, build_spec("one ev\u200bil"))
    discover(administrator, server)
    tool_states = states(server)
    assert tool_states["ev\u200bil"] == "refused"
    assert tool_states["one"] == "pending"
    approve_definitions(administrator, server)
    assert states(server)["ev\u200bil"] == "refused"


def test_a_server_that_doesnt_start_is_an_error_with_its_reason(administrator, server):
    Server.objects.filter(pk=server.pk).update(
        endpoint_config={
            "command": sys.executable,
            "args": ["-c", "import sys; sys.exit('no luck')"],
        }
    )
    with pytest.raises(Problem) as caught:
        discover(administrator, server)
    server.refresh_from_db()
    assert server.status == Server.Status.ERROR
    assert server.status_code == caught.value.code
    assert server.failures == 1
    check = HealthCheck.objects.get()
    assert (check.ok, check.code) == (False, caught.value.code)
    assert server.next_check_at > server.checked_at


def test_a_failed_discovery_keeps_the_known_definitions(administrator, server):
    discover(administrator, server)
    approve_definitions(administrator, server)
    Server.objects.filter(pk=server.pk).update(
        endpoint_config={"command": "/nowhere/at-all", "args": []}
    )
    with pytest.raises(Problem):
        discover(administrator, server)
    assert server.definitions.callable().exists()
