"""Extension point for the setup snippets of MCP clients, shown with a new token."""

from collections.abc import Callable
from typing import Any

from bonobot.accounts.models import Token
from bonobot.core.extension_points import ExtensionPoint

# Takes a token and its text; returns the context of the panel shown with it.
TokenSnippetsBuilder = Callable[[Token, str], dict[str, Any]]
_build: ExtensionPoint[TokenSnippetsBuilder] = ExtensionPoint(
    "builder of client snippets", registered_by="agents"
)


def register_token_snippets(build: TokenSnippetsBuilder) -> None:
    _build.register(build)


def build_token_snippets(token: Token, text: str) -> dict[str, Any]:
    """Return the snippets' context; raises `ImproperlyConfigured` if none is registered."""
    return _build.get()(token, text)
