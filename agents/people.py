"""The person behind a call, for servers that each person signs in to for themselves."""

from uuid import UUID

from django.db.models import Q

from agents.models import Inbox, Session
from bonobot.lib.runtime import runtime
from bonobot.tenancy.models import User
from bonobot.tenancy.principals import Principal
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.oauth.signing import by_person, for_person


async def personal(endpoint: Endpoint, principal: Principal, session_id: UUID | None) -> Endpoint:
    """Return the endpoint as the person who asks reaches it; the same for all others.

    Raises `UpstreamError` (`needs_reauth`) where a person is needed and none asks.
    """
    if not by_person(endpoint):
        return endpoint
    person = await runtime().orm(person_behind, principal, session_id)
    return for_person(endpoint, person)


def person_behind(principal: Principal, session_id: UUID | None) -> UUID | None:
    """Return who asks, or who alone speaks in the session that asks; None for anybody else.

    For a program that a person let in, it is that person. Other tokens and commands are no person,
    and neither is a session in which more than one has spoken: else who may write into somebody's
    session could use their login. Who left the organization has none here.
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
