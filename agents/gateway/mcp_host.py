"""Forward servers' sampling, elicitation and roots requests to the client.

A client of the handshake era gets them over its connection. A modern client gets them as the result
of its request (`input_required`), while the server's call is suspended (`suspended_calls`). Servers
are only offered capabilities that the client declares. Each call has its own host, so concurrent
calls don't mix up their requests.
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
# Connections of one modern client to one server, for concurrent calls.
MOST_LANES = 8

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class GatewayHost(Host):
    """Answers the server during one call of a client.

    `capabilities` are the client's. Requests at another time are rejected.
    """

    def __init__(self, capabilities: Mapping[str, Any]) -> None:
        self._offered = capabilities
        self._ask: Ask | None = None

    def capabilities(self, endpoint: ServerEndpoint) -> Mapping[str, Any]:
        """Return the client's capabilities that are allowed for this server."""
        chosen = {name: how for name, how in self._offered.items() if name in endpoint.may_ask}
        extensions = self._offered.get("extensions")
        return chosen | ({"extensions": extensions} if isinstance(extensions, dict) else {})

    def can_be_asked(self, endpoint: ServerEndpoint) -> bool:
        """Tell whether this server may send this client any request."""
        return any(name in endpoint.may_ask for name in self._offered)

    @contextmanager
    def asking(self, ask: Ask) -> Iterator[None]:
        """Answer the server's requests with `send_request` during the block."""
        self._ask = ask
        try:
            yield
        finally:
            self._ask = None

    async def sampling(self, endpoint: ServerEndpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Forward a sampling request to the client."""
        return await self._asked(endpoint, "sampling", params)

    async def elicitation(
        self, endpoint: ServerEndpoint, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Forward an elicitation request to the client."""
        return await self._asked(endpoint, "elicitation", params)

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        """Forward a roots request to the client."""
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
    """The connections of one holder to one server, with the number of calls using or waiting."""

    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_LANES))
    taken: set[int] = field(default_factory=set)
    users: int = 0


class ExclusiveConnections:
    """Connections for modern clients' calls, each used by one call at a time.

    A request on a handshake era connection need not say which call it belongs to, so concurrent
    calls get separate connections. The first is the holder's regular connection; the others are
    kept for reuse and closed when idle.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, UUID | None], _HolderConnections] = {}

    @asynccontextmanager
    async def lane(self, holder: str, server_id: UUID | None) -> AsyncIterator[str]:
        """Wait for an unused connection to a server and yield its holder key."""
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
    """Return the host of one call."""
    return GatewayHost(_filter_capabilities(inbound))


def _filter_capabilities(inbound: GatewayRequest) -> Mapping[str, Any]:
    """Return the client's capabilities to forward; extensions only in the modern era."""
    said = inbound.capabilities
    return said if inbound.modern else {k: v for k, v in said.items() if k != "extensions"}


def list_supported_requests(capabilities: Mapping[str, Any]) -> frozenset[str]:
    """Return the kinds of requests that a client with these capabilities supports."""
    return frozenset(name for name in METHODS.values() if name in capabilities)


def supports_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Tell whether a client with these capabilities supports tasks."""
    extensions = capabilities.get("extensions")
    return isinstance(extensions, Mapping) and TASKS_EXTENSION in extensions
