"""Registry of model providers.

Each provider module implements `ModelProvider`. Their libraries are heavy and mostly optional
extras, so modules are imported on demand.
"""

import asyncio
import importlib
import importlib.util
from typing import Any, Protocol, cast

from agents.llm.interface import ModelEndpointConfig, ModelError
from agents.llm.provider_kinds import PROVIDER_KINDS
from bonobot.core.i18n.messages import format_message


class ModelProvider(Protocol):
    """The interface of a provider's module."""

    def connect(
        self, endpoint: ModelEndpointConfig, loop: asyncio.AbstractEventLoop
    ) -> "ProviderConnection":
        """Return a connection for `loop`; opens no socket yet. Runs in a thread."""
        ...

    def build_settings(self, endpoint: ModelEndpointConfig) -> dict[str, Any]:
        """Return the library's settings for one request."""
        ...


class ProviderConnection(Protocol):
    """A connection to a provider."""

    def build_model(self, endpoint: ModelEndpointConfig) -> Any: ...

    async def close(self) -> None: ...


def find_missing_package(kind: str) -> str:
    """Return the command that installs a kind's missing library; "" if it is installed."""
    provider = PROVIDER_KINDS[kind]
    try:
        is_installed = not provider.library or bool(importlib.util.find_spec(provider.library))
    except ModuleNotFoundError:  # its parent package is missing
        is_installed = False
    return "" if is_installed else f"pip install 'bonobot[{provider.module}]'"


def get_provider(kind: str) -> ModelProvider:
    """Import the provider of a kind of endpoint; raises `ModelError` (`provider_missing`)."""
    if remedy := find_missing_package(kind):
        raise ModelError(
            format_message(
                "Endpoints of the kind `{kind}` need a library that isn't installed.",
                kind=kind,
            ),
            code="provider_missing",
            remedy=format_message("Install it where sessions run: {remedy}", remedy=remedy),
            retryable=False,
        )
    module_name = f"agents.llm.providers.{PROVIDER_KINDS[kind].module}"
    return cast(ModelProvider, importlib.import_module(module_name))
