"""How MCP clients are set up with a new token: the gateway, which lies above, knows."""

from collections.abc import Callable
from typing import Any

from bonobot.accounts.models import Token
from bonobot.core.extension_points import ExtensionPoint

# From a token and its text to the context of the panel that is shown with it, once.
TokenSnippetsBuilder = Callable[[Token, str], dict[str, Any]]
_build: ExtensionPoint[TokenSnippetsBuilder] = ExtensionPoint(
    "builder of client snippets", registered_by="agents"
)


def register_token_snippets(build: TokenSnippetsBuilder) -> None:
    """Set what builds the snippets of a new token."""
    _build.register(build)


def build_token_snippets(token: Token, text: str) -> dict[str, Any]:
    """Return the snippets' context; raises `ImproperlyConfigured` where nothing is registered."""
    return _build.get()(token, text)
