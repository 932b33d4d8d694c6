"""What upper packages register for accounts.

Functions that are called when a user joins and when a principal reads, and the setup snippets of
MCP clients that are shown with a new token.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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
_snippets_builder: ExtensionPoint[TokenSnippetsBuilder] = ExtensionPoint(
    "builder of client snippets", registered_by="agents"
)


def register_join_hook(hook: JoinHook) -> None:
    """Register a function to call when a user joins an organization."""
    join_hooks.register(hook)


def register_read_hook(hook: ReadHook) -> None:
    """Register a function to call when a principal reads rows over REST."""
    read_hooks.register(hook)


def register_response_hook(hook: ResponseHook) -> None:
    """Register a function to call with errors and responses to writes over REST."""
    response_hooks.register(hook)


def register_token_snippets(build: TokenSnippetsBuilder) -> None:
    """Register the function that builds the snippets."""
    _snippets_builder.register(build)


def build_token_snippets(token: "Token", text: str) -> dict[str, Any]:
    """Return the snippets' context; raises `ImproperlyConfigured` if none is registered."""
    return _snippets_builder.get()(token, text)
