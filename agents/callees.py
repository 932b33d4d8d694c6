"""Which agents an agent may ask: given by people, off until then (DESIGN section 5)."""

from collections.abc import Sequence

from agents.models import Agent, Given
from bonobot.ledger.changes import change
from bonobot.lib.problems import NotFound
from bonobot.lib.row_locks import lock
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action


def callees_of(agent: Agent) -> list[str]:
    """Return the slugs of the agents that an agent may ask (a query)."""
    given = agent.given.filter(callee__isnull=False)
    return list(given.order_by("callee__slug").values_list("callee__slug", flat=True))


def set_callees(principal: Principal, agent: Agent, slugs: Sequence[str]) -> None:
    """Say which agents an agent may ask; raises `NotFound` for a strange one.

    Its policy still decides about the tools that it gets by it.
    """
    principal.require(Action.MANAGE_AGENTS)
    rows = Agent.objects.for_organization(agent.organization_id).filter(slug__in=list(slugs))
    found = {row.slug: row for row in rows}
    if strange := sorted(set(slugs) - found.keys()):
        raise NotFound(
            say("There is no agent {strange!r} here.", strange=strange[0][:100]),
            field="may_ask",
            remedy="Name agents of this organization by their slugs.",
        )
    with change(
        organization_id=agent.organization_id,
        actor=principal.actor,
        action="agent_callees_changed",
        resource_type="agent",
        resource_id=str(agent.pk),
        resource_name=agent.name,
        details={"may_ask": sorted(found)},
    ):
        lock(Agent.objects.filter(pk=agent.pk))
        agent.given.filter(callee__isnull=False).delete()
        Given.objects.bulk_create(
            Given(organization_id=agent.organization_id, agent=agent, callee=row)
            for row in found.values()
        )
