"""Open and release the connections of a holder to servers, outside of calls."""

from uuid import UUID

from agents.calls.definitions import ServerFacts
from agents.calls.settle_call import record_server_trouble
from agents.calls.user_endpoints import resolve_user_endpoint
from bonobot.accounts.principals import Principal
from bonobot.core.problems import Problem
from mcp_servers.client.host import Host
from mcp_servers.client.pool import get_connection_pool


def set_connection_owner(holder: str, owner: str) -> None:
    """Let a holder reuse idle MCP sessions of its owner: an agent with one principal."""
    get_connection_pool().set_owner(holder, owner)


async def connect_server(
    server: ServerFacts, principal: Principal, holder: str, host: Host, session_id: UUID | None
) -> None:
    """Perform the handshake with a server; raises a `Problem` after recording it."""
    try:
        endpoint = await resolve_user_endpoint(server.endpoint, principal, session_id)
        await get_connection_pool().perform_handshake(endpoint, holder=holder, host=host)
    except Problem as problem:
        await record_server_trouble(server.id, problem)
        raise


async def release_connections(holder: str, *, keep_sessions: bool = False) -> None:
    """Close all connections of a holder: child processes and MCP sessions.

    `keep_sessions` keeps MCP sessions over HTTP for the holder's owner, if it has one.
    """
    await get_connection_pool().release(holder, keep_sessions=keep_sessions)


async def release_server_connections(holder: str, server_id: UUID) -> None:
    """Close a holder's connections to one server."""
    await get_connection_pool().release(holder, server_id)
