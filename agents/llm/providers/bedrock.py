"""Amazon Bedrock's Converse API, for every model family that is served there."""

import asyncio
from typing import Any

from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.bedrock import BedrockModelProfile, BedrockProvider

from agents.llm.endpoints import Endpoint
from agents.llm.providers.boto import GuardedSession, bedrock_client
from agents.llm.providers.http import client_for

# The schema of a tool goes out as its server wrote it.
PROFILE = BedrockModelProfile(json_schema_transformer=None)


class Connection:
    """A client of one region, address and credential."""

    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._http = client_for(endpoint)
        session = GuardedSession(self._http, endpoint.timeout_s, loop)
        self._client = bedrock_client(endpoint, session)

    def model(self, endpoint: Endpoint) -> BedrockConverseModel:
        """Return the library's model for an endpoint."""
        provider = BedrockProvider(bedrock_client=self._client)
        return BedrockConverseModel(endpoint.model, provider=provider, profile=PROFILE)

    async def close(self) -> None:
        """Close its sockets."""
        await self._http.aclose()


def connect(endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> Connection:
    """Return a connection; opens no socket yet."""
    return Connection(endpoint, loop)


def settings(endpoint: Endpoint) -> dict[str, Any]:
    """Return the library's settings of one request."""
    return {}
