"""Implement the agent lookups that `bonobot.accounts` and `mcp_servers` declare."""

from collections.abc import Iterable
from uuid import UUID

from agents.models import Agent, AgentServer
from agents.models.agents import AgentQuerySet
from bonobot.accounts.principals import Principal
from mcp_servers.extension_points import AttachedAgent
from mcp_servers.models import Server


class ModelAgentDirectory:
    """Implement the agent directory of `bonobot.accounts.extension_points`."""

    def find_visible_id(self, principal: Principal, name: str) -> UUID:
        """Return the id of the visible agent with this id or slug; raises `NotFound`."""
        return Agent.objects.get_by_name(principal, name).pk

    def find_id_by_slug(self, organization_id: UUID, slug: str) -> UUID:
        """Return the id of the organization's agent with this slug; raises `NotFound`."""
        agent: Agent = Agent.objects.get_or_404(organization_id, slug=slug)
        return agent.pk

    def list_choices(self, organization_id: UUID) -> list[tuple[str, str]]:
        """Return an organization's agents as (id, name)."""
        return _list_choices(Agent.objects.for_organization(organization_id))

    def list_enabled_choices_of_user(
        self, organization_id: UUID, user_id: UUID, *, most: int
    ) -> list[tuple[str, str]]:
        """Return at most `most` enabled agents of an organization that a user may use."""
        return _list_choices(_filter_enabled_for_user(organization_id, user_id), most)

    def is_enabled_for_user(self, organization_id: UUID, user_id: UUID, agent_id: UUID) -> bool:
        return _filter_enabled_for_user(organization_id, user_id).filter(pk=agent_id).exists()

    def load_names(self, agent_ids: Iterable[UUID | str]) -> dict[str, str]:
        """Return the names of agents by id, without deleted ones."""
        rows = Agent.objects.filter(pk__in={str(pk) for pk in agent_ids})
        return {str(pk): name for pk, name in rows.values_list("pk", "name")}


class ModelAttachedAgents:
    """Implement `mcp_servers.extension_points`: the agents that have a server."""

    def attach(self, principal: Principal, agent_id: UUID, server: Server) -> None:
        """Attach a server to an agent; raises `NotFound` and `Forbidden`."""
        from agents.services import attach_server  # most processes attach nothing

        agent: Agent = Agent.objects.get_or_404(principal.organization_id, pk=agent_id)
        attach_server(principal, agent, server)

    def list_server_ids(self, agent_id: UUID) -> list[UUID]:
        """Return the ids of an agent's servers: its private ones and those of the pool."""
        return list(
            AgentServer.objects.filter(agent_id=agent_id).values_list("server_id", flat=True)
        )

    def list_attached_agents(self, server: Server) -> list[AttachedAgent]:
        rows = AgentServer.objects.filter(server=server).select_related("agent")
        return [
            AttachedAgent(
                agent=row.agent.slug,
                enabled=row.enabled,
                allowed_tools=row.allowed_tools,
                denied_tools=row.denied_tools,
                allowed_resources=row.allowed_resources,
                allowed_prompts=row.allowed_prompts,
            )
            for row in rows.order_by("agent__slug")
        ]


def _list_choices(agents: AgentQuerySet, limit: int | None = None) -> list[tuple[str, str]]:
    rows = agents.order_by("name").values_list("pk", "name")[:limit]
    return [(str(pk), name) for pk, name in rows]


def _filter_enabled_for_user(organization_id: UUID, user_id: UUID) -> AgentQuerySet:
    return Agent.objects.for_organization(organization_id).enabled().visible_to_person(user_id)
