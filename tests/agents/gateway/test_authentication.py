"""Who is let in by which token, and what a program is told whose token doesn't do."""

import pytest
from django.db import OperationalError, transaction

from agents.gateway.authentication import authenticate_client
from agents.gateway.handlers import UpstreamHandlers
from agents.gateway.routes import GatewayAddress
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role, TokenScope
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.admin_changes import increment_generation
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.agents.gateway.conftest import Wire, token_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def agents(acme: Organization) -> list[Agent]:
    return [factories.create_agent(acme, name) for name in ("one", "two", "three")]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (OperationalError("host=secret"), "database_unavailable"),
        (KeyError("secret"), "internal_error"),
    ],
)
def test_an_internal_error_is_returned_as_a_code_without_details(
    acme: Organization,
    agents: list[Agent],
    wire: Wire,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    code: str,
):
    async def broken(*_: object) -> None:
        raise fault

    monkeypatch.setattr(UpstreamHandlers, "list_declarations", broken)
    text = token_of(factories.build_administrator(acme), Role.OPERATOR)
    answer = wire.modern("/mcp/agents/one", "tools/list", token=text)
    error = answer.error
    assert (error["code"], error["data"]["code"]) == (-32603, code)
    assert "secret" not in str(error)


def status(wire: Wire, path: str, token: str) -> int:
    return wire.modern(path, "tools/list", token=token).status


def test_a_missing_scope_is_named(acme: Organization, agents: list[Agent], wire: Wire):
    boss = factories.build_administrator(acme)
    text = token_of(boss, Role.OPERATOR, scopes=[TokenScope.AGENTS])
    refused = wire.modern("/mcp/agents/one", "tools/list", token=text)
    assert refused.status == 403
    told = refused.headers["www-authenticate"]
    assert told.endswith('/mcp/agents/one", error="insufficient_scope", scope="mcp:tools"')
    enough = token_of(boss, Role.OPERATOR, scopes=[TokenScope.TOOLS])
    assert status(wire, "/mcp/agents/one", enough) == 200


def test_a_token_for_several_agents_is_valid_at_their_endpoints(
    acme: Organization, agents: list[Agent], wire: Wire
):
    boss = factories.build_administrator(acme)
    text = token_of(boss, Role.MEMBER, agent_ids=[one.pk for one in agents[:2]])
    found = [status(wire, f"/mcp/agents/{one.slug}", text) for one in agents]
    assert found == [200, 200, 404]


def test_a_token_from_another_network_is_refused_like_an_unknown_one(
    acme: Organization, agents: list[Agent], wire: Wire
):
    boss = factories.build_administrator(acme)
    elsewhere = token_of(boss, networks=["192.0.2.0/24"])
    answers = [
        wire.modern("/mcp/agents/one", "tools/list", token=text)
        for text in (elsewhere, "bnb_0_nothing")
    ]
    assert [one.status for one in answers] == [401, 401]
    assert len({one.headers["www-authenticate"] for one in answers}) == 1
    assert answers[0].headers["www-authenticate"].endswith('error="invalid_token"')
    assert AuditRow.objects.filter(action="token_refused").count() == 1
    here = token_of(boss, networks=["127.0.0.0/8"])
    assert status(wire, "/mcp/agents/one", here) == 200


def test_a_reassigned_endpoint_ends_existing_sessions(acme: Organization, helper: Agent) -> None:
    text = token_of(factories.build_administrator(acme))
    guest = get_runtime().call(authenticate_client, text, GatewayAddress("agent", "helper"), "")
    assert get_runtime().call(guest.has_same_access)
    Agent.objects.filter(pk=helper.pk).delete()
    factories.create_agent(acme, "helper")
    with transaction.atomic():
        increment_generation(acme.pk)
    assert not get_runtime().call(guest.has_same_access)
    with pytest.raises(Problem) as caught:
        get_runtime().call(guest.refresh_principal)
    assert caught.value.code == "unknown_endpoint"


def test_the_repr_of_a_client_contains_no_token(acme: Organization, helper: Agent) -> None:
    text = token_of(factories.build_administrator(acme))
    guest = get_runtime().call(authenticate_client, text, GatewayAddress("agent", "helper"), "")
    assert text not in repr(guest)
    assert text.split("_", 2)[2] not in repr(guest)
