"""Hook for the agents that a server is attached to, registered by the `agents` app."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from bonobot.accounts.principals import Principal
from bonobot.core.extension_points import ExtensionPoint
from mcp_servers.models import Server


@dataclass(frozen=True, slots=True)
class AttachedAgent:
    """An agent (by slug) that a server is attached to, and what it may use of the server."""

    agent: str
    enabled: bool
    allowed_tools: list[str]
    denied_tools: list[str]
    allowed_resources: list[str]
    allowed_prompts: list[str]


class AttachedAgents(Protocol):
    """The hook's interface."""

    def attach(self, principal: Principal, agent_id: UUID, server: Server) -> None:
        """Attach a server to an agent; raises `NotFound` and `Forbidden`."""
        ...

    def list_server_ids(self, agent_id: UUID) -> list[UUID]:
        """Return the ids of an agent's servers: its private ones and those of the pool."""
        ...

    def list_attached_agents(self, server: Server) -> list[AttachedAgent]: ...


_attached_agents: ExtensionPoint[AttachedAgents] = ExtensionPoint(
    "hook for attached agents", registered_by="agents"
)


def register_attached_agents(attached_agents: AttachedAgents) -> None:
    _attached_agents.register(attached_agents)


def get_attached_agents() -> AttachedAgents:
    """Return the hook; raises `ImproperlyConfigured` if none is registered."""
    return _attached_agents.get()
