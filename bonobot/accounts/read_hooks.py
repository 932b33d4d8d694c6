"""Functions of upper packages that are called when a principal reads rows over REST."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bonobot.core.extension_points import ExtensionList

if TYPE_CHECKING:
    from bonobot.accounts.principals import Principal

ReadHook = Callable[["Principal", str, Sequence[Any]], None]

# Called with the method and the rows before a response is sent; `AgentsConfig.ready` registers one.
read_hooks: ExtensionList[ReadHook] = ExtensionList()


def register_read_hook(hook: ReadHook) -> None:
    """Register a function to call when a principal reads rows over REST."""
    read_hooks.register(hook)
