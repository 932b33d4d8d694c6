"""State of connected clients.

A modern request carries all of it. For a client of the handshake era, a session in this process
holds its capabilities, log level and watched resources.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from mcp.server.session import ServerSession

from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.client_request import (
    LEVELS,
    Context,
    GatewayRequest,
    build_invalid_params_error,
    format_client_name,
    read_capabilities,
    read_client_name,
    read_log_level,
)
from agents.gateway.handlers import Kind
from agents.gateway.resource_subscriptions import WatchedResource, leave
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json

SESSION_ID = "mcp-session-id"
MOST_SESSIONS = 10_000
MOST_WATCHED = 1_000
USUAL_LEVEL = "debug"
# A session that is unused for this long has been ended by the SDK.
IDLE_S = 1_800.0


@dataclass
class GatewaySession:
    """The state of a handshake era client's session; `owner_key` is its caller's key."""

    owner: str = ""
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    client: str = ""
    level: str = USUAL_LEVEL
    watched: dict[str, WatchedResource] = field(default_factory=dict)
    # Digests of the lists that the client knows, by kind.
    lists: dict[Kind, str] = field(default_factory=dict)
    channel: ServerSession | None = None
    used_at: float = 0.0


class GatewaySessionStore:
    """The sessions of this process's handshake era clients, by id, limited in number."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, GatewaySession] = OrderedDict()
        # Number of open notification streams, by session id.
        self._open: Counter[str] = Counter()
        # The session id of the only client on stdio.
        self._alone = f"stdio-{uuid4()}"

    def inbound(
        self, context: Context, visitor: AuthenticatedClient, *, modern: bool
    ) -> GatewayRequest:
        """Return a request with its client's state."""
        params = context.params or {}
        if modern:
            meta = params.get("_meta")
            meta = meta if isinstance(meta, Mapping) else {}
            declared = read_capabilities(meta)
            return GatewayRequest(
                visitor=visitor,
                context=context,
                modern=True,
                holder=_build_holder(visitor, declared),
                level=read_log_level(meta),
                params=params,
                capabilities=declared,
                client=read_client_name(meta),
            )
        number = self.number(context)
        session = self._session(number, context)
        session.owner = visitor.key
        return GatewayRequest(
            visitor=visitor,
            context=context,
            modern=False,
            holder=f"gateway:{number}",
            level=session.level,
            params=params,
            capabilities=session.capabilities,
            client=session.client,
        )

    def number(self, context: Context) -> str:
        """Return the session id of a request of the handshake era."""
        if context.request is None:
            return self._alone
        return context.request.headers.get(SESSION_ID) or ""

    def session(self, number: str, visitor: AuthenticatedClient) -> GatewaySession | None:
        """Find a session of the caller."""
        found = self._sessions.get(number)
        return found if found is not None and found.owner == visitor.key else None

    def alone(self, visitor: AuthenticatedClient) -> GatewaySession | None:
        """Find the session of the only client on stdio."""
        return self.session(self._alone, visitor)

    def begun(self, context: Context, visitor: AuthenticatedClient) -> None:
        """Register a session when it is initialized, so that it can be notified."""
        self._session(self.number(context), context).owner = visitor.key

    @contextmanager
    def open_stream(self, number: str) -> Iterator[None]:
        """Mark a session's stream as open for the duration of the block."""
        self._open[number] += 1
        try:
            yield
        finally:
            self._open[number] -= 1
            if not self._open[number]:
                del self._open[number]
            if (session := self._sessions.get(number)) is not None:
                session.used_at = get_runtime().loop.time()

    def forget(self, number: str) -> None:
        """Delete a session and its resource watches."""
        session = self._sessions.pop(number, None)
        if session is not None:
            leave(session.watched.values())
            session.watched.clear()

    def close(self) -> None:
        """Delete all sessions."""
        for number in list(self._sessions):
            self.forget(number)

    def set_level(self, inbound: GatewayRequest, level: str) -> None:
        """Set a session's minimum log level; raises `MCPError`."""
        if level not in LEVELS:
            raise build_invalid_params_error(f"`level` must be one of {', '.join(LEVELS)}")
        self._session(self.number(inbound.context), inbound.context).level = level

    def may_watch(self, inbound: GatewayRequest, uri: str) -> bool:
        """Tell whether a session doesn't watch a resource yet; raises `MCPError` at the limit."""
        watched = self._session(self.number(inbound.context), inbound.context).watched
        if len(watched) >= MOST_WATCHED and uri not in watched:
            raise build_invalid_params_error(f"a session watches {MOST_WATCHED} resources at most")
        return uri not in watched

    def note(self, inbound: GatewayRequest, kind: Kind, listed: str) -> None:
        """Record a list's digest, so that the session is notified of changes."""
        self._session(self.number(inbound.context), inbound.context).lists[kind] = listed

    def subscribe(self, inbound: GatewayRequest, found: Mapping[str, WatchedResource]) -> None:
        """Add resource watches to a session; it is notified while its stream is open."""
        number = self.number(inbound.context)
        session = self._session(number, inbound.context)
        if not session.watched:
            get_runtime().loop.call_later(IDLE_S, self._expire, number)
        leave(session.watched[uri] for uri in found if uri in session.watched)
        session.watched |= found

    def unsubscribe(self, inbound: GatewayRequest, uri: str) -> None:
        """Remove a resource watch from a session."""
        session = self._session(self.number(inbound.context), inbound.context)
        if (watched := session.watched.pop(uri, None)) is not None:
            leave([watched])

    def _expire(self, number: str) -> None:
        """Delete an idle session; check again later if it is in use."""
        session, now = self._sessions.get(number), get_runtime().loop.time()
        if session is None or not session.watched:
            return
        if number in self._open or now - session.used_at < IDLE_S:
            get_runtime().loop.call_later(IDLE_S, self._expire, number)
        else:
            self.forget(number)

    def _session(self, number: str, context: Context) -> GatewaySession:
        session = self._sessions.get(number)
        if session is None:
            session = GatewaySession()
            if number:  # the initialize request has no id yet
                self._sessions[number] = session
            if len(self._sessions) > MOST_SESSIONS:
                self.forget(next(iter(self._sessions)))
        if not session.client and (said := context.session.client_params) is not None:
            session.capabilities = said.capabilities.model_dump(by_alias=True, exclude_none=True)
            session.client = format_client_name(said.client_info.model_dump(exclude_none=True))
        session.channel = context.session
        session.used_at = get_runtime().loop.time()
        if number:
            self._sessions.move_to_end(number)
        return session


def _build_holder(visitor: AuthenticatedClient, declared: Mapping[str, Any]) -> str:
    """Return the key that owns a modern client's connections: its caller and its capabilities.

    A server of the handshake era is told the capabilities only once per connection.
    """
    return f"gateway:{visitor.key}:{compute_digest(to_canonical_json(declared))[:16]}"
