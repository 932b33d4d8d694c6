"""Provider kinds.

Each offers `connect(endpoint, loop)` and `settings(endpoint)`. Their libraries are
heavy and most are optional extras: nothing here imports them.
"""

import asyncio
import importlib
import importlib.util
from typing import Any, Protocol, cast

from agents.llm.interface import ModelEndpointConfig, ModelError
from bonobot.core.i18n.messages import format_message

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


class ModelProvider(Protocol):
    """What a provider's module offers."""

    def connect(
        self, endpoint: ModelEndpointConfig, loop: asyncio.AbstractEventLoop
    ) -> "ProviderConnection":
        """Return a connection for `loop`; opens no socket yet. Runs in a thread."""
        ...

    def build_settings(self, endpoint: ModelEndpointConfig) -> dict[str, Any]:
        """Return the library's settings of one request."""
        ...


class ProviderConnection(Protocol):
    """A provider's client with the models that were asked through it."""

    def model(self, endpoint: ModelEndpointConfig) -> Any:
        """Return the library's model for an endpoint."""
        ...

    async def close(self) -> None:
        """Close its sockets."""
        ...


def find_missing_package(kind: str) -> str:
    """Return what to install before a kind of endpoint can be used; "" where it is there."""
    _, library, extra = _KINDS.get(kind, ("", "", ""))
    try:
        found = not extra or importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:  # its parent package isn't there
        found = False
    return "" if found else f"pip install 'bonobot[{extra}]'"


def get_provider(kind: str) -> ModelProvider:
    """Load and return the provider of a kind of endpoint; raises ModelError `provider_missing`."""
    if remedy := find_missing_package(kind):
        raise ModelError(
            format_message(
                "Endpoints of the kind `{kind}` need a library that is not installed here.",
                kind=kind,
            ),
            code="provider_missing",
            remedy=format_message("Install it where sessions run: {remedy}", remedy=remedy),
            retryable=False,
        )
    return cast(ModelProvider, importlib.import_module(f"agents.llm.providers.{_KINDS[kind][0]}"))
