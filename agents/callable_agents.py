"""Agents that an agent may call."""

from collections.abc import Sequence

from agents.models import Agent, AgentAssignment
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.ledger.audit.admin_changes import describe_row, record_change


def list_callable_agents(agent: Agent) -> list[str]:
    """Return the slugs of the agents that an agent may call (one query)."""
    assignments = agent.assignments.filter(callable_agent__isnull=False)
    return list(
        assignments.order_by("callable_agent__slug").values_list("callable_agent__slug", flat=True)
    )


def set_callable_agents(principal: Principal, agent: Agent, slugs: Sequence[str]) -> None:
    """Set which agents an agent may call; raises `NotFound` for an unknown one.

    The agent's policy still decides about the resulting tools.
    """
    principal.require(Action.MANAGE_AGENTS)
    rows = Agent.objects.for_organization(agent.organization_id).filter(slug__in=list(slugs))
    agents_by_slug = {row.slug: row for row in rows}
    if unknown_slugs := sorted(set(slugs) - agents_by_slug.keys()):
        raise NotFound(
            format_message("The agent {strange!r} doesn't exist.", strange=unknown_slugs[0][:100]),
            field="callable_agents",
            remedy="Enter slugs of agents in this organization.",
        )
    with record_change(
        **describe_row("agent", agent),
        actor=principal.actor,
        action="callable_agents_updated",
        details={"callable_agents": sorted(agents_by_slug)},
    ):
        lock_rows(Agent.objects.filter(pk=agent.pk))
        agent.assignments.filter(callable_agent__isnull=False).delete()
        AgentAssignment.objects.bulk_create(
            AgentAssignment(organization_id=agent.organization_id, agent=agent, callable_agent=row)
            for row in agents_by_slug.values()
        )
