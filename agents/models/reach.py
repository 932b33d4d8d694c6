"""Filters of rows by the agents that a principal may see.

`AgentQuerySet.visible_to` decides which agents a principal may see. Everything that belongs to an
agent is filtered here, so that REST, the gateway, the admin and the CLI show the same rows.
"""

from typing import Any

from agents.models.agents import Agent
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action


def sees_every_agent(principal: Principal) -> bool:
    """Tell whether a principal sees all agents of its organization, so that no filter is needed.

    An OAuth client is also limited by the person who authorized it, whatever its role.
    """
    bound = principal.agent_ids or principal.giver is not None
    return principal.may(Action.VIEW) and not bound


def of_visible_agents(rows: Any, principal: Principal, path: str = "agent") -> Any:
    """Keep rows of agents that a principal sees; `agent_path` is the lookup."""
    mine = rows.for_organization(principal.organization_id)
    if sees_every_agent(principal):
        return mine
    return mine.filter(**{f"{path}__in": Agent.objects.visible_to(principal).values("pk")})


def of_readable_sessions(rows: Any, principal: Principal, whose: str) -> Any:
    """Keep sessions, or requests in them, that a principal may read.

    Readers of the organization read those of visible agents, all others their own: `owner_prefix`
    starts the names of the two owner columns. People, but not tokens, keep access to their own
    sessions with agents that they can no longer see.
    """
    own = {f"{whose}_kind": principal.kind, f"{whose}_id": principal.id}
    if principal.may(Action.VIEW):
        return of_visible_agents(rows, principal)
    if principal.kind == "user":
        return rows.for_organization(principal.organization_id).filter(**own)
    return of_visible_agents(rows, principal).filter(**own)
