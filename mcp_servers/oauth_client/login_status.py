"""Sign-in status of people and organizations at servers."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.db.models import Q

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth_client.types import PER_CHOICES

State = Literal["signed_in", "needed", "personal"]
LOGIN_STATES: tuple[State, ...] = ("signed_in", "needed", "personal")
INTERACTIVE = Q(auth_type=Server.Auth.OAUTH2, auth_config__grant="authorization_code")


@dataclass(frozen=True)
class LoginStatus:
    """The sign-in status of a principal at a server with sign-in by people.

    `personal`: each person signs in separately, and the principal is no person. `people` counts
    those signed in. `url` is where to sign in with a browser.
    """

    per: str
    state: State
    url: str
    people: int
    issuer: str = ""
    scope: str = ""
    expires_at: datetime | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "per": self.per,
            "state": self.state,
            "url": self.url,
            "people": self.people,
            "issuer": self.issuer,
            "scope": self.scope,
            "expires_at": self.expires_at,
        }


def load_login_statuses(principal: Principal, servers: Iterable[Server]) -> dict[UUID, LoginStatus]:
    """Return a principal's status at the servers with sign-in by people (one query)."""
    interactive_servers = [server for server in servers if server.interactive]
    if not interactive_servers:
        return {}
    from mcp_servers.oauth_client.access_tokens import can_authenticate

    grants: dict[UUID, list[OAuthGrant]] = {}
    for grant in OAuthGrant.objects.filter(
        server__in=[server.pk for server in interactive_servers]
    ):
        if can_authenticate(grant):
            grants.setdefault(grant.server_id, []).append(grant)
    return {
        server.pk: _build_login_status(principal, server, grants.get(server.pk, []))
        for server in interactive_servers
    }


def _build_login_status(
    principal: Principal, server: Server, grants: list[OAuthGrant]
) -> LoginStatus:
    from mcp_servers.oauth_client.access_tokens import build_login_url

    person_id = principal.id if principal.kind == "user" else None
    subject = person_id if server.by_person else str(server.organization_id)
    own_grant = next((grant for grant in grants if str(grant.subject) == subject), None)
    state: State = "signed_in" if own_grant else "needed" if subject else "personal"
    return LoginStatus(
        per=PER_CHOICES[1] if server.by_person else PER_CHOICES[0],
        state=state,
        url=build_login_url(server.pk),
        people=len(grants) if server.by_person else 0,
        issuer=own_grant.issuer if own_grant else "",
        scope=own_grant.scope if own_grant else "",
        expires_at=own_grant.expires_at if own_grant else None,
    )


def list_pending_logins(principal: Principal, limit: int) -> list[tuple[Server, LoginStatus]]:
    """Return the servers that a principal can and still has to sign in to."""
    servers = Server.objects.for_organization(principal.organization_id).enabled()
    interactive_servers = list(servers.filter(INTERACTIVE).order_by("name", "pk"))
    own_servers = [server for server in interactive_servers if can_sign_in(principal, server)]
    statuses = load_login_statuses(principal, own_servers)
    pending = [
        (own_server, statuses[own_server.pk])
        for own_server in own_servers
        if statuses[own_server.pk].state == "needed"
    ]
    return pending[:limit]


def can_sign_in(principal: Principal, server: Server) -> bool:
    if not server.by_person:
        return principal.may(Action.MANAGE_SERVERS)
    uses_tools = principal.may(Action.CALL_TOOLS) or principal.may(Action.USE_TOOLS)
    return principal.kind == "user" and uses_tools
