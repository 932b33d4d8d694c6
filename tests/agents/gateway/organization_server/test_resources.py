"""Resources at `/mcp`: agents, sessions and workflows as REST shows them, and their states."""

import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.gateway.organization_server.resources import (
    build_uri,
    list_resources,
    load_resource_states,
)
from agents.models import Agent, Session, Workflow
from agents.services import AgentSpec, update_agent
from agents.sessions.services import cancel_session, start_session
from agents.workflows.services import run_workflow
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal, build_token_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from tests import factories, rest
from tests.agents.gateway.conftest import Wire, token_of
from tests.agents.gateway.organization_server.conftest import PATH, Client

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def boss(acme: Organization) -> Principal:
    return factories.build_administrator(acme)


@pytest.fixture
def session(boss: Principal, helper: Agent) -> Session:
    return start_session(boss, helper, "hello")


@pytest.fixture
def workflow(acme: Organization, helper: Agent) -> Workflow:
    return factories.create_workflow(helper)


def read(wire: Wire, address: str, **more: Any) -> dict[str, Any]:
    result = wire.modern(PATH, "resources/read", {"uri": address}, **more).result
    [content] = result["contents"]
    assert (content["uri"], content["mimeType"]) == (address, "application/json")
    found: dict[str, Any] = json.loads(content["text"])
    return found


def test_agents_and_workflows_are_listed_and_read_as_in_rest(
    acme: Organization, helper: Agent, workflow: Workflow, session: Session, wire: Wire
) -> None:
    listed = wire.modern(PATH, "resources/list").result["resources"]
    names = {one["name"]: one["uri"] for one in listed}
    assert names == {
        "helper": build_uri("agents", helper.pk),
        workflow.name: build_uri("workflows", workflow.pk),
    }
    owner = rest.as_role(acme, Role.OWNER)
    agent = read(wire, names["helper"])
    assert agent.pop("sessions") == {"queued": 1}
    assert agent == owner.get("agents/helper").json
    assert read(wire, build_uri("agents", "helper"))["id"] == str(helper.pk)
    told = read(wire, names[workflow.name])
    assert told.pop("runs") == {}
    assert told == owner.get(f"workflows/{workflow.pk}").json
    assert read(wire, build_uri("sessions", session.pk)) == owner.get(f"sessions/{session.pk}").json
    templates = wire.modern(PATH, "resources/templates/list").result["resourceTemplates"]
    assert [one["uriTemplate"] for one in templates] == [
        "bonobot://agents/{id}",
        "bonobot://sessions/{id}",
        "bonobot://workflows/{id}",
    ]


def test_resources_without_permission_are_unknown(
    acme: Organization, helper: Agent, session: Session, wire: Wire, boss: Principal
) -> None:
    factories.create_agent(acme, "other")
    there = factories.create_organization("other")
    far = factories.create_agent(there, "far")
    member = token_of(boss, Role.MEMBER, agent_ids=[helper.pk])
    assert read(wire, build_uri("agents", "helper"), token=member)["sessions"] == {}
    for address in (
        build_uri("agents", "other"),
        build_uri("sessions", session.pk),
        build_uri("agents", far.pk),
        "bonobot://servers/x",
        "file:///etc/passwd",
    ):
        answer = wire.modern(PATH, "resources/read", {"uri": address}, token=member)
        assert (answer.error["code"], answer.error["data"]) == (-32602, {"uri": address})
    listed = wire.modern(PATH, "resources/list", token=member).result["resources"]
    assert [one["name"] for one in listed] == ["helper"]


def test_a_state_changes_only_with_its_object(
    helper: Agent, workflow: Workflow, session: Session, boss: Principal
) -> None:
    by_id, by_name = build_uri("agents", helper.pk), build_uri("agents", "helper")
    told, flow = build_uri("sessions", session.pk), build_uri("workflows", workflow.pk)
    watched = [by_id, by_name, told, flow, "bonobot://agents/none", "x"]
    first = load_resource_states(boss, watched)
    assert first.keys() == {by_id, by_name, told, flow}
    assert load_resource_states(boss, watched) == first
    cancel_session(boss, session)
    second = load_resource_states(boss, watched)
    assert {key for key in first if first[key] != second[key]} == {by_id, by_name, told}
    update_agent(boss, helper, AgentSpec(name="Another"))
    third = load_resource_states(boss, watched)
    assert {key for key in first if second[key] != third[key]} == {by_id, by_name}
    run_workflow(boss, workflow, {})
    fourth = load_resource_states(boss, watched)
    assert {key for key in first if third[key] != fourth[key]} == {by_id, by_name, flow}


def test_states_and_lists_use_a_fixed_number_of_queries(
    acme: Organization, helper: Agent, workflow: Workflow, session: Session, boss: Principal
) -> None:
    agents = [helper, *(factories.create_agent(acme, f"agent-{number}") for number in range(4))]
    sessions = [session, *(start_session(boss, agent, "hello") for agent in agents)]
    uris = [build_uri("agents", one.pk) for one in agents] + [
        build_uri("agents", one.slug) for one in agents
    ]
    uris += [build_uri("sessions", one.pk) for one in sessions] + [
        build_uri("workflows", workflow.pk)
    ]
    with CaptureQueriesContext(connection) as queries:
        assert load_resource_states(boss, uris).keys() == set(uris)
    assert len(queries) == 5
    with CaptureQueriesContext(connection) as queries:
        assert len(list_resources(boss)) == 6
    assert len(queries) == 2
    stranger = factories.build_administrator(factories.create_organization("other"))
    assert load_resource_states(stranger, uris) == {}
    narrow = create_token(boss, name="narrow", role=Role.MEMBER, agent_ids=[helper.pk])[0]
    assert load_resource_states(build_token_principal(narrow), uris).keys() == {
        build_uri("agents", helper.pk),
        build_uri("agents", "helper"),
        build_uri("workflows", workflow.pk),
    }


def test_names_in_templates_are_completed(
    acme: Organization, helper: Agent, workflow: Workflow, session: Session, client: Client
) -> None:
    def complete(template: str, begun: str) -> list[str]:
        params = {
            "ref": {"type": "ref/resource", "uri": template},
            "argument": {"name": "id", "value": begun},
        }
        found: list[str] = client.wire.modern(PATH, "completion/complete", params).result[
            "completion"
        ]["values"]
        return found

    factories.create_agent(acme, "other")
    assert complete("bonobot://agents/{id}", "He") == ["helper"]
    assert complete("bonobot://agents/{id}", "") == ["helper", "other"]
    assert complete("bonobot://workflows/{id}", workflow.name[:2]) == [workflow.name]
    assert complete("bonobot://sessions/{id}", str(session.pk)[:8]) == [str(session.pk)]
    params = {"ref": {"type": "ref/resource", "uri": "x"}, "argument": {"name": "id", "value": ""}}
    assert client.wire.modern(PATH, "completion/complete", params).error["code"] == -32602
