"""What upper packages register for accounts.

Functions that are called when a user joins and when a principal reads, the setup snippets of MCP
clients that are shown with a new token, and the directory of the agents that tokens, invitations,
issuers and grants can be limited to: accounts know agents only by ID.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from django.utils.translation import gettext as _

from bonobot.core.extension_points import ExtensionList, ExtensionPoint

if TYPE_CHECKING:
    from bonobot.accounts.models import Invitation, Token, User
    from bonobot.accounts.principals import Principal

JoinHook = Callable[["Invitation", "User"], None]
ReadHook = Callable[["Principal", str, Sequence[Any]], None]
ResponseHook = Callable[["Principal", Any], None]

# Called in the transaction in which a user joins an organization.
join_hooks: ExtensionList[JoinHook] = ExtensionList()
# Called with the method and the rows before a REST response is sent.
read_hooks: ExtensionList[ReadHook] = ExtensionList()

# Called with the body of a REST response that is an error or the response to a write.
response_hooks: ExtensionList[ResponseHook] = ExtensionList()
# Takes a token and its text; returns the context of the panel shown with it.
TokenSnippetsBuilder = Callable[["Token", str], dict[str, Any]]
token_snippets: ExtensionPoint[TokenSnippetsBuilder] = ExtensionPoint(
    "builder of client snippets", registered_by="agents"
)


class AgentDirectory(Protocol):
    """Queries about agents; choices are (id, name) pairs ordered by name."""

    def find_visible_id(self, principal: "Principal", name: str) -> UUID:
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


agent_directory: ExtensionPoint[AgentDirectory] = ExtensionPoint(
    "agent directory", registered_by="agents"
)


def list_agent_choices(organization_id: UUID, selected_ids: Iterable[str]) -> list[tuple[str, str]]:
    """Return the choices of a form: the agents, and selected ones that were deleted."""
    choices = agent_directory.get().list_choices(organization_id)
    deleted_ids = sorted(set(selected_ids) - {pk for pk, _name in choices})
    return [*choices, *((pk, _("deleted: %s") % pk) for pk in deleted_ids)]


def find_agent_ids(organization_id: UUID, slugs: Iterable[str]) -> list[UUID]:
    """Return the ids of an organization's agents; raises `NotFound`."""
    find_id = agent_directory.get().find_id_by_slug
    return [find_id(organization_id, slug) for slug in slugs]


def find_visible_agent_ids(principal: "Principal", names: Iterable[str]) -> list[UUID]:
    """Return the ids of agents given by id or slug; raises `NotFound` for invisible ones."""
    find_id = agent_directory.get().find_visible_id
    return [find_id(principal, name) for name in names]
