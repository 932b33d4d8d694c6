"""One module for each provider's client library, loaded when an endpoint needs it.

Each offers `connect(endpoint, loop)` and `settings(endpoint)`. Their libraries are
heavy and most are optional extras: nothing here imports them.
"""

import asyncio
import importlib
import importlib.util
from typing import Any, Protocol, cast

from agents.llm.endpoints import Endpoint
from agents.llm.port import ModelError
from bonobot.lib.sayings import say

# Of each kind: our module, what it imports, and the extra that brings it ("" is always there).
_KINDS = {
    "openai": ("openai", "openai", ""),
    "responses": ("openai", "openai", ""),
    "azure": ("openai", "openai", ""),
    "anthropic": ("anthropic", "anthropic", "anthropic"),
    "google": ("google", "google.genai", "google"),
    "vertex": ("google", "google.genai", "google"),
    "bedrock": ("bedrock", "boto3", "bedrock"),
}


class Provider(Protocol):
    """What a provider's module offers."""

    def connect(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> "Connection":
        """Return a connection for `loop`; opens no socket yet. Runs in a thread."""
        ...

    def settings(self, endpoint: Endpoint) -> dict[str, Any]:
        """Return the library's settings of one request."""
        ...


class Connection(Protocol):
    """A provider's client with the models that were asked through it."""

    def model(self, endpoint: Endpoint) -> Any:
        """Return the library's model for an endpoint."""
        ...

    async def close(self) -> None:
        """Close its sockets."""
        ...


def missing(kind: str) -> str:
    """Return what to install before a kind of endpoint can be used; "" where it is there."""
    _, library, extra = _KINDS.get(kind, ("", "", ""))
    try:
        found = not extra or importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:  # its parent package isn't there
        found = False
    return "" if found else f"pip install 'bonobot[{extra}]'"


def provider(kind: str) -> Provider:
    """Load and return the provider of a kind of endpoint; raises ModelError `provider_missing`."""
    if remedy := missing(kind):
        raise ModelError(
            say(
                "Endpoints of the kind `{kind}` need a library that is not installed here.",
                kind=kind,
            ),
            code="provider_missing",
            remedy=say("Install it where sessions run: {remedy}", remedy=remedy),
            retryable=False,
        )
    return cast(Provider, importlib.import_module(f"agents.llm.providers.{_KINDS[kind][0]}"))
