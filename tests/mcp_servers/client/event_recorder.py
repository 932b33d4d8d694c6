"""Connections that keep what they hear, and the frames of streams."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

from mcp_servers.client.change_notifications import ChangeNotification
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import Clock, http
from tests.servers import raw_http_server
from tests.servers.raw_http_server import Asked

WATCH = "watch:test"
TOLD = {"tools": {"listChanged": True}}
CHANGED = "notifications/tools/list_changed"
Events = AsyncIterator[bytes]


class Ears:
    """Connections whose notices are kept, and one stream at a time."""

    def __init__(self) -> None:
        self.heard: list[tuple[UUID, ChangeNotification]] = []
        self.granted: list[frozenset[str]] = []
        self.connections = ConnectionPool(clock=Clock(), on_notification=self._hear)

    def _hear(self, server_id: UUID, notice: ChangeNotification) -> None:
        self.heard.append((server_id, notice))

    @property
    def notices(self) -> list[ChangeNotification]:
        return [notice for _, notice in self.heard]

    async def listen(self, endpoint: ServerEndpoint, holder: str = WATCH) -> None:
        async def opened(granted: frozenset[str]) -> None:
            self.granted.append(granted)

        await self.connections.listen(endpoint, holder=holder, on_open=opened)


def discovered(**capabilities: Any) -> dict[str, Any]:
    return {"capabilities": capabilities or TOLD}


def modern_http(url: str, **capabilities: Any) -> ServerEndpoint:
    return http(url, era="modern", discovery=discovered(**capabilities))


def frame(asked: Asked, method: str, number: Any = None, **params: Any) -> bytes:
    """Return one notification on the stream of `asked`."""
    meta = {"io.modelcontextprotocol/subscriptionId": asked.id if number is None else number}
    return raw_http_server.event(
        {"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": meta}}
    )


def acknowledgement(asked: Asked, **granted: bool) -> bytes:
    granted = granted or {"toolsListChanged": True}
    return frame(asked, "notifications/subscriptions/acknowledged", notifications=granted)


def end(asked: Asked) -> bytes:
    return raw_http_server.event({"jsonrpc": "2.0", "id": asked.id, "result": {}})


def stream(*parts: Callable[[Asked], bytes], hold: bool = False) -> Callable[[Asked], Events]:
    """Return what answers a request with these events; held open, or else broken off."""

    async def answer(asked: Asked) -> Events:
        yield raw_http_server.STREAM
        for part in parts:
            yield part(asked)
        if hold:
            await asyncio.Event().wait()

    return answer


def notice(method: str = CHANGED, **params: Any) -> Callable[[Asked], bytes]:
    return lambda asked: raw_http_server.event(
        {"jsonrpc": "2.0", "method": method, "params": params}
    )
