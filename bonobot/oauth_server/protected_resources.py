"""The resources that grants are for (RFC 8707): addresses that a package above serves.

The gateway, which lies above, registers how its addresses are read and what they stand for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol
from uuid import UUID

from bonobot.accounts.principals import Principal
from bonobot.core.extension_points import ExtensionPoint

ResourceKind = Literal["organization", "agent", "server"]


class ResourceAddress(Protocol):
    """The path of a resource, as it was read."""

    @property
    def kind(self) -> ResourceKind:
        """What it is the address of."""
        ...

    @property
    def path(self) -> str:
        """The path, without a slash at its end."""
        ...


class ResourceTarget(Protocol):
    """What an address stands for, for one principal."""

    @property
    def id(self) -> UUID:
        """The id of the organization, agent or server."""
        ...

    @property
    def name(self) -> str:
        """What it is called."""
        ...


@dataclass(frozen=True, slots=True)
class ProtectedResources:
    """How addresses are read and found.

    `parse` returns None for a path that isn't one; `find` raises `Problem` for what the principal
    has no business at.
    """

    parse: Callable[[str], ResourceAddress | None]
    find: Callable[[ResourceAddress, Principal], ResourceTarget]


_resources: ExtensionPoint[ProtectedResources] = ExtensionPoint(
    "protected resources", registered_by="agents"
)


def register_protected_resources(resources: ProtectedResources) -> None:
    """Set the resources that grants are for."""
    _resources.register(resources)


def parse_resource_path(path: str) -> ResourceAddress | None:
    """Return the address that a path is; None for one that isn't a resource's."""
    return _resources.get().parse(path)


def find_resource_target(address: ResourceAddress, principal: Principal) -> ResourceTarget:
    """Return what an address stands for; raises `Problem` for what this principal can't use."""
    return _resources.get().find(address, principal)
