"""Clients: what is known of whoever sends a request, beside the request itself.

A modern request says everything. Of the handshake era, a client's session in this process holds
what it said before: what it can do, what it wants to be told, what it watches.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from mcp.server.session import ServerSession

from bonobot.gateway.inbound import (
    LEVELS,
    Context,
    Inbound,
    bad_params,
    client_name,
    declared_in,
    level_in,
    named_in,
)
from bonobot.gateway.visitors import Visitor
from bonobot.lib.canonical import canonical, digest

SESSION_ID = "mcp-session-id"
MOST_SESSIONS = 10_000
MOST_WATCHED = 1_000
USUAL_LEVEL = "debug"


@dataclass
class Session:
    """What a client of the handshake era has said in its session; `owner` is its visitor's key."""

    owner: str = ""
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    client: str = ""
    level: str = USUAL_LEVEL
    uris: set[str] = field(default_factory=set)
    channel: ServerSession | None = None


class Clients:
    """The clients of this process; sessions of the handshake era by their ids, bounded."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        # The only client of a process that serves standard input and output.
        self._alone = f"stdio-{uuid4()}"

    def inbound(self, context: Context, visitor: Visitor, *, modern: bool) -> Inbound:
        """Return a request with all that is known of its client."""
        params = context.params or {}
        if modern:
            meta = params.get("_meta")
            meta = meta if isinstance(meta, Mapping) else {}
            declared = declared_in(meta)
            return Inbound(
                visitor=visitor,
                context=context,
                modern=True,
                holder=_holder(visitor, declared),
                level=level_in(meta),
                params=params,
                capabilities=declared,
                client=named_in(meta),
            )
        number = self.number(context)
        session = self._session(number, context)
        session.owner = visitor.key
        return Inbound(
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

    def session(self, number: str, visitor: Visitor) -> Session | None:
        """Return what is known of a visitor's own session."""
        found = self._sessions.get(number)
        return found if found is not None and found.owner == visitor.key else None

    def alone(self, visitor: Visitor) -> Session | None:
        """Return what is known of the only client there is, on standard input and output."""
        return self.session(self._alone, visitor)

    def forget(self, number: str) -> None:
        """Forget a session that is over."""
        self._sessions.pop(number, None)

    def set_level(self, inbound: Inbound, level: str) -> None:
        """Have a session told of what servers log from this level on; raises `MCPError`."""
        if level not in LEVELS:
            raise bad_params(f"`level` must be one of {', '.join(LEVELS)}")
        self._session(self.number(inbound.context), inbound.context).level = level

    def subscribe(self, inbound: Inbound, uri: str, *, subscribed: bool) -> None:
        """Have a session told, or no longer, when a resource changes; raises `MCPError`."""
        watched = self._session(self.number(inbound.context), inbound.context).uris
        if not subscribed:
            watched.discard(uri)
        elif len(watched) < MOST_WATCHED:
            watched.add(uri)
        else:
            raise bad_params(f"a session watches {MOST_WATCHED} resources at most")

    def _session(self, number: str, context: Context) -> Session:
        session = self._sessions.get(number)
        if session is None:
            session = Session()
            if number:  # the request that opens it has no id yet
                self._sessions[number] = session
            if len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        if not session.client and (said := context.session.client_params) is not None:
            session.capabilities = said.capabilities.model_dump(by_alias=True, exclude_none=True)
            session.client = client_name(said.client_info.model_dump(exclude_none=True))
        session.channel = context.session
        if number:
            self._sessions.move_to_end(number)
        return session


def _holder(visitor: Visitor, declared: Mapping[str, Any]) -> str:
    """Return who owns the connections of a modern client: its principal, here, with its abilities.

    A server of the handshake era is told once what it may ask for.
    """
    return f"gateway:{visitor.key}:{digest(canonical(declared))[:16]}"
