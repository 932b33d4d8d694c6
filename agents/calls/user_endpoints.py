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
    person = await get_runtime().orm(find_person, principal, session_id)
    return build_person_endpoint(endpoint, person)


def find_person(principal: Principal, session_id: UUID | None) -> UUID | None:
    """Return the id of the calling person, or of the only person who wrote to the session.

    For an OAuth client, that is the person who authorized it. Other tokens and CLI commands have
    no person. Neither has a session with several writers, who could use each other's sign-in, nor
    one whose starter left the organization.
    """
    if principal.kind == "user":
        return UUID(principal.id)
    if principal.giver is not None:
        return principal.giver
    if principal.kind != "session" or session_id is None or str(session_id) != principal.id:
        return None
    session = Session.objects.filter(
        pk=session_id, organization_id=principal.organization_id, started_by_kind="user"
    )
    started = session.values_list("started_by_id", flat=True).first()
    if started is None:
        return None
    spoken = Inbox.objects.filter(session=session_id, kind=Inbox.Kind.MESSAGE)
    if spoken.exclude(actor_kind="user", actor_id=started).exists():
        return None
    belongs = Q(memberships__organization=principal.organization_id) | Q(is_superuser=True)
    here = User.objects.filter(belongs, pk=started, is_active=True).exists()
    return UUID(started) if here else None
