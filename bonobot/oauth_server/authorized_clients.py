"""Authorized clients: the grants of users and organizations, and their revocation.

Clients register with the installation; an organization sees those that a member authorized.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet
from oauth2_provider.models import Application

from bonobot.accounts.extension_points import agent_directory
from bonobot.accounts.models import Organization, Token, User
from bonobot.accounts.principals import Principal, build_user_principal
from bonobot.accounts.roles import Action
from bonobot.accounts.tokens.oauth_grants import list_user_grants
from bonobot.accounts.tokens.services import revoke_token
from bonobot.core.problems import NotFound
from bonobot.ledger.audit.admin_changes import record_change


@dataclass(frozen=True, slots=True)
class ClientGrant:
    """A grant with the names of its agents; empty means all that its role can access."""

    grant: Token
    agents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AuthorizedClient:
    """A client that members of an organization authorized, and when it was registered."""

    client_id: str
    registered_at: datetime | None
    grants: tuple[ClientGrant, ...]

    @property
    def name(self) -> str:
        """The client's name for itself; untrusted text."""
        return self.grants[0].grant.client or self.client_id

    @property
    def last_used_at(self) -> datetime | None:
        times = [
            client_grant.grant.last_used_at
            for client_grant in self.grants
            if client_grant.grant.last_used_at
        ]
        return max(times, default=None)


def list_own_grants(user: User, organizations: QuerySet[Organization]) -> list[ClientGrant]:
    return _add_agent_names(_list_user_grants(user, organizations))


def revoke_own_grant(user: User, organizations: QuerySet[Organization], grant_id: object) -> Token:
    """Revoke a user's own grant and return it; raises `NotFound` if there is no active one."""
    grant = next(
        (
            candidate
            for candidate in _list_user_grants(user, organizations)
            if str(candidate.pk) == str(grant_id)
        ),
        None,
    )
    if grant is None:
        raise NotFound(
            "You haven't authorized this client.",
            remedy="It may have been revoked in the meantime.",
        )
    revoke_token(build_user_principal(user, grant.organization), grant)
    return grant


def list_authorized_clients(principal: Principal) -> list[AuthorizedClient]:
    """Return the clients that members of the organization authorized, newest first (3 queries).

    Raises `Forbidden` without the permission to revoke them.
    """
    principal.require(Action.MANAGE_TOKENS)
    grants_by_client: dict[str, list[ClientGrant]] = {}
    for client_grant in _add_agent_names(_list_active_grants(principal)):
        grants_by_client.setdefault(client_grant.grant.client_id, []).append(client_grant)
    registered_at = dict(
        Application.objects.filter(client_id__in=grants_by_client).values_list(
            "client_id", "created"
        )
    )
    return [
        AuthorizedClient(client_id, registered_at.get(client_id), tuple(client_grants))
        for client_id, client_grants in grants_by_client.items()
    ]


def revoke_client(principal: Principal, client_id: str) -> int:
    """Revoke all grants of a client in the organization; return how many.

    Deletes the client if no grants in other organizations remain. Raises `Forbidden`, and
    `NotFound` if the client has no grants here.
    """
    principal.require(Action.MANAGE_TOKENS)
    grants = [
        candidate
        for candidate in _list_active_grants(principal)
        if candidate.client_id == client_id
    ]
    if not grants:
        raise NotFound(
            "No one in this organization has authorized this client.",
            remedy="It may have been revoked in the meantime.",
        )
    with record_change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action="oauth_client_deleted",
        resource_type="program",
        resource_id=client_id,
        resource_name=grants[0].client,
        details={"grants": len(grants)},
    ):
        for grant in grants:
            revoke_token(principal, grant)
        if not Token.objects.active().filter(client_id=client_id).exists():
            applications = Application.objects.filter(client_id=client_id)
            applications.exclude(registration_source=Application.RegistrationSource.MANUAL).delete()
    return len(grants)


def _list_active_grants(principal: Principal) -> list[Token]:
    rows = Token.objects.active().filter(organization_id=principal.organization_id)
    user_grants = rows.filter(user__isnull=False).exclude(digest="")
    return list(user_grants.select_related("user", "organization").order_by("-created_at"))


def _list_user_grants(user: User, organizations: QuerySet[Organization]) -> list[Token]:
    organization_ids = set(organizations.values_list("pk", flat=True))
    return [
        grant for grant in list_user_grants(user.pk) if grant.organization_id in organization_ids
    ]


def _add_agent_names(grants: Sequence[Token]) -> list[ClientGrant]:
    agent_ids = [pk for grant in grants for pk in grant.agent_ids]
    names = agent_directory.get().load_names(agent_ids)
    return [
        ClientGrant(grant, tuple(sorted(names.get(str(pk), str(pk)) for pk in grant.agent_ids)))
        for grant in grants
    ]
