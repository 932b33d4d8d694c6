"""Connect the servers of a run when it starts, in parallel and with a short deadline.

Servers of the handshake era are connected, expired catalogs are refreshed, and so are those of
servers that failed. A server that needs longer is refreshed in the background, and the run starts
without it. stdio servers start at the first call, and modern servers need no connection.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import Error as DatabaseFault

from agents.calls.connections import connect_server, release_connections, set_connection_owner
from agents.calls.definitions import ServerFacts
from agents.models import Inbox, Session
from agents.sessions.leases import SessionLease
from agents.sessions.run_context import NO_RESPONSE, RunContext, load_server_state
from agents.sessions.tool_calls import build_holder_key
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.types import Actor
from mcp_servers.refresh_definitions import get_refresher

logger = logging.getLogger(__name__)

SESSION_START = Actor(kind="system", id="session_start", label="session start")


class RunConnections:
    """The connections of one run to its agent's servers."""

    def __init__(self, lease: SessionLease) -> None:
        self._lease = lease
        self._holder = build_holder_key(lease)
        self._owner = ""
        self._session: Session | None = None
        self._tasks: list[tuple[UUID, asyncio.Task[None]]] = []
        self._failures: dict[UUID, str] = {}

    async def open(self, context: RunContext) -> RunContext:
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

    async def _connect(self, server: ServerFacts, context: RunContext) -> None:
        try:
            await connect_server(
                server, context.principal, self._holder, context.host, self._lease.session_id
            )
        except Problem as problem:
            logger.warning(
                "session %s: server %s: %s", self._lease.session_id, server.name, problem
            )
            self._failures[server.id] = problem.code


def find_connection_owner(session: Session) -> str:
    """Return the agent and the person or token whose MCP sessions this session may reuse.

    Empty if someone else wrote to the session: their data must not reach others by a server.
    """
    starter = {"actor_kind": session.started_by_kind, "actor_id": session.started_by_id}
    messages = Inbox.objects.filter(session=session, kind=Inbox.Kind.MESSAGE)
    if messages.exclude(**starter).exists():
        return ""
    parts = (session.organization_id, session.agent_id, *starter.values(), session.token_id)
    return ":".join(map(str, parts))


def _reload_context(context: RunContext, failures: Mapping[UUID, str]) -> RunContext:
    state = load_server_state(context.agent, failures)
    return replace(
        context,
        unavailable_servers=state.unavailable_servers,
        no_tools_reason=state.no_tools_reason,
    )


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
