"""The protected resources that grants are for (RFC 8707).

The gateway, an upper package, registers how its addresses are parsed and resolved.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol
from uuid import UUID

from bonobot.accounts.principals import Principal
from bonobot.core.extension_points import ExtensionPoint

ResourceKind = Literal["organization", "agent", "server"]


class ResourceAddress(Protocol):
    """The parsed path of a resource."""

    @property
    def kind(self) -> ResourceKind: ...

    @property
    def path(self) -> str:
        """The path without a trailing slash."""
        ...


class ResourceTarget(Protocol):
    """The object at an address."""

    @property
    def id(self) -> UUID:
        """The id of the organization, agent or server."""
        ...

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ProtectedResources:
    """The functions that parse and resolve addresses.

    `parse` returns None for other paths; `find` raises `Problem` if the principal has no access.
    """

    parse: Callable[[str], ResourceAddress | None]
    find: Callable[[ResourceAddress, Principal], ResourceTarget]


protected_resources: ExtensionPoint[ProtectedResources] = ExtensionPoint(
    "protected resources", registered_by="agents"
)
