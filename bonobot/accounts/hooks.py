"""Functions of upper packages that are called when a user joins, and when a principal reads."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bonobot.core.extension_points import ExtensionList

if TYPE_CHECKING:
    from bonobot.accounts.models import Invitation, User
    from bonobot.accounts.principals import Principal

JoinHook = Callable[["Invitation", "User"], None]
ReadHook = Callable[["Principal", str, Sequence[Any]], None]

# Called in the transaction in which a user joins an organization.
join_hooks: ExtensionList[JoinHook] = ExtensionList()
# Called with the method and the rows before a REST response is sent.
read_hooks: ExtensionList[ReadHook] = ExtensionList()


def register_join_hook(hook: JoinHook) -> None:
    """Register a function to call when a user joins an organization."""
    join_hooks.register(hook)


def register_read_hook(hook: ReadHook) -> None:
    """Register a function to call when a principal reads rows over REST."""
    read_hooks.register(hook)
