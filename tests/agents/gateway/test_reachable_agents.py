"""Which agents a principal reaches: the same on every interface (principal × interface × agent)."""

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
from bonobot.accounts.tokens import services as token_services
from bonobot.accounts.tokens.services import create_token
from bonobot.core.problems import NotFound
from tests import factories, rest

pytestmark = pytest.mark.django_db

READERS = (Role.OWNER, Role.OPERATOR, Role.REVIEWER, Role.AUDITOR)
RUNNERS = (Role.OWNER, Role.OPERATOR, Role.MEMBER)
AGENTS = ("given", "named", "other")


@dataclass
class Case:
    """A principal, and the agents that it reaches: `text` is its token's, where it has one."""

    principal: Principal
    reaches: frozenset[str]
    text: str = ""
    user: User | None = None
    label: str = field(default="", compare=False)


@pytest.fixture
def agents(acme: Organization) -> dict[str, Agent]:
    """Three agents, and one of another organization."""
    others = factories.create_organization("others")
    found = {slug: factories.create_agent(acme, slug) for slug in AGENTS}
    return found | {"foreign": factories.create_agent(others, "foreign")}


def people(acme: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield a person of each role, to whom one agent was given."""
    for role in Role:
        user = User.objects.get(pk=factories.create_member(acme, role, f"person-{role}").id)
        agents["given"].members.add(user)
        reaches = frozenset(AGENTS) if role in READERS else frozenset({"given"})
        yield Case(build_user_principal(user, acme), reaches, user=user, label=f"person {role}")


def tokens(acme: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield a token of each role that names no agent, and one that names an agent."""
    boss = factories.build_administrator(acme)
    for role, names in product(Role, ((), ("named",))):
        ids = [agents[name].pk for name in names]
        token, text = create_token(boss, name=f"{role}{names}", role=role, agent_ids=ids)
        everything = frozenset(AGENTS) if role in READERS else frozenset()
        reaches = frozenset(names) or everything
        yield Case(build_token_principal(token), reaches, text, label=f"token {role} {names}")


def programs(acme: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield programs that a member, and an owner, let in."""
    for role, names in product((Role.MEMBER, Role.OWNER), ((), ("given",), ("other",))):
        user = User.objects.create_user(f"giver-{role}-{len(names)}-{''.join(names)}")
        Membership.objects.create(organization=acme, user=user, role=role)
        agents["given"].members.add(user)
        grant = token_services.create_grant(
            user,
            acme,
            role=role,
            resource="https://bonobot.example.com/mcp",
            client_id="ide",
            client="IDE",
            scopes=[TokenScope.TOOLS, TokenScope.AGENTS],
            agent_ids=[agents[name].pk for name in names],
        )
        own = frozenset(AGENTS) if role == Role.OWNER else frozenset({"given"})
        reaches = own & frozenset(names) if names else own if role == Role.OWNER else frozenset()
        yield Case(build_token_principal(grant), reaches, label=f"program {role} {names}")


def strangers(acme: Organization, agents: dict[str, Agent]) -> Iterator[Case]:
    """Yield tokens of an issuer elsewhere, with a role and with or without agents."""
    for number, (role, names) in enumerate(product((Role.MEMBER, Role.OPERATOR), ((), ("named",)))):
        ids = [str(agents[name].pk) for name in names]
        said = {"role": role, "agent_ids": ids, "audience": "bonobot"}
        url = f"https://issuer{number}.example.com"
        row = factories.create_issuer(acme, url, f"Issuer {number}", **said)
        principal = jwt_validation.build_issuer_principal(
            row, {"sub": str(uuid4()), "scope": "mcp:tools mcp:agents"}
        )
        everything = frozenset(AGENTS) if role in READERS else frozenset()
        yield Case(principal, frozenset(names) or everything, label=f"issuer {role} {names}")


def shows_by_rest(case: Case, agent: Agent) -> bool:
    client = rest.Rest(case.text) if case.text else rest.Rest(user=case.user)
    answer = client.get(f"agents/{agent.slug}")
    assert answer.status in (200, 404), answer
    return bool(answer.status == 200)


def serves_by_mcp(case: Case, agent: Agent) -> bool:
    try:
        return find_target(GatewayAddress("agent", agent.slug), case.principal).id == agent.pk
    except NotFound:
        return False


def runs(case: Case, agent: Agent) -> bool:
    return can_run_agent(case.principal, agent)


@pytest.mark.parametrize("make", [people, tokens, programs, strangers])
def test_every_interface_lists_the_same_agents(
    acme: Organization,
    agents: dict[str, Agent],
    make: Callable[[Organization, dict[str, Agent]], Iterator[Case]],
) -> None:
    wrong = []
    for case in make(acme, agents):
        for name, agent in agents.items():
            reached = name in case.reaches
            told = {"mcp": (serves_by_mcp(case, agent), reached and uses_tools(case))}
            told["run"] = (runs(case, agent), reached and case.principal.role in RUNNERS)
            if case.text or case.user:
                told["rest"] = (shows_by_rest(case, agent), reached)
            wrong += [
                f"{case.label}: {name} by {how}"
                for how, (is_, should) in told.items()
                if is_ != should
            ]
    assert wrong == []


def uses_tools(case: Case) -> bool:
    """Tell whether the role may use agents' tools over MCP at all."""
    return case.principal.role in RUNNERS
