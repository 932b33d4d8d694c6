"""Resources at `/mcp`: agents, sessions and workflows as in REST, and their states."""

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
from agents.workflows.runs import run_workflow
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal, build_token_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from tests import factories, rest
from tests.agents.gateway.conftest import GatewayClient, token_of
from tests.agents.gateway.organization_server.conftest import PATH, Client

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def administrator(acme: Organization) -> Principal:
    return factories.build_administrator(acme)


@pytest.fixture
def session(administrator: Principal, helper: Agent) -> Session:
    return start_session(administrator, helper, "hello")


@pytest.fixture
def workflow(acme: Organization, helper: Agent) -> Workflow:
    return factories.create_workflow(helper)


def read(gateway_client: GatewayClient, uri: str, **more: Any) -> dict[str, Any]:
    result = gateway_client.modern(PATH, "resources/read", {"uri": uri}, **more).result
    [content] = result["contents"]
    assert (content["uri"], content["mimeType"]) == (uri, "application/json")
    data: dict[str, Any] = json.loads(content["text"])
    return data


def test_agents_and_workflows_are_listed_and_read_as_in_rest(
    acme: Organization,
    helper: Agent,
    workflow: Workflow,
    session: Session,
    gateway_client: GatewayClient,
) -> None:
    listed = gateway_client.modern(PATH, "resources/list").result["resources"]
    names = {item["name"]: item["uri"] for item in listed}
    assert names == {
        "helper": build_uri("agents", helper.pk),
        workflow.name: build_uri("workflows", workflow.pk),
    }
    owner = rest.as_role(acme, Role.OWNER)
    agent = read(gateway_client, names["helper"])
    assert agent.pop("sessions") == {"queued": 1}
    assert agent == owner.get("agents/helper").json
    assert read(gateway_client, build_uri("agents", "helper"))["id"] == str(helper.pk)
    workflow_data = read(gateway_client, names[workflow.name])
    assert workflow_data.pop("runs") == {}
    assert workflow_data == owner.get(f"workflows/{workflow.pk}").json
    assert (
        read(gateway_client, build_uri("sessions", session.pk))
        == owner.get(f"sessions/{session.pk}").json
    )
    templates = gateway_client.modern(PATH, "resources/templates/list").result["resourceTemplates"]
    assert [item["uriTemplate"] for item in templates] == [
        "bonobot://agents/{id}",
        "bonobot://sessions/{id}",
        "bonobot://workflows/{id}",
    ]


def test_resources_without_permission_are_unknown(
    acme: Organization,
    helper: Agent,
    session: Session,
    gateway_client: GatewayClient,
    administrator: Principal,
) -> None:
    factories.create_agent(acme, "other")
    other_organization = factories.create_organization("other")
    foreign = factories.create_agent(other_organization, "far")
    member = token_of(administrator, Role.MEMBER, agent_ids=[helper.pk])
    assert read(gateway_client, build_uri("agents", "helper"), token=member)["sessions"] == {}
    for uri in (
        build_uri("agents", "other"),
        build_uri("sessions", session.pk),
        build_uri("agents", foreign.pk),
        "bonobot://servers/x",
        "file:///etc/passwd",
    ):
        reply = gateway_client.modern(PATH, "resources/read", {"uri": uri}, token=member)
        assert (reply.error["code"], reply.error["data"]) == (-32602, {"uri": uri})
    listed = gateway_client.modern(PATH, "resources/list", token=member).result["resources"]
    assert [resource["name"] for resource in listed] == ["helper"]


def test_a_state_changes_only_with_its_object(
    helper: Agent, workflow: Workflow, session: Session, administrator: Principal
) -> None:
    by_id, by_name = build_uri("agents", helper.pk), build_uri("agents", "helper")
    session_uri, workflow_uri = (
        build_uri("sessions", session.pk),
        build_uri("workflows", workflow.pk),
    )
    uris = [by_id, by_name, session_uri, workflow_uri, "bonobot://agents/none", "x"]
    first = load_resource_states(administrator, uris)
    assert first.keys() == {by_id, by_name, session_uri, workflow_uri}
    assert load_resource_states(administrator, uris) == first
    cancel_session(administrator, session)
    second = load_resource_states(administrator, uris)
    assert {key for key in first if first[key] != second[key]} == {by_id, by_name, session_uri}
    update_agent(administrator, helper, AgentSpec(name="Another"))
    third = load_resource_states(administrator, uris)
    assert {key for key in first if second[key] != third[key]} == {by_id, by_name}
    run_workflow(administrator, workflow, {})
    fourth = load_resource_states(administrator, uris)
    assert {key for key in first if third[key] != fourth[key]} == {by_id, by_name, workflow_uri}


def test_states_and_lists_use_a_fixed_number_of_queries(
    acme: Organization,
    helper: Agent,
    workflow: Workflow,
    session: Session,
    administrator: Principal,
) -> None:
    agents = [helper, *(factories.create_agent(acme, f"agent-{number}") for number in range(4))]
    sessions = [session, *(start_session(administrator, agent, "hello") for agent in agents)]
    uris = [build_uri("agents", item.pk) for item in agents] + [
        build_uri("agents", item.slug) for item in agents
    ]
    uris += [build_uri("sessions", item.pk) for item in sessions] + [
        build_uri("workflows", workflow.pk)
    ]
    with CaptureQueriesContext(connection) as queries:
        assert load_resource_states(administrator, uris).keys() == set(uris)
    assert len(queries) == 5
    with CaptureQueriesContext(connection) as queries:
        assert len(list_resources(administrator)) == 6
    assert len(queries) == 2
    stranger = factories.build_administrator(factories.create_organization("other"))
    assert load_resource_states(stranger, uris) == {}
    limited = create_token(administrator, name="narrow", role=Role.MEMBER, agent_ids=[helper.pk])[0]
    assert load_resource_states(build_token_principal(limited), uris).keys() == {
        build_uri("agents", helper.pk),
        build_uri("agents", "helper"),
        build_uri("workflows", workflow.pk),
    }


def test_names_in_templates_are_completed(
    acme: Organization, helper: Agent, workflow: Workflow, session: Session, client: Client
) -> None:
    def complete(template: str, prefix: str) -> list[str]:
        params = {
            "ref": {"type": "ref/resource", "uri": template},
            "argument": {"name": "id", "value": prefix},
        }
        values: list[str] = client.gateway_client.modern(
            PATH, "completion/complete", params
        ).result["completion"]["values"]
        return values

    factories.create_agent(acme, "other")
    assert complete("bonobot://agents/{id}", "He") == ["helper"]
    assert complete("bonobot://agents/{id}", "") == ["helper", "other"]
    assert complete("bonobot://workflows/{id}", workflow.name[:2]) == [workflow.name]
    assert complete("bonobot://sessions/{id}", str(session.pk)[:8]) == [str(session.pk)]
    params = {"ref": {"type": "ref/resource", "uri": "x"}, "argument": {"name": "id", "value": ""}}
    assert client.gateway_client.modern(PATH, "completion/complete", params).error["code"] == -32602
