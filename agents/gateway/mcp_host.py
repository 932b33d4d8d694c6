"""Forward servers' sampling, elicitation and roots requests to the client.

A client of the handshake era gets them over its connection. A modern client gets them as the result
of its request (`input_required`), while the server's call is suspended (`suspended_calls`). A
request that the client doesn't support is refused. Each call has its own host, so concurrent calls
don't mix up their requests.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from mcp.shared.exceptions import MCPError

from agents.gateway.client_request import GatewayRequest
from mcp_servers.client.answer_server_requests import (
    Host,
    HostRequestRejected,
    HostRequestUnsupported,
    can_answer,
)
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.jsonrpc import TASKS_EXTENSION
from mcp_servers.client.mcp_extensions import select_relayed_extensions
from mcp_servers.client.server_request_kinds import KINDS_BY_METHOD

METHODS_BY_CAPABILITY = {capability: method for method, capability in KINDS_BY_METHOD.items()}
# Connections of one modern client to one server, for concurrent calls.
MAX_CONNECTIONS = 8

RequestSender = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class GatewayHost(Host):
    """Answers the server during one call of a client.

    `capabilities` are the client's. Requests at another time are rejected.
    """

    def __init__(self, capabilities: Mapping[str, Any], *, is_modern: bool = True) -> None:
        self._client_capabilities = capabilities
        self._is_modern = is_modern
        self._send_request: RequestSender | None = None

    def capabilities(self, endpoint: ServerEndpoint) -> Mapping[str, Any]:
        """Return the client's capabilities that are allowed for this server."""
        if not self._client_capabilities:
            return {}
        selected_capabilities = {
            name: value
            for name, value in self._client_capabilities.items()
            if name in endpoint.allowed_requests
        }
        extensions = select_relayed_extensions(self._client_capabilities)
        if self._is_modern and supports_tasks(self._client_capabilities):
            extensions = {TASKS_EXTENSION: {}, **extensions}
        return selected_capabilities | ({"extensions": extensions} if extensions else {})

    def can_be_asked(self, endpoint: ServerEndpoint) -> bool:
        """Tell whether this server may send this client any request."""
        return any(name in endpoint.allowed_requests for name in self._client_capabilities)

    def needs_handshake(self, endpoint: ServerEndpoint) -> bool:
        """Tell whether the server may send requests to a client of the handshake era."""
        return not self._is_modern and self.can_be_asked(endpoint)

    @contextmanager
    def answer_with(self, send_request: RequestSender) -> Iterator[None]:
        """Answer the server's requests with `send_request` during the block."""
        self._send_request = send_request
        try:
            yield
        finally:
            self._send_request = None

    async def sampling(self, endpoint: ServerEndpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Forward a sampling request to the client."""
        return await self._ask_client(endpoint, "sampling", params)

    async def elicitation(
        self, endpoint: ServerEndpoint, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Forward an elicitation request to the client."""
        return await self._ask_client(endpoint, "elicitation", params)

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        """Forward a roots request to the client."""
        return await self._ask_client(endpoint, "roots", {})

    async def _ask_client(
        self, endpoint: ServerEndpoint, capability: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        send_request = self._send_request
        if send_request is None or not can_answer(self.capabilities(endpoint), capability, params):
            raise HostRequestUnsupported("The client doesn't support this request.")
        try:
            return await send_request(METHODS_BY_CAPABILITY[capability], params)  # type: ignore[index]
        except MCPError as error:
            raise HostRequestRejected(error.error.message, code="rejected") from error


@dataclass
class _HolderConnections:
    """The connections of one holder to one server, with the number of calls using or waiting."""

    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONNECTIONS))
    used_numbers: set[int] = field(default_factory=set)
    users: int = 0


class ExclusiveConnections:
    """Connections for modern clients' calls, each used by one call at a time.

    A request on a handshake era connection need not say which call it belongs to, so concurrent
    calls get separate connections. The first is the holder's regular connection; the others are
    kept for reuse and closed when idle.
    """

    def __init__(self) -> None:
        self._connections: dict[tuple[str, UUID | None], _HolderConnections] = {}

    @asynccontextmanager
    async def acquire_connection(self, holder: str, server_id: UUID | None) -> AsyncIterator[str]:
        """Wait for an unused connection to a server and yield its holder key."""
        key = holder, server_id
        connections = self._connections.setdefault(key, _HolderConnections())
        connections.users += 1
        try:
            async with connections.slots:
                index = min(set(range(MAX_CONNECTIONS)) - connections.used_numbers)
                connections.used_numbers.add(index)
                try:
                    yield f"{holder}:{index}" if index else holder
                finally:
                    connections.used_numbers.discard(index)
        finally:
            connections.users -= 1
            if not connections.users:
                del self._connections[key]


def build_host(inbound: GatewayRequest) -> GatewayHost:
    """Return the host of one call."""
    return GatewayHost(inbound.capabilities, is_modern=inbound.is_modern)


def supports_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Tell whether a client with these capabilities supports tasks."""
    extensions = capabilities.get("extensions")
    return isinstance(extensions, Mapping) and TASKS_EXTENSION in extensions
