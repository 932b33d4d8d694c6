"""A connection pool that records notifications, and frames of streams."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

from mcp_servers.client.change_notifications import ChangeNotification
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import Clock, http
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RecordedRequest

WATCH = "watch:test"
LIST_CHANGED_CAPABILITIES = {"tools": {"listChanged": True}}
CHANGED = "notifications/tools/list_changed"
Events = AsyncIterator[bytes]


class EventRecorder:
    """Records the notifications of a connection pool."""

    def __init__(self) -> None:
        self.received: list[tuple[UUID, ChangeNotification]] = []
        self.granted: list[frozenset[str]] = []
        self.connections = ConnectionPool(clock=Clock(), on_notification=self._record)

    def _record(self, server_id: UUID, notification: ChangeNotification) -> None:
        self.received.append((server_id, notification))

    @property
    def notifications(self) -> list[ChangeNotification]:
        return [notification for _, notification in self.received]

    async def listen(self, endpoint: ServerEndpoint, holder: str = WATCH) -> None:
        async def handle_open(granted: frozenset[str]) -> None:
            self.granted.append(granted)

        await self.connections.listen(endpoint, holder=holder, on_open=handle_open)


def build_discovery(**capabilities: Any) -> dict[str, Any]:
    return {"capabilities": capabilities or LIST_CHANGED_CAPABILITIES}


def modern_http(url: str, **capabilities: Any) -> ServerEndpoint:
    return http(url, era="modern", discovery=build_discovery(**capabilities))


def frame(request: RecordedRequest, method: str, number: Any = None, **params: Any) -> bytes:
    """Return one notification on the stream of a request."""
    meta = {"io.modelcontextprotocol/subscriptionId": request.id if number is None else number}
    return raw_http_server.event(
        {"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": meta}}
    )


def acknowledgement(request: RecordedRequest, **granted: bool) -> bytes:
    granted = granted or {"toolsListChanged": True}
    return frame(request, "notifications/subscriptions/acknowledged", notifications=granted)


def end(request: RecordedRequest) -> bytes:
    return raw_http_server.event({"jsonrpc": "2.0", "id": request.id, "result": {}})


def stream(
    *parts: Callable[[RecordedRequest], bytes], hold: bool = False
) -> Callable[[RecordedRequest], Events]:
    """Return a handler that streams these events, then keeps the stream open or breaks it off."""

    async def answer(request: RecordedRequest) -> Events:
        yield raw_http_server.STREAM
        for part in parts:
            yield part(request)
        if hold:
            await asyncio.Event().wait()

    return answer


def notice(method: str = CHANGED, **params: Any) -> Callable[[RecordedRequest], bytes]:
    return lambda request: raw_http_server.event(
        {"jsonrpc": "2.0", "method": method, "params": params}
    )
