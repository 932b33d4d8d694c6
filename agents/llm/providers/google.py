"""Google's Gemini models: the Gemini API by key, Vertex AI by a service account."""

import asyncio
from typing import Any

import httpx2
from google.genai.client import Client
from google.genai.types import HttpOptions
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.profiles.google import GoogleModelProfile
from pydantic_ai.providers.google import GoogleProvider

from agents.llm.endpoints import Endpoint
from agents.llm.providers.http import client_for
from agents.llm.providers.service_accounts import ServiceAccount

# `agents.llm.schemas` has written the schema in Google's words before it comes here.
PROFILE = GoogleModelProfile(json_schema_transformer=None)


class Connection:
    """A client of one address and credential."""

    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._http = client_for(endpoint)
        options = HttpOptions(
            base_url=endpoint.url,
            httpx_async_client=self._http,
            timeout=round(endpoint.timeout_s * 1000),
        )
        self._client = Client(http_options=options, **_credentials(endpoint, self._http, loop))
        # GOOGLE_API_USE_MTLS_ENDPOINT of the process would send requests to another host.
        self._client._api_client._async_httpx_use_mtls_endpoint = False

    def model(self, endpoint: Endpoint) -> GoogleModel:
        """Return the library's model for an endpoint."""
        provider = GoogleProvider(client=self._client)
        return GoogleModel(endpoint.model, provider=provider, profile=PROFILE)

    async def close(self) -> None:
        """Close its sockets."""
        await self._http.aclose()


def connect(endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> Connection:
    """Return a connection; opens no socket yet."""
    return Connection(endpoint, loop)


def settings(endpoint: Endpoint) -> dict[str, Any]:
    """Return the library's settings of one request."""
    return {"timeout": endpoint.timeout_s, "extra_headers": {"User-Agent": "bonobot"}}


def _credentials(
    endpoint: Endpoint, http: httpx2.AsyncClient, loop: asyncio.AbstractEventLoop
) -> dict[str, Any]:
    """Return who asks; each member is said, since what isn't is looked for in the environment."""
    if endpoint.kind == "google":
        return {"vertexai": False, "api_key": endpoint.api_key or "none"}
    account = ServiceAccount(endpoint, http, loop)
    return {
        "vertexai": True,
        "credentials": account,
        "project": account.project,
        "location": endpoint.region or "global",
    }
