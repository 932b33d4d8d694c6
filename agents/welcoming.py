"""Welcoming: whoever joins as a member gets the agents that their invitation names."""

from agents.models import Agent
from bonobot.ledger.actors import Actor
from bonobot.ledger.changes import change
from bonobot.tenancy.models import Invitation, User


def give_agents(invitation: Invitation, user: User) -> None:
    """Give the agents, as far as there still are any of them; within the change of joining."""
    here = Agent.objects.for_organization(invitation.organization_id)
    for agent in here.filter(pk__in=invitation.agent_ids):
        with change(
            organization_id=agent.organization_id,
            actor=Actor(kind="user", id=str(user.pk), label=user.get_username()),
            action="agent_given",
            resource_type="agent",
            resource_id=str(agent.pk),
            resource_name=agent.name,
            details={"joined": user.get_username(), "invited_by": invitation.invited_by},
        ):
            agent.members.add(user)
