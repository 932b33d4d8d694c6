"""Hosting: what servers ask back goes on to the client whose request they work on (FEATURES X1).

A client of the handshake era is asked over its own connection. One of the modern era can't be: its
request is answered with what is asked (`input_required`), while the server's answer is still
waited for (`held`). Either is offered to a server only where the client says that it can answer.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp.shared.exceptions import MCPError

from bonobot.gateway.inbound import Inbound
from mcp_servers.connections.asked import METHODS
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.host import Host, NotSupported, Rejected
from mcp_servers.connections.wire import TASKS_EXTENSION

MOST_HOSTS = 10_000
NAMES = {asked: method for method, asked in METHODS.items()}

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class GatewayHost(Host):
    """Answers the servers that one client works with, one call after the other.

    `capabilities` are the client's. A server that asks outside of any call is told no.
    """

    def __init__(self, capabilities: Mapping[str, Any]) -> None:
        self._offered = capabilities
        self._ask: Ask | None = None
        self._turn = asyncio.Lock()

    def capabilities(self, endpoint: Endpoint) -> Mapping[str, Any]:
        """Return what this server may ask for: chosen for it, and the client can answer."""
        chosen = {name: how for name, how in self._offered.items() if name in endpoint.may_ask}
        extensions = self._offered.get("extensions")
        return chosen | ({"extensions": extensions} if isinstance(extensions, dict) else {})

    def can_be_asked(self, endpoint: Endpoint) -> bool:
        """Tell whether this server may ask this client anything."""
        return any(name in endpoint.may_ask for name in self._offered)

    @asynccontextmanager
    async def asking(self, ask: Ask) -> AsyncIterator[None]:
        """Have what servers ask meanwhile answered by `ask`; calls wait for each other.

        What a server asks on a connection that it shares doesn't say which call it is about.
        """
        async with self._turn:
            self._ask = ask
            try:
                yield
            finally:
                self._ask = None

    async def sampling(self, endpoint: Endpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Have the client's model answer."""
        return await self._asked(endpoint, "sampling", params)

    async def elicitation(self, endpoint: Endpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Have the client ask the person before it."""
        return await self._asked(endpoint, "elicitation", params)

    async def roots(self, endpoint: Endpoint) -> dict[str, Any]:
        """Have the client tell its folders."""
        return await self._asked(endpoint, "roots", {})

    async def _asked(
        self, endpoint: Endpoint, what: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        ask = self._ask
        if ask is None or what not in self.capabilities(endpoint):
            raise NotSupported("Nobody can be asked for this here.")
        try:
            return await ask(NAMES[what], params)  # type: ignore[index]
        except MCPError as error:
            raise Rejected(error.error.message, code="rejected") from error


class Hosts:
    """The hosts of this process by who holds the connections that they answer on; bounded."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, GatewayHost] = OrderedDict()

    def of(self, inbound: Inbound) -> GatewayHost:
        """Return the host of a request's client; the same one as long as connections may live."""
        host = self._kept.get(inbound.holder)
        if host is None:
            host = self._kept[inbound.holder] = GatewayHost(_offered(inbound))
            if len(self._kept) > MOST_HOSTS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(inbound.holder)
        return host


def _offered(inbound: Inbound) -> Mapping[str, Any]:
    """Return what is handed on of a client's capabilities: extensions are the modern era's."""
    said = inbound.capabilities
    return said if inbound.modern else {k: v for k, v in said.items() if k != "extensions"}


def askable(capabilities: Mapping[str, Any]) -> frozenset[str]:
    """Return what a client with these capabilities can be asked for."""
    return frozenset(name for name in METHODS.values() if name in capabilities)


def takes_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Tell whether a client with these capabilities takes tasks in place of results."""
    extensions = capabilities.get("extensions")
    return isinstance(extensions, Mapping) and TASKS_EXTENSION in extensions
