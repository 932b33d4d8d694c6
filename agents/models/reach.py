"""Reach: what a principal sees because of the agent that it belongs to.

`AgentQuerySet.visible_to` alone decides which agents a principal has. Everything that belongs to an
agent asks here, so that REST, the gateway, the admin and the command line show the same: an agent
that a token isn't for, or that was taken from the person behind it, is gone with all that it has.
"""

from typing import Any

from agents.models.agents import Agent
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action


def sees_every_agent(principal: Principal) -> bool:
    """Tell whether a principal sees all agents of its organization, so that none has to be asked.

    What a program has depends on its person, too, whatever its role.
    """
    bound = principal.agent_ids or principal.giver is not None
    return principal.may(Action.VIEW) and not bound


def of_visible_agents(rows: Any, principal: Principal, path: str = "agent") -> Any:
    """Keep the rows that belong to agents which a principal sees; `path` leads to the agent."""
    mine = rows.for_organization(principal.organization_id)
    if sees_every_agent(principal):
        return mine
    return mine.filter(**{f"{path}__in": Agent.objects.visible_to(principal).values("pk")})


def of_readable_sessions(rows: Any, principal: Principal, whose: str) -> Any:
    """Keep sessions, or what waits in them, that a principal may read.

    Readers of the organization read those of the agents that they see, all others their own:
    `whose` begins the names of the two columns that say whose they are. A person reads on what they
    began with an agent that was taken from them; tokens don't.
    """
    own = {f"{whose}_kind": principal.kind, f"{whose}_id": principal.id}
    if principal.may(Action.VIEW):
        return of_visible_agents(rows, principal)
    if principal.kind == "user":
        return rows.for_organization(principal.organization_id).filter(**own)
    return of_visible_agents(rows, principal).filter(**own)
