"""The agents that tokens, invitations, external issuers and grants may be narrowed to.

Accounts lie below agents: they know agents by id alone, and ask the one registered directory for
everything else.
"""

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID

from bonobot.accounts.principals import Principal
from bonobot.core.extension_points import ExtensionPoint


class AgentDirectory(Protocol):
    """What is asked about agents; `choices` are pairs of an id and a name, ordered by name."""

    def find_visible_id(self, principal: Principal, name: str) -> UUID:
        """Return the id of the agent with this id or slug; raises `NotFound` for unseen ones."""
        ...

    def find_id_by_slug(self, organization_id: UUID, slug: str) -> UUID:
        """Return the id of an organization's agent; raises `NotFound`."""
        ...

    def list_choices(self, organization_id: UUID) -> list[tuple[str, str]]:
        """Return an organization's agents."""
        ...

    def list_enabled_choices_of_user(
        self, organization_id: UUID, user_id: UUID, *, most: int
    ) -> list[tuple[str, str]]:
        """Return at most so many enabled agents of an organization that a user may use."""
        ...

    def is_enabled_for_user(self, organization_id: UUID, user_id: UUID, agent_id: UUID) -> bool:
        """Tell whether an organization's agent is enabled, and one that a user may use."""
        ...

    def load_names(self, agent_ids: Iterable[UUID | str]) -> dict[str, str]:
        """Return the names of agents by id; those that are gone are missing."""
        ...


_directory: ExtensionPoint[AgentDirectory] = ExtensionPoint(
    "agent directory", registered_by="agents"
)


def register_agent_directory(directory: AgentDirectory) -> None:
    """Set the directory that accounts ask."""
    _directory.register(directory)


def get_agent_directory() -> AgentDirectory:
    """Return the directory; raises `ImproperlyConfigured` where none is registered."""
    return _directory.get()


def find_agent_ids(organization_id: UUID, slugs: Iterable[str]) -> list[UUID]:
    """Return the ids of an organization's agents; raises `NotFound`."""
    find_id = get_agent_directory().find_id_by_slug
    return [find_id(organization_id, slug) for slug in slugs]


def find_visible_agent_ids(principal: Principal, names: Iterable[str]) -> list[UUID]:
    """Return the ids of agents that are named by id or slug; raises `NotFound` for unseen ones."""
    find_id = get_agent_directory().find_visible_id
    return [find_id(principal, name) for name in names]
