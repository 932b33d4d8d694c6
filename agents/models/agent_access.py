"""Filters of rows by the agents that a principal may see.

`AgentQuerySet.visible_to` decides which agents a principal may see. Everything that belongs to an
agent is filtered here, so that REST, the gateway, the admin and the CLI show the same rows.
"""

from typing import Any

from agents.models.agents import Agent
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action


def can_see_all_agents(principal: Principal) -> bool:
    """Tell whether a principal sees all agents of its organization, so that no filter is needed.

    An OAuth client is also limited by the person who authorized it, whatever its role.
    """
    is_restricted = principal.agent_ids or principal.granted_by_id is not None
    return principal.may(Action.VIEW) and not is_restricted


def filter_by_visible_agents(rows: Any, principal: Principal, agent_path: str = "agent") -> Any:
    """Keep rows of agents that a principal sees; `agent_path` is the lookup."""
    organization_rows = rows.for_organization(principal.organization_id)
    if can_see_all_agents(principal):
        return organization_rows
    return organization_rows.filter(
        **{f"{agent_path}__in": Agent.objects.visible_to(principal).values("pk")}
    )


def filter_readable_sessions(rows: Any, principal: Principal, owner_prefix: str) -> Any:
    """Keep sessions, or requests in them, that a principal may read.

    Readers of the organization read those of visible agents, all others their own: `owner_prefix`
    starts the names of the two owner columns. People, but not tokens, keep access to their own
    sessions with agents that they can no longer see.
    """
    owner_filter = {f"{owner_prefix}_kind": principal.kind, f"{owner_prefix}_id": principal.id}
    if principal.may(Action.VIEW):
        return filter_by_visible_agents(rows, principal)
    if principal.kind == "user":
        return rows.for_organization(principal.organization_id).filter(**owner_filter)
    return filter_by_visible_agents(rows, principal).filter(**owner_filter)
