"""Offers: what a person can let a program do at an address, in each of their organizations."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import QuerySet

from agents.models import Agent
from bonobot.authority.asked import Asked
from bonobot.gateway.places import Address, find
from bonobot.lib.problems import Invalid, Problem
from bonobot.tenancy import grants
from bonobot.tenancy.models import Organization, Token, User
from bonobot.tenancy.principals import principal_for_user
from bonobot.tenancy.roles import Action, Role, Scope, may, within

MOST_ORGANIZATIONS = 50
MOST_AGENTS = 100
# What somebody without a word for it usually means by an address.
USUAL = {"organization": Scope.AGENTS, "agent": Scope.TOOLS, "server": Scope.TOOLS}
# Of a role that may do none of these, a program has no use at the address.
USES: dict[str, tuple[Action, ...]] = {
    "organization": (Action.RUN_AGENTS, Action.VIEW),
    "agent": (Action.USE_TOOLS,),
    "server": (Action.CALL_TOOLS,),
}


@dataclass(frozen=True, slots=True)
class Offer:
    """What can be given in one organization: one of `roles`, the least first, and agents."""

    organization: Organization
    place: str
    roles: tuple[Role, ...]
    agents: tuple[tuple[str, str], ...] = ()
    fixed: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """What a person chose."""

    role: str
    scopes: Sequence[str]
    agents: Sequence[str]


def offers(user: User, reached: QuerySet[Organization], address: Address) -> list[Offer]:
    """Return what a person can give at an address; nothing where they have no business there.

    `reached` are the organizations that their session opens.
    """
    theirs = reached.filter(halted_at=None)[:MOST_ORGANIZATIONS]
    found = (_offer(user, one, address) for one in theirs)
    return [one for one in found if one is not None]


def usual(asked: Asked) -> tuple[str, ...]:
    """Return the scopes that are ticked before the person says anything: not to manage."""
    plain = tuple(scope for scope in asked.scopes if scope != Scope.MANAGE)
    fitting = tuple(scope for scope in plain if scope == USUAL[asked.address.kind])
    return fitting or plain or asked.scopes


def give(user: User, asked: Asked, offer: Offer, choice: Choice) -> Token:
    """Let the program in as the person chose; raises `Invalid`, `Forbidden`."""
    if choice.role not in offer.roles:
        raise Invalid("Choose one of the roles.", field="role")
    if not choice.scopes or not set(choice.scopes) <= set(asked.scopes):
        raise Invalid("Choose what the program may do.", field="scopes")
    known = {pk for pk, _name in offer.agents}
    if not set(choice.agents) <= known:
        raise Invalid("Choose among the agents.", field="agents")
    agents = offer.fixed or tuple(map(UUID, choice.agents))
    if not agents and choice.role == Role.MEMBER:
        raise Invalid(
            "A member reaches the agents that are given to it: choose one.", field="agents"
        )
    return grants.give(
        user,
        offer.organization,
        role=Role(choice.role),
        resource=asked.resource,
        client_id=asked.program.client_id,
        client=asked.name,
        scopes=choice.scopes,
        agent_ids=agents,
    )


def _offer(user: User, organization: Organization, address: Address) -> Offer | None:
    try:
        principal = principal_for_user(user, organization)
        place = find(address, principal)
    except Problem:
        return None
    uses = USES[address.kind]
    roles = tuple(
        role for role in within(principal.role) if any(may(role, action) for action in uses)
    )
    # Of roles that may as much, the one that reads nothing comes first.
    roles = tuple(sorted(roles, key=lambda role: may(role, Action.VIEW)))
    mine = Agent.objects.for_organization(organization.pk).enabled().in_reach_of(user.pk)
    if address.kind == "agent":
        reached = mine.filter(pk=place.id).exists()
        return Offer(organization, place.name, roles, fixed=(place.id,)) if reached else None
    if not roles:
        return None
    if address.kind == "server":
        return Offer(organization, place.name, roles)
    listed = mine.order_by("name").values_list("pk", "name")[:MOST_AGENTS]
    return Offer(organization, place.name, roles, tuple((str(pk), name) for pk, name in listed))
