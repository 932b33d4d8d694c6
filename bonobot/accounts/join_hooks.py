"""Functions of upper packages that are called when a user joins an organization."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from bonobot.core.extension_points import ExtensionList

if TYPE_CHECKING:
    from bonobot.accounts.models import Invitation, User

# Called in the transaction in which a user joins; `AgentsConfig.ready` registers one.
join_hooks: "ExtensionList[Callable[[Invitation, User], None]]" = ExtensionList()


def register_join_hook(hook: "Callable[[Invitation, User], None]") -> None:
    """Register a function to call when a user joins an organization."""
    join_hooks.register(hook)
