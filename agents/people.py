"""The person behind a call, for servers that each person signs in to for themselves."""

from uuid import UUID

from agents.models import Session
from bonobot.lib.runtime import runtime
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
    """Return who asks, or who started the session that asks; None for tokens and commands."""
    if principal.kind == "user":
        return UUID(principal.id)
    if principal.kind != "session" or session_id is None:
        return None
    started = Session.objects.filter(
        pk=session_id, organization_id=principal.organization_id, started_by_kind="user"
    )
    found = started.values_list("started_by_id", flat=True).first()
    return UUID(found) if found else None
