"""Which tokens are accepted, and the responses to other tokens."""

import pytest
from django.db import OperationalError, transaction

from agents.gateway.authentication import authenticate_client
from agents.gateway.forwarded_requests import UpstreamHandlers
from agents.gateway.routes import GatewayAddress
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role, TokenScope
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.admin_changes import increment_generation
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, token_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def agents(acme: Organization) -> list[Agent]:
    return [factories.create_agent(acme, name) for name in ("one", "two", "three")]


@pytest.mark.parametrize(
    ("exception", "code"),
    [
        (OperationalError("host=secret"), "database_unavailable"),
        (KeyError("secret"), "internal_error"),
    ],
)
def test_an_internal_error_is_returned_as_a_code_without_details(
    acme: Organization,
    agents: list[Agent],
    gateway_client: GatewayClient,
    monkeypatch: pytest.MonkeyPatch,
    exception: Exception,
    code: str,
):
    async def fail(*_: object) -> None:
        raise exception

    monkeypatch.setattr(UpstreamHandlers, "list_current_declarations", fail)
    text = token_of(factories.build_administrator(acme), Role.OPERATOR)
    reply = gateway_client.modern("/mcp/agents/one", "tools/list", token=text)
    error = reply.error
    assert (error["code"], error["data"]["code"]) == (-32603, code)
    assert "secret" not in str(error)


def get_status(gateway_client: GatewayClient, path: str, token: str) -> int:
    return gateway_client.modern(path, "tools/list", token=token).status


def test_a_missing_scope_is_named(
    acme: Organization, agents: list[Agent], gateway_client: GatewayClient
):
    administrator = factories.build_administrator(acme)
    text = token_of(administrator, Role.OPERATOR, scopes=[TokenScope.AGENTS])
    reply = gateway_client.modern("/mcp/agents/one", "tools/list", token=text)
    assert reply.status == 403
    challenge = reply.headers["www-authenticate"]
    assert challenge.endswith('/mcp/agents/one", error="insufficient_scope", scope="mcp:tools"')
    sufficient = token_of(administrator, Role.OPERATOR, scopes=[TokenScope.TOOLS])
    assert get_status(gateway_client, "/mcp/agents/one", sufficient) == 200


def test_a_token_for_several_agents_is_valid_at_their_endpoints(
    acme: Organization, agents: list[Agent], gateway_client: GatewayClient
):
    administrator = factories.build_administrator(acme)
    text = token_of(administrator, Role.MEMBER, agent_ids=[agent.pk for agent in agents[:2]])
    statuses = [get_status(gateway_client, f"/mcp/agents/{agent.slug}", text) for agent in agents]
    assert statuses == [200, 200, 404]


def test_a_token_from_another_network_is_refused_like_an_unknown_one(
    acme: Organization, agents: list[Agent], gateway_client: GatewayClient
):
    administrator = factories.build_administrator(acme)
    other_network = token_of(administrator, networks=["192.0.2.0/24"])
    replies = [
        gateway_client.modern("/mcp/agents/one", "tools/list", token=text)
        for text in (other_network, "bnb_0_nothing")
    ]
    assert [reply.status for reply in replies] == [401, 401]
    assert len({reply.headers["www-authenticate"] for reply in replies}) == 1
    assert replies[0].headers["www-authenticate"].endswith('error="invalid_token"')
    assert AuditRow.objects.filter(action="token_rejected").count() == 1
    local = token_of(administrator, networks=["127.0.0.0/8"])
    assert get_status(gateway_client, "/mcp/agents/one", local) == 200


def test_a_reassigned_endpoint_ends_existing_sessions(acme: Organization, helper: Agent) -> None:
    text = token_of(factories.build_administrator(acme))
    client = get_runtime().call(authenticate_client, text, GatewayAddress("agent", "helper"), "")
    assert get_runtime().call(client.has_same_access)
    Agent.objects.filter(pk=helper.pk).delete()
    factories.create_agent(acme, "helper")
    with transaction.atomic():
        increment_generation(acme.pk)
    assert not get_runtime().call(client.has_same_access)
    with pytest.raises(Problem) as caught:
        get_runtime().call(client.refresh_principal)
    assert caught.value.code == "unknown_endpoint"


def test_the_repr_of_a_client_contains_no_token(acme: Organization, helper: Agent) -> None:
    text = token_of(factories.build_administrator(acme))
    client = get_runtime().call(authenticate_client, text, GatewayAddress("agent", "helper"), "")
    assert text not in repr(client)
    assert text.split("_", 2)[2] not in repr(client)
