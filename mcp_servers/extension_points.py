"""What upper packages register for servers: panels of a server's page, agents it is attached to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from bonobot.accounts.principals import Principal
from bonobot.core.extension_points import ExtensionList, ExtensionPoint
from mcp_servers.models import Server

# A template and its context.
Panel = tuple[str, dict[str, Any]]
# Takes the request for a server's page (`ObjectRequest`), returns a panel or None.
PanelBuilder = Callable[[Any], Panel | None]
server_panels: ExtensionList[PanelBuilder] = ExtensionList()


def build_registered_panels(page: Any) -> Iterator[Panel]:
    for build in server_panels:
        if panel := build(page):
            yield panel


# Called in the transaction that approved definitions of a server.
review_hooks: ExtensionList[Callable[[Server], object]] = ExtensionList()


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


attached_agents: ExtensionPoint[AttachedAgents] = ExtensionPoint(
    "hook for attached agents", registered_by="agents"
)
