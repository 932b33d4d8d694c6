"""Pass sampling, elicitation, roots on to the client.

A client of the handshake era is asked over its own connection. One of the modern era can't be: its
request is answered with what is asked (`input_required`), while the server's answer is still
waited for (`held`). Either is offered to a server only where the client says that it can answer.
Each call has a host of its own, so calls beside each other are asked about each for itself.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from mcp.shared.exceptions import MCPError

from agents.gateway.client_request import GatewayRequest
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.host import Host, HostRequestRejected, HostRequestUnsupported
from mcp_servers.client.jsonrpc import TASKS_EXTENSION
from mcp_servers.client.server_requests import METHODS

NAMES = {asked: method for method, asked in METHODS.items()}
# Connections to one server for calls of one modern client that may be asked, beside each other.
MOST_LANES = 8

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class GatewayHost(Host):
    """Answers the server that one call of a client is made at, for as long as it is out.

    `capabilities` are the client's. A server that asks at another time is told no.
    """

    def __init__(self, capabilities: Mapping[str, Any]) -> None:
        self._offered = capabilities
        self._ask: Ask | None = None

    def capabilities(self, endpoint: ServerEndpoint) -> Mapping[str, Any]:
        """Return what this server may ask for: chosen for it, and the client can answer."""
        chosen = {name: how for name, how in self._offered.items() if name in endpoint.may_ask}
        extensions = self._offered.get("extensions")
        return chosen | ({"extensions": extensions} if isinstance(extensions, dict) else {})

    def can_be_asked(self, endpoint: ServerEndpoint) -> bool:
        """Tell whether this server may ask this client anything."""
        return any(name in endpoint.may_ask for name in self._offered)

    @contextmanager
    def asking(self, ask: Ask) -> Iterator[None]:
        """Have what the server asks meanwhile answered by `ask`."""
        self._ask = ask
        try:
            yield
        finally:
            self._ask = None

    async def sampling(self, endpoint: ServerEndpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Have the client's model answer."""
        return await self._asked(endpoint, "sampling", params)

    async def elicitation(
        self, endpoint: ServerEndpoint, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Have the client ask the person before it."""
        return await self._asked(endpoint, "elicitation", params)

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        """Have the client tell its folders."""
        return await self._asked(endpoint, "roots", {})

    async def _asked(
        self, endpoint: ServerEndpoint, what: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        ask = self._ask
        if ask is None or what not in self.capabilities(endpoint):
            raise HostRequestUnsupported("Nobody can be asked for this here.")
        try:
            return await ask(NAMES[what], params)  # type: ignore[index]
        except MCPError as error:
            raise HostRequestRejected(error.error.message, code="rejected") from error


@dataclass
class _HolderConnections:
    """The connections of one holder to one server: which are in use, and who uses or waits."""

    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_LANES))
    taken: set[int] = field(default_factory=set)
    users: int = 0


class ExclusiveConnections:
    """Connections for calls of modern clients that may be asked: each call alone on one.

    What a server asks on a connection of the handshake era need not say which call it is about, so
    a second call beside the first gets a connection of its own. A modern client can't tell: nothing
    of its requests hangs on a connection. The first lane is the usual connection; the others are
    kept for the next time, and closed like all that nobody uses.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, UUID | None], _HolderConnections] = {}

    @asynccontextmanager
    async def lane(self, holder: str, server_id: UUID | None) -> AsyncIterator[str]:
        """Yield who holds a connection to a server that no other call uses; waits for one."""
        key = holder, server_id
        lanes = self._of.setdefault(key, _HolderConnections())
        lanes.users += 1
        try:
            async with lanes.room:
                number = min(set(range(MOST_LANES)) - lanes.taken)
                lanes.taken.add(number)
                try:
                    yield f"{holder}:{number}" if number else holder
                finally:
                    lanes.taken.discard(number)
        finally:
            lanes.users -= 1
            if not lanes.users:
                del self._of[key]


def build_host(inbound: GatewayRequest) -> GatewayHost:
    """Return the host of one call of a request's client."""
    return GatewayHost(_filter_capabilities(inbound))


def _filter_capabilities(inbound: GatewayRequest) -> Mapping[str, Any]:
    """Return what is handed on of a client's capabilities: extensions are the modern era's."""
    said = inbound.capabilities
    return said if inbound.modern else {k: v for k, v in said.items() if k != "extensions"}


def list_supported_requests(capabilities: Mapping[str, Any]) -> frozenset[str]:
    """Return what a client with these capabilities can be asked for."""
    return frozenset(name for name in METHODS.values() if name in capabilities)


def supports_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Tell whether a client with these capabilities takes tasks in place of results."""
    extensions = capabilities.get("extensions")
    return isinstance(extensions, Mapping) and TASKS_EXTENSION in extensions
