"""Endpoints of servers that each person signs in to individually."""

from uuid import UUID

from django.db.models import Q

from agents.models import Inbox, Session
from bonobot.accounts.models.organizations import User
from bonobot.accounts.principals import Principal
from bonobot.core.runtime import get_runtime
from mcp_servers.client.endpoint import ServerEndpoint
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
