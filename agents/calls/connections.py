"""Connections to servers: whose sign-in a call uses, and how a holder opens and releases them."""

from uuid import UUID

from django.db.models import Q

from agents.calls.definitions import ServerFacts
from agents.calls.settle_call import record_server_trouble
from agents.models import Inbox, Session
from bonobot.accounts.models.organizations import User
from bonobot.accounts.principals import Principal
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.client.answer_server_requests import Host
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.oauth_client.access_tokens import build_person_endpoint, is_per_person


async def resolve_user_endpoint(
    endpoint: ServerEndpoint, principal: Principal, session_id: UUID | None
) -> ServerEndpoint:
    """Return the endpoint with the calling person's sign-in; other endpoints unchanged.

    Raises `UpstreamError` (`needs_reauth`) if a person is required but none is calling.
    """
    if not is_per_person(endpoint):
        return endpoint
    user_id = await get_runtime().run_orm(find_user_id, principal, session_id)
    return build_person_endpoint(endpoint, user_id)


def find_user_id(principal: Principal, session_id: UUID | None) -> UUID | None:
    """Return the id of the calling person, or of the only person who wrote to the session.

    For an OAuth client, that is the person who authorized it. Other tokens and CLI commands have
    no person. Neither has a session with several writers, who could use each other's sign-in, nor
    one whose starter left the organization.
    """
    if principal.kind == "user":
        return UUID(principal.id)
    if principal.granted_by_id is not None:
        return principal.granted_by_id
    if principal.kind != "session" or session_id is None or str(session_id) != principal.id:
        return None
    session = Session.objects.filter(
        pk=session_id, organization_id=principal.organization_id, started_by_kind="user"
    )
    starter_id = session.values_list("started_by_id", flat=True).first()
    if starter_id is None:
        return None
    messages = Inbox.objects.filter(session=session_id, kind=Inbox.Kind.MESSAGE)
    if messages.exclude(actor_kind="user", actor_id=starter_id).exists():
        return None
    is_member = Q(memberships__organization=principal.organization_id) | Q(is_superuser=True)
    is_active_member = User.objects.filter(is_member, pk=starter_id, is_active=True).exists()
    return UUID(starter_id) if is_active_member else None


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
