"""Forward log messages that servers send outside of requests.

They go to the handshake sessions whose calls use the connection that they came on, once to each: a
session with a pending request on that connection has already received the message with it. Modern
clients get log messages only with their requests.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from agents.calls.redaction import redact_result
from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.client_request import build_notification, is_loud_enough
from bonobot.core.db.transactions import UNAVAILABLE_ERRORS
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.client.change_notifications import LogNotification
from mcp_servers.client.extension_points import log_listeners
from mcp_servers.client.jsonrpc import LOG_MESSAGE

if TYPE_CHECKING:
    from mcp.server.session import ServerSession

MAX_QUEUED = 256
# A session's access is checked at most this often.
CHECK_INTERVAL_S = 1.0


class LogReceiver(Protocol):
    """A session as far as log messages concern it."""

    caller: AuthenticatedClient | None
    log_level: str
    server_session: "ServerSession | None"


@dataclass
class _Subscriber:
    """A session's waiting messages, with the servers that sent them."""

    session: LogReceiver
    holders: set[str] = field(default_factory=set)
    # An empty list takes a fiftieth of an empty queue's memory, and most stay empty.
    messages: list[tuple[UUID, Mapping[str, Any]]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    checked_at: float = -CHECK_INTERVAL_S
    has_access: bool = False


class LogForwarder:
    """The sessions of this process that receive log messages, by the holders of connections."""

    def __init__(self) -> None:
        self._subscribers: dict[str, _Subscriber] = {}
        self._by_holder: defaultdict[str, set[str]] = defaultdict(set)

    def add_subscriber(self, session_id: str, session: LogReceiver, holder: str) -> None:
        """Forward what comes on the connections of a holder to a session."""
        if not self._subscribers and self.handle_notification not in log_listeners:
            log_listeners.append(self.handle_notification)
        subscriber = self._subscribers.get(session_id)
        if subscriber is None:
            subscriber = self._subscribers[session_id] = _Subscriber(session)
        subscriber.holders.add(holder)
        self._by_holder[holder].add(session_id)

    def remove_subscriber(self, session_id: str) -> None:
        """Stop forwarding to a session."""
        subscriber = self._subscribers.pop(session_id, None)
        if subscriber is None:
            return
        for holder in subscriber.holders:
            self._by_holder[holder].discard(session_id)
            if not self._by_holder[holder]:
                del self._by_holder[holder]
        if subscriber.task is not None:
            subscriber.task.cancel()
        if not self._subscribers:
            log_listeners.remove(self.handle_notification)

    def handle_notification(self, server_id: UUID, notification: LogNotification) -> None:
        """Queue a message for each session that hasn't received it; drop what comes too fast.

        On a connection of several sessions, a message during calls belongs to their sessions.
        """
        session_ids = self._by_holder.get(notification.holder, set())
        if notification.delivered and len(session_ids) > 1:
            return
        for session_id in session_ids - notification.delivered:
            subscriber = self._subscribers[session_id]
            if not is_loud_enough(notification.params.get("level"), subscriber.session.log_level):
                continue
            if len(subscriber.messages) < MAX_QUEUED:
                subscriber.messages.append((server_id, notification.params))
            if subscriber.task is None or subscriber.task.done():
                subscriber.task = get_runtime().create_task(
                    self._forward_messages(subscriber), name="forward logs"
                )

    async def _forward_messages(self, subscriber: _Subscriber) -> None:
        while subscriber.messages:
            server_id, params = subscriber.messages.pop(0)
            session, caller = subscriber.session, subscriber.session.caller
            if caller is None or session.server_session is None:
                continue
            if not await self._may_receive(subscriber, caller, server_id):
                continue
            redacted = redact_result(dict(params), caller.principal.organization_id)
            message = build_notification(LOG_MESSAGE, redacted)
            await session.server_session.send_notification(message)

    async def _may_receive(
        self, subscriber: _Subscriber, caller: AuthenticatedClient, server_id: UUID
    ) -> bool:
        """Tell whether the caller may still use the server, as of a second ago at most."""
        now = get_runtime().loop.time()
        if now - subscriber.checked_at >= CHECK_INTERVAL_S:
            subscriber.checked_at = now
            try:
                subscriber.has_access = await caller.has_same_access()
            except (Problem, *UNAVAILABLE_ERRORS):
                subscriber.has_access = False
        snapshot = caller.target.find_cached_snapshot()
        server = snapshot.servers.get(server_id) if snapshot is not None else None
        return subscriber.has_access and server is not None and server.enabled
