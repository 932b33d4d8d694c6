"""The agents that a principal can use are the same on every interface."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from uuid import uuid4

import pytest

from agents.gateway.routes import GatewayAddress, find_target
from agents.models import Agent
from agents.sessions.services import can_run_agent
from bonobot.accounts.external_issuers import jwt_validation
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.principals import Principal, build_token_principal, build_user_principal
from bonobot.accounts.roles import Role, TokenScope
from bonobot.accounts.tokens import oauth_grants
from bonobot.accounts.tokens.services import create_token
from bonobot.core.problems import NotFound
from tests import factories, rest

pytestmark = pytest.mark.django_db

READERS = (Role.OWNER, Role.OPERATOR, Role.REVIEWER, Role.AUDITOR)
RUNNERS = (Role.OWNER, Role.OPERATOR, Role.MEMBER)
AGENTS = ("given", "named", "other")


@dataclass
class Case:
    """A principal and the agents that it can use; `text` is that of its token, if it has one."""

    principal: Principal
    reaches: frozenset[str]
    text: str = ""
    user: User | None = None
    label: str = field(default="", compare=False)


@pytest.fixture
def agents(acme: Organization) -> dict[str, Agent]:
    """Three agents, and one of another organization."""
    other_organization = factories.create_organization("others")
    own_agents = {slug: factories.create_agent(acme, slug) for slug in AGENTS}
    return own_agents | {"foreign": factories.create_agent(other_organization, "foreign")}


def people(acme: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield a person of each role who is a member of one agent."""
    for role in Role:
        user = User.objects.get(pk=factories.create_member(acme, role, f"person-{role}").id)
        agents["given"].members.add(user)
        reaches = frozenset(AGENTS) if role in READERS else frozenset({"given"})
        yield Case(build_user_principal(user, acme), reaches, user=user, label=f"person {role}")


def tokens(acme: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield two tokens of each role: without agents and limited to one."""
    administrator = factories.build_administrator(acme)
    for role, names in product(Role, ((), ("named",))):
        ids = [agents[name].pk for name in names]
        token, text = create_token(administrator, name=f"{role}{names}", role=role, agent_ids=ids)
        everything = frozenset(AGENTS) if role in READERS else frozenset()
        reaches = frozenset(names) or everything
        yield Case(build_token_principal(token), reaches, text, label=f"token {role} {names}")


def oauth_clients(acme: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield OAuth clients that a member and an owner authorized."""
    for role, names in product((Role.MEMBER, Role.OWNER), ((), ("given",), ("other",))):
        user = User.objects.create_user(f"giver-{role}-{len(names)}-{''.join(names)}")
        Membership.objects.create(organization=acme, user=user, role=role)
        agents["given"].members.add(user)
        grant = oauth_grants.create_grant(
            user,
            acme,
            role=role,
            resource="https://bonobot.example.com/mcp",
            client_id="ide",
            client="IDE",
            scopes=[TokenScope.TOOLS, TokenScope.AGENTS],
            agent_ids=[agents[name].pk for name in names],
        )
        user_reaches = frozenset(AGENTS) if role == Role.OWNER else frozenset({"given"})
        reaches = (
            user_reaches & frozenset(names)
            if names
            else user_reaches
            if role == Role.OWNER
            else frozenset()
        )
        yield Case(build_token_principal(grant), reaches, label=f"program {role} {names}")


def issuer_tokens(acme: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield tokens of external issuers, with and without a limit to agents."""
    for number, (role, names) in enumerate(product((Role.MEMBER, Role.OPERATOR), ((), ("named",)))):
        ids = [str(agents[name].pk) for name in names]
        fields = {"role": role, "agent_ids": ids, "audience": "bonobot"}
        url = f"https://issuer{number}.example.com"
        issuer = factories.create_issuer(acme, url, f"Issuer {number}", **fields)
        principal = jwt_validation.build_issuer_principal(
            issuer, {"sub": str(uuid4()), "scope": "mcp:tools mcp:agents"}
        )
        everything = frozenset(AGENTS) if role in READERS else frozenset()
        yield Case(principal, frozenset(names) or everything, label=f"issuer {role} {names}")


def can_view_over_rest(case: Case, agent: Agent) -> bool:
    client = rest.RestClient(case.text) if case.text else rest.RestClient(user=case.user)
    response = client.get(f"agents/{agent.slug}")
    assert response.status in (200, 404), response
    return bool(response.status == 200)


def can_use_over_mcp(case: Case, agent: Agent) -> bool:
    try:
        return find_target(GatewayAddress("agent", agent.slug), case.principal).id == agent.pk
    except NotFound:
        return False


def can_run(case: Case, agent: Agent) -> bool:
    return can_run_agent(case.principal, agent)


@pytest.mark.parametrize("make", [people, tokens, oauth_clients, issuer_tokens])
def test_every_interface_lists_the_same_agents(
    acme: Organization,
    agents: dict[str, Agent],
    make: Callable[[Organization, dict[str, Agent]], Iterator[Case]],
) -> None:
    differences = []
    for case in make(acme, agents):
        for name, agent in agents.items():
            reached = name in case.reaches
            results = {"mcp": (can_use_over_mcp(case, agent), reached and role_uses_tools(case))}
            results["run"] = (can_run(case, agent), reached and case.principal.role in RUNNERS)
            if case.text or case.user:
                results["rest"] = (can_view_over_rest(case, agent), reached)
            differences += [
                f"{case.label}: {name} by {interface}"
                for interface, (actual, expected) in results.items()
                if actual != expected
            ]
    assert differences == []


def role_uses_tools(case: Case) -> bool:
    """Return whether the role can use agents' tools over MCP."""
    return case.principal.role in RUNNERS
