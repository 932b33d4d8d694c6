"""OpenAI and what speaks alike: chat completions, the Responses API, Azure OpenAI.

The schema of a tool goes out byte for byte, and a stream that just ends has been cut, not finished.
"""

import asyncio
from typing import Any
from urllib.parse import urlsplit

from openai import AsyncAzureOpenAI, AsyncOpenAI, Omit
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider
from pydantic_ai.providers.azure import AzureProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from agents.llm.endpoints import Endpoint
from agents.llm.providers.http import client_for, timeout_of
from agents.llm.providers.openai_client import AzureClient, OpenAIClient

# What OpenAI itself calls `max_completion_tokens`, most others know as `max_tokens` only.
OPENAI_HOSTS = ("api.openai.com", ".openai.azure.com")


class Connection:
    """A client of one address and key."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._client = _client(endpoint)

    def model(self, endpoint: Endpoint) -> OpenAIChatModel | OpenAIResponsesModel:
        """Return the library's model for an endpoint."""
        kind = OpenAIResponsesModel if endpoint.kind == "responses" else OpenAIChatModel
        return kind(endpoint.model, provider=self._provider(endpoint), profile=_profile(endpoint))

    async def close(self) -> None:
        """Close its sockets."""
        await self._client.close()

    def _provider(self, endpoint: Endpoint) -> Provider[AsyncOpenAI]:
        if isinstance(self._client, AsyncAzureOpenAI):
            return AzureProvider(openai_client=self._client)
        host = urlsplit(endpoint.url).hostname or endpoint.url
        if host == "api.openai.com" or endpoint.kind == "responses":
            return OpenAIProvider(openai_client=self._client)
        # Knows which model families break chat-template tokens that a tool's result may carry.
        return OpenAICompatibleProvider(host, openai_client=self._client)


def _profile(endpoint: Endpoint) -> OpenAIModelProfile:
    host = urlsplit(endpoint.url).hostname or ""
    return OpenAIModelProfile(
        json_schema_transformer=None,
        openai_chat_streaming_requires_finish_reason=True,
        openai_chat_supports_max_completion_tokens=host.endswith(OPENAI_HOSTS),
    )


def connect(endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> Connection:
    """Return a connection; opens no socket yet."""
    return Connection(endpoint)


def settings(endpoint: Endpoint) -> dict[str, Any]:
    """Return the library's settings of one request."""
    headers: dict[str, Any] = {"User-Agent": "bonobot"}
    if not endpoint.api_key:
        headers["Authorization"] = Omit()
    found: dict[str, Any] = {"timeout": timeout_of(endpoint), "extra_headers": headers}
    if endpoint.kind == "responses":
        # What the model thought comes back sealed with each answer: the provider need not keep it.
        found["openai_store"] = False
    return found


def _client(endpoint: Endpoint) -> AsyncOpenAI:
    common: dict[str, Any] = {
        "api_key": endpoint.api_key or "none",  # it insists on one; `settings` leaves it out again
        "max_retries": 0,
        "http_client": client_for(endpoint),
    }
    if endpoint.kind == "azure" and endpoint.api_version:
        azure = AzureClient(azure_endpoint=endpoint.url, api_version=endpoint.api_version, **common)
        azure._azure_ad_token = None
        return _unspoiled(azure)
    url = f"{endpoint.url.rstrip('/')}/openai/v1" if endpoint.kind == "azure" else endpoint.url
    return _unspoiled(OpenAIClient(base_url=url, **common))


def _unspoiled(client: AsyncOpenAI) -> AsyncOpenAI:
    """Take back what it read from the environment by itself.

    It would send OPENAI_ORG_ID, OPENAI_PROJECT_ID, OPENAI_ADMIN_KEY and OPENAI_CUSTOM_HEADERS to
    whatever address a tenant names.
    """
    client.organization = client.project = client.admin_api_key = None
    client._custom_headers = {}
    return client
