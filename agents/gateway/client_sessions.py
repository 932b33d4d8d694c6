"""What is known of a connected client.

A modern request says everything. Of the handshake era, a client's session in this process holds
what it said before: what it can do, what it wants to be told, what it watches.
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
# A session that nobody used for so long, nor listened to, watches nothing: the SDK has ended it.
IDLE_S = 1_800.0


@dataclass
class GatewaySession:
    """What a client of the handshake era has said in its session; `owner` is its visitor's key."""

    owner: str = ""
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    client: str = ""
    level: str = USUAL_LEVEL
    watched: dict[str, WatchedResource] = field(default_factory=dict)
    # Digests of the lists as the client knows them, by what they are of.
    lists: dict[Kind, str] = field(default_factory=dict)
    channel: ServerSession | None = None
    used_at: float = 0.0


class GatewaySessionStore:
    """The clients of this process; sessions of the handshake era by their ids, bounded."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, GatewaySession] = OrderedDict()
        # Sessions by their ids whose stream for what comes unasked is open.
        self._open: Counter[str] = Counter()
        # The only client of a process that serves standard input and output.
        self._alone = f"stdio-{uuid4()}"

    def inbound(
        self, context: Context, visitor: AuthenticatedClient, *, modern: bool
    ) -> GatewayRequest:
        """Return a request with all that is known of its client."""
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
        """Return the id of the session that a request of the handshake era belongs to."""
        if context.request is None:
            return self._alone
        return context.request.headers.get(SESSION_ID) or ""

    def session(self, number: str, visitor: AuthenticatedClient) -> GatewaySession | None:
        """Return what is known of a visitor's own session."""
        found = self._sessions.get(number)
        return found if found is not None and found.owner == visitor.key else None

    def alone(self, visitor: AuthenticatedClient) -> GatewaySession | None:
        """Return what is known of the only client there is, on standard input and output."""
        return self.session(self._alone, visitor)

    def begun(self, context: Context, visitor: AuthenticatedClient) -> None:
        """Know a session from the word on by which it begins, so that it can be told things."""
        self._session(self.number(context), context).owner = visitor.key

    @contextmanager
    def open_stream(self, number: str) -> Iterator[None]:
        """Count a session's stream while the block runs: it is in use."""
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
        """Forget a session that is over, and watch nothing for it any more."""
        session = self._sessions.pop(number, None)
        if session is not None:
            leave(session.watched.values())
            session.watched.clear()

    def close(self) -> None:
        """Forget all sessions."""
        for number in list(self._sessions):
            self.forget(number)

    def set_level(self, inbound: GatewayRequest, level: str) -> None:
        """Have a session told of what servers log from this level on; raises `MCPError`."""
        if level not in LEVELS:
            raise build_invalid_params_error(f"`level` must be one of {', '.join(LEVELS)}")
        self._session(self.number(inbound.context), inbound.context).level = level

    def may_watch(self, inbound: GatewayRequest, uri: str) -> bool:
        """Tell whether a session doesn't watch a resource yet; raises `MCPError` for too many."""
        watched = self._session(self.number(inbound.context), inbound.context).watched
        if len(watched) >= MOST_WATCHED and uri not in watched:
            raise build_invalid_params_error(f"a session watches {MOST_WATCHED} resources at most")
        return uri not in watched

    def note(self, inbound: GatewayRequest, kind: Kind, listed: str) -> None:
        """Take note of a list as a session knows it now, so that it is told of another one."""
        self._session(self.number(inbound.context), inbound.context).lists[kind] = listed

    def subscribe(self, inbound: GatewayRequest, found: Mapping[str, WatchedResource]) -> None:
        """Have a session told when resources change, once its stream is open."""
        number = self.number(inbound.context)
        session = self._session(number, inbound.context)
        if not session.watched:
            get_runtime().loop.call_later(IDLE_S, self._expire, number)
        leave(session.watched[uri] for uri in found if uri in session.watched)
        session.watched |= found

    def unsubscribe(self, inbound: GatewayRequest, uri: str) -> None:
        """Have a session told of a resource no longer."""
        session = self._session(self.number(inbound.context), inbound.context)
        if (watched := session.watched.pop(uri, None)) is not None:
            leave([watched])

    def _expire(self, number: str) -> None:
        """Forget a session that is idle; look again later at one that isn't and watches."""
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
            if number:  # the request that opens it has no id yet
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
    """Return who owns the connections of a modern client: its principal, here, with its abilities.

    A server of the handshake era is told once what it may ask for.
    """
    return f"gateway:{visitor.key}:{compute_digest(to_canonical_json(declared))[:16]}"
