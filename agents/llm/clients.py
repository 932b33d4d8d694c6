"""Connections to model providers: one pool per address, credential and loop.

A provider's client never retries (the session does, where it is seen and counted), takes nothing
from the process's environment (an operator's OPENAI_… or AWS_… variables are not a tenant's), and
connects only where egress lets it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from agents.llm import providers
from agents.llm.endpoints import Endpoint
from bonobot.lib.egress import check_url

KEPT = 64  # pools a loop keeps; a changed credential leaves its old one behind

Key = tuple[object, ...]


@dataclass
class Pooled:
    """A connection with the models that were asked through it."""

    connection: providers.Connection
    models: dict[str, Any] = field(default_factory=dict)
    in_use: int = 0

    def model(self, endpoint: Endpoint) -> Any:
        """Return the library's model of this name."""
        if endpoint.model not in self.models:
            self.models[endpoint.model] = self.connection.model(endpoint)
        return self.models[endpoint.model]


@dataclass
class Pool:
    """The connections of one loop, the least recently used first."""

    kept: OrderedDict[Key, Pooled] = field(default_factory=OrderedDict)
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()


@asynccontextmanager
async def model_at(endpoint: Endpoint) -> AsyncIterator[Any]:
    """Give the library's model for an endpoint; its connection stays open until `close()`.

    Raises EgressDenied for a URL that may not be connected to, ModelError for a provider whose
    library isn't there.
    """
    check_url(endpoint.url, allow_private=endpoint.allow_private)
    pool = _pools.setdefault(asyncio.get_running_loop(), Pool())
    key = _key(endpoint)
    pooled = pool.kept.get(key) or await _opened(pool, key, endpoint)
    pool.kept.move_to_end(key)
    pooled.in_use += 1
    try:
        yield pooled.model(endpoint)
    finally:
        pooled.in_use -= 1
        await _thin_out(pool)


async def close() -> None:
    """Close the connections of the running loop."""
    pool = _pools.pop(asyncio.get_running_loop(), None)
    for pooled in pool.kept.values() if pool else ():
        await pooled.connection.close()


async def _opened(pool: Pool, key: Key, endpoint: Endpoint) -> Pooled:
    """Open a connection in a thread: a provider's library takes up to seconds to load."""
    async with pool.opening:
        if key not in pool.kept:
            loop = asyncio.get_running_loop()
            pool.kept[key] = await asyncio.to_thread(_open, endpoint, loop)
        return pool.kept[key]


def _open(endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> Pooled:
    pooled = Pooled(providers.provider(endpoint.kind).connect(endpoint, loop))
    pooled.model(endpoint)  # it loads more, and this is the thread for that
    return pooled


def _key(endpoint: Endpoint) -> Key:
    return (
        endpoint.kind,
        endpoint.url,
        endpoint.region,
        endpoint.access_key_id,
        endpoint.api_key,
        endpoint.api_version,
        endpoint.allow_private,
        endpoint.timeout_s,
    )


async def _thin_out(pool: Pool) -> None:
    idle = [key for key, pooled in pool.kept.items() if not pooled.in_use]
    for key in idle[: max(0, len(pool.kept) - KEPT)]:
        await pool.kept.pop(key).connection.close()
