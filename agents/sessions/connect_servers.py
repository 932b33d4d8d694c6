"""Connect the servers of a run when it starts, in parallel and with a short deadline.

Servers of the handshake era are connected, expired catalogs are refreshed, and so are those of
servers that failed. A server that needs longer is refreshed in the background, and the run starts
without it. stdio servers start at the first call, and modern servers need no connection.

Servers that people connect or disconnect between two turns are reported to the model.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.db import Error as DatabaseFault
from django.db.models import CharField, UUIDField
from django.utils import timezone

from agents.calls.connections import connect_server, release_connections, set_connection_owner
from agents.calls.definitions import ServerFacts
from agents.calls.explain import NoToolsReason, find_no_tools_reason
from agents.calls.snapshots import CallSnapshot, get_snapshot_cache
from agents.models import Agent, Inbox, Session
from agents.sessions.leases import SessionLease
from agents.sessions.tool_calls import build_holder_key
from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.types import Actor
from mcp_servers.models import Server
from mcp_servers.refresh_definitions import get_refresher, is_catalog_expired

if TYPE_CHECKING:
    from agents.sessions.run_context import RunContext

logger = logging.getLogger(__name__)

SESSION_START = Actor(kind="system", id="session_start", label="session start")
CONNECTED, DISCONNECTED = "server_connected", "server_disconnected"
# Server names by id, as stored in steps.
ServerNames = Mapping[str, str]
# The reason of a server that didn't respond within `BONOBOT_SESSION_CONNECT_S`.
NO_RESPONSE = "no_response"
# Failed servers are tried again by runs at most this often; health checks try them, too.
RETRY_INTERVAL = timedelta(minutes=1)
FAILED_STATUSES = (Server.Status.ERROR, Server.Status.NEEDS_REAUTH)


@dataclass(frozen=True)
class ServerChange:
    """A server that was connected or disconnected since the last turn."""

    code: str
    server_id: UUID
    text: str

    def to_payload(self) -> dict[str, str]:
        """Return the payload of a notice."""
        return {"code": self.code, "text": self.text}


def list_connected_servers(snapshot: CallSnapshot) -> dict[str, str]:
    """Return the agent's servers that are enabled, both for the agent and globally."""
    return {
        str(server.id): make_visible(server.name, 120)
        for server in snapshot.servers.values()
        if server.enabled
        and (scope := snapshot.effective_policy.scopes.get(server.id))
        and scope.enabled
    }


def compare_servers(previous: ServerNames | None, current: ServerNames) -> list[ServerChange]:
    """Return the connected and disconnected servers; empty before the first turn."""
    if previous is None:
        return []
    disconnected = [
        ServerChange(
            DISCONNECTED,
            UUID(server_id),
            format_message(
                "The server {name} was disconnected. Its tools are no longer available.", name=name
            ),
        )
        for server_id, name in sorted(previous.items(), key=lambda item: item[1])
        if server_id not in current
    ]
    connected = [
        ServerChange(
            CONNECTED,
            UUID(server_id),
            format_message("The server {name} was connected. Its tools are available.", name=name),
        )
        for server_id, name in sorted(current.items(), key=lambda item: item[1])
        if server_id not in previous
    ]
    return [*disconnected, *connected]


@dataclass(frozen=True)
class UnavailableServer:
    """A server that is unavailable to a run: `reason` is `NO_RESPONSE`, a code, or a phrase."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


@dataclass(frozen=True)
class ContactPlan:
    """The servers to contact when a run starts: to connect, and to refresh."""

    to_connect: tuple[ServerFacts, ...] = ()
    to_refresh: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class ServerState:
    """What is known about the agent's servers before or after they were contacted."""

    unavailable_servers: tuple[UnavailableServer, ...]
    # Why the agent has no tools; None if it has some.
    no_tools_reason: NoToolsReason | None
    contact_plan: ContactPlan
    opens_mcp_sessions: bool


def load_server_state(
    agent: Agent, failures: Mapping[UUID, str] = MappingProxyType({})
) -> ServerState:
    """Load the state of the agent's servers; `failures` are reasons known from this run."""
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    callable_tools = snapshot.list_callable_tools()
    server_ids = [UUID(server_id) for server_id in list_connected_servers(snapshot)]
    servers = _load_servers(server_ids) if server_ids else []
    in_use = {tool.facts.server_id for tool in callable_tools}
    endpoints = [snapshot.servers[server.pk].endpoint for server in servers]
    return ServerState(
        unavailable_servers=tuple(_list_unavailable_servers(servers, failures)),
        no_tools_reason=None if callable_tools else find_no_tools_reason(snapshot),
        contact_plan=ContactPlan(
            to_connect=tuple(
                snapshot.servers[server.pk]
                for server in servers
                if server.pk in in_use and _needs_connection(server)
            ),
            to_refresh=tuple(server.pk for server in servers if _needs_refresh(server)),
        ),
        opens_mcp_sessions=any(
            endpoint.transport == "http" and (endpoint.era != "modern" or endpoint.allowed_requests)
            for endpoint in endpoints
        ),
    )


def _load_servers(server_ids: Sequence[UUID]) -> list[Server]:
    ids = {f"id_{index}": server_id for index, server_id in enumerate(server_ids)}
    return _prepare_server_query(len(ids)).fetch(**ids)


@lru_cache(maxsize=32)
def _prepare_server_query(count: int) -> PreparedQuery:
    """Return the query for a number of servers."""
    ids: Any = [QueryParameter(f"id_{index}", output_field=UUIDField()) for index in range(count)]
    servers = Server.objects.select_related("change_subscription").order_by("name")
    return PreparedQuery(lambda: servers.filter(pk__in=ids))


def _needs_connection(server: Server) -> bool:
    """Return whether calls need a connection that takes a handshake."""
    return (
        server.transport_type == Server.Transport.HTTP
        and server.era == "handshake"
        and server.status not in FAILED_STATUSES
    )


def _needs_refresh(server: Server) -> bool:
    """Return whether the server has to be discovered, which also shows if it works again."""
    if server.status in FAILED_STATUSES:
        is_due = server.checked_at is None or timezone.now() - server.checked_at > RETRY_INTERVAL
        return is_due and server.status == Server.Status.ERROR
    return is_catalog_expired(server)


def _list_unavailable_servers(
    servers: Iterable[Server], failures: Mapping[UUID, str]
) -> Iterator[UnavailableServer]:
    """Yield the unavailable servers, with the reason."""
    for server in servers:
        is_known = server.discovered_at is not None
        if server.status in FAILED_STATUSES:
            yield UnavailableServer(server.name, server.status_code or "not discovered yet")
        elif server.pk in failures or not is_known:
            yield UnavailableServer(server.name, failures.get(server.pk, "not discovered yet"))


class RunConnections:
    """The connections of one run to its agent's servers."""

    def __init__(self, lease: SessionLease) -> None:
        self._lease = lease
        self._holder = build_holder_key(lease)
        self._owner = ""
        self._session: Session | None = None
        self._tasks: list[tuple[UUID, asyncio.Task[None]]] = []
        self._failures: dict[UUID, str] = {}

    async def open(self, context: "RunContext") -> "RunContext":
        """Connect and refresh for `BONOBOT_SESSION_CONNECT_S` seconds at most.

        Returns the context with the servers that are unavailable now.
        """
        if context.opens_mcp_sessions:
            self._session = context.session
            self._owner = await get_runtime().run_orm(find_connection_owner, context.session)
        if self._owner:
            set_connection_owner(self._holder, self._owner)
        plan, limit_s = context.contact_plan, settings.BONOBOT_SESSION_CONNECT_S
        for server in plan.to_connect:
            self._start(server.id, self._connect(server, context))
        for server_id in plan.to_refresh:
            settled = get_refresher().request_refresh(server_id, noticed=False, actor=SESSION_START)
            self._start(server_id, _wait(settled))
        if not self._tasks:
            return context
        await asyncio.wait([task for _server_id, task in self._tasks], timeout=limit_s)
        for server_id in {server_id for server_id, task in self._tasks if not task.done()}:
            self._failures[server_id] = NO_RESPONSE
            if server_id not in plan.to_refresh:
                # It records the outcome, so that the next runs need not wait.
                get_refresher().request_refresh(server_id, noticed=False, actor=SESSION_START)
        if not (plan.to_refresh or self._failures):
            return context
        return await get_runtime().run_orm(_reload_context, context, self._failures)

    async def close(self, *, keep_sessions: bool) -> None:
        """Close the connections; `keep_sessions` keeps MCP sessions for the next run."""
        for _server_id, task in self._tasks:
            task.cancel()
        keep_sessions = keep_sessions and await self._has_same_owner()
        await release_connections(self._holder, keep_sessions=keep_sessions)

    async def _has_same_owner(self) -> bool:
        """Return whether the owner is known, and no one else wrote to the session meanwhile."""
        if self._session is None or not self._owner:
            return False
        try:
            owner = await get_runtime().run_orm(find_connection_owner, self._session)
        except DatabaseFault:
            return False
        return owner == self._owner

    def _start(self, server_id: UUID, work: Coroutine[Any, Any, None]) -> None:
        name = f"connect {server_id}"
        self._tasks.append((server_id, get_runtime().create_task(work, name=name)))

    async def _connect(self, server: ServerFacts, context: "RunContext") -> None:
        try:
            await connect_server(
                server, context.principal, self._holder, context.host, self._lease.session_id
            )
        except Problem as problem:
            logger.warning(
                "session %s: server %s: %s", self._lease.session_id, server.name, problem
            )
            self._failures[server.id] = problem.code


_MESSAGE_OF_OTHERS = PreparedQuery(
    lambda: (
        Inbox.objects.filter(
            session=QueryParameter("session", output_field=UUIDField()), kind=Inbox.Kind.MESSAGE
        )
        .exclude(
            actor_kind=QueryParameter("actor_kind", output_field=CharField()),
            actor_id=QueryParameter("actor_id", output_field=CharField()),
        )
        .values_list("pk")[:1]
    )
)


def find_connection_owner(session: Session) -> str:
    """Return the agent and the person or token whose MCP sessions this session may reuse.

    Empty if someone else wrote to the session: their data must not reach others by a server.
    """
    starter = {"actor_kind": session.started_by_kind, "actor_id": session.started_by_id}
    if _MESSAGE_OF_OTHERS.fetch(session=session.pk, **starter):
        return ""
    parts = (session.organization_id, session.agent_id, *starter.values(), session.token_id)
    return ":".join(map(str, parts))


def _reload_context(context: "RunContext", failures: Mapping[UUID, str]) -> "RunContext":
    state = load_server_state(context.agent, failures)
    return replace(
        context,
        unavailable_servers=state.unavailable_servers,
        no_tools_reason=state.no_tools_reason,
    )


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
