"""The directory of agents that tokens, invitations, issuers and grants can be limited to.

This package knows agents only by id; the `agents` package registers the directory.
"""

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID

from django.utils.translation import gettext as _

from bonobot.accounts.principals import Principal
from bonobot.core.extension_points import ExtensionPoint


class AgentDirectory(Protocol):
    """Queries about agents; choices are (id, name) pairs ordered by name."""

    def find_visible_id(self, principal: Principal, name: str) -> UUID:
        """Return the id of the agent with this id or slug; raises `NotFound` for invisible ones."""
        ...

    def find_id_by_slug(self, organization_id: UUID, slug: str) -> UUID:
        """Return the id of an organization's agent; raises `NotFound`."""
        ...

    def list_choices(self, organization_id: UUID) -> list[tuple[str, str]]: ...

    def list_enabled_choices_of_user(
        self, organization_id: UUID, user_id: UUID, *, most: int
    ) -> list[tuple[str, str]]:
        """Return at most `most` enabled agents of an organization that a user may use."""
        ...

    def is_enabled_for_user(self, organization_id: UUID, user_id: UUID, agent_id: UUID) -> bool: ...

    def load_names(self, agent_ids: Iterable[UUID | str]) -> dict[str, str]:
        """Return the names of agents by id, without deleted ones."""
        ...


_directory: ExtensionPoint[AgentDirectory] = ExtensionPoint(
    "agent directory", registered_by="agents"
)


def register_agent_directory(directory: AgentDirectory) -> None:
    _directory.register(directory)


def get_agent_directory() -> AgentDirectory:
    """Return the agent directory; raises `ImproperlyConfigured` if none is registered."""
    return _directory.get()


def list_agent_choices(organization_id: UUID, selected_ids: Iterable[str]) -> list[tuple[str, str]]:
    """Return the choices of a form: the agents, and selected ones that were deleted."""
    choices = get_agent_directory().list_choices(organization_id)
    deleted_ids = sorted(set(selected_ids) - {pk for pk, _name in choices})
    return [*choices, *((pk, _("deleted: %s") % pk) for pk in deleted_ids)]


def find_agent_ids(organization_id: UUID, slugs: Iterable[str]) -> list[UUID]:
    """Return the ids of an organization's agents; raises `NotFound`."""
    find_id = get_agent_directory().find_id_by_slug
    return [find_id(organization_id, slug) for slug in slugs]


def find_visible_agent_ids(principal: Principal, names: Iterable[str]) -> list[UUID]:
    """Return the ids of agents given by id or slug; raises `NotFound` for invisible ones."""
    find_id = get_agent_directory().find_visible_id
    return [find_id(principal, name) for name in names]
