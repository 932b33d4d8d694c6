"""Connections to model providers: one pool per address, credential and loop.

A provider's client never retries (the session does, where it is seen and counted), takes nothing
from the process's environment (an operator's OPENAI_… variables are not a tenant's), and connects
only where egress lets it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from agents.llm.port import Endpoint
from bonobot.lib.egress import check_url, guarded_client

MAX_ANSWER = 16 * 1024 * 1024  # bytes; a streamed token costs some 250 on the wire
KEPT = 64  # pools a loop keeps; a changed credential leaves its old one behind

Key = tuple[str, str, bool]

# What OpenAI itself calls `max_completion_tokens`, most others know as `max_tokens` only.
OPENAI_HOSTS = ("api.openai.com", ".openai.azure.com")


@dataclass
class Connection:
    """A provider's client with the models that were asked through it."""

    client: AsyncOpenAI
    host: str
    models: dict[str, OpenAIChatModel] = field(default_factory=dict)
    in_use: int = 0

    def model(self, name: str) -> OpenAIChatModel:
        """Return the library's model of this name."""
        if name not in self.models:
            self.models[name] = OpenAIChatModel(
                name, provider=self._provider(), profile=self._profile()
            )
        return self.models[name]

    def _profile(self) -> OpenAIModelProfile:
        # The schema goes out byte for byte; a stream that just ends has been cut, not finished.
        return OpenAIModelProfile(
            json_schema_transformer=None,
            openai_chat_streaming_requires_finish_reason=True,
            openai_chat_supports_max_completion_tokens=self.host.endswith(OPENAI_HOSTS),
        )

    def _provider(self) -> Provider[AsyncOpenAI]:
        if self.host == "api.openai.com":
            return OpenAIProvider(openai_client=self.client)
        # Knows which model families break chat-template tokens that a tool's result may carry.
        return OpenAICompatibleProvider(self.host, openai_client=self.client)


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, OrderedDict[Key, Connection]] = (
    WeakKeyDictionary()
)


@asynccontextmanager
async def model_at(endpoint: Endpoint) -> AsyncIterator[OpenAIChatModel]:
    """Give the library's model for an endpoint; its connection stays open until `close()`.

    Raises EgressDenied for a URL that may not be connected to.
    """
    check_url(endpoint.url, allow_private=endpoint.allow_private)
    pool = _pools.setdefault(asyncio.get_running_loop(), OrderedDict())
    key = (endpoint.url, endpoint.api_key, endpoint.allow_private)
    connection = pool.get(key) or pool.setdefault(key, _open(endpoint))
    pool.move_to_end(key)
    connection.in_use += 1
    try:
        yield connection.model(endpoint.model)
    finally:
        connection.in_use -= 1
        await _thin_out(pool)


async def close() -> None:
    """Close the connections of the running loop."""
    for connection in _pools.pop(asyncio.get_running_loop(), {}).values():
        await connection.client.close()


def warm() -> None:
    """Load what the first client and model load, so that they don't do it on the loop."""
    _open(Endpoint("openai")).model("none")


async def _thin_out(pool: OrderedDict[Key, Connection]) -> None:
    idle = [key for key, connection in pool.items() if not connection.in_use]
    for key in idle[: max(0, len(pool) - KEPT)]:
        await pool.pop(key).client.close()


def _open(endpoint: Endpoint) -> Connection:
    client = AsyncOpenAI(
        base_url=endpoint.url,
        api_key=endpoint.api_key or "none",  # it insists on one; `wire` leaves it out again
        max_retries=0,
        http_client=guarded_client(
            allow_private=endpoint.allow_private,
            read_s=endpoint.timeout_s,
            max_body=MAX_ANSWER,
        ),
    )
    # It reads OPENAI_ORG_ID, OPENAI_PROJECT_ID, OPENAI_ADMIN_KEY and OPENAI_CUSTOM_HEADERS by
    # itself and would send them to whatever address a tenant names.
    client.organization = client.project = client.admin_api_key = None
    client._custom_headers = {}
    return Connection(client, urlsplit(endpoint.url).hostname or endpoint.url)
