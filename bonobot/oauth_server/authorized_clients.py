"""Authorized clients: what a user can grant a client, and existing grants.

Clients register with the installation; an organization sees those that a member authorized.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet
from oauth2_provider.models import Application

from bonobot.accounts.extension_points import get_agent_directory
from bonobot.accounts.models import Organization, Token, User
from bonobot.accounts.principals import Principal, build_user_principal
from bonobot.accounts.roles import Action, Role, TokenScope, list_roles_within, may
from bonobot.accounts.tokens import oauth_grants
from bonobot.accounts.tokens.oauth_grants import list_user_grants
from bonobot.accounts.tokens.services import revoke_token
from bonobot.core.problems import InvalidInput, NotFound, Problem
from bonobot.ledger.audit.admin_changes import record_change
from bonobot.oauth_server.authorization_requests import AuthorizationRequest
from bonobot.oauth_server.protected_resources import ResourceAddress, find_resource_target

MAX_ORGANIZATIONS = 50
MAX_AGENTS = 100
# The scope that is preselected for a kind of resource.
DEFAULT_SCOPES = {
    "organization": TokenScope.AGENTS,
    "agent": TokenScope.TOOLS,
    "server": TokenScope.TOOLS,
}
# A role is offered only if it allows one of these actions on the kind of resource.
REQUIRED_ACTIONS: dict[str, tuple[Action, ...]] = {
    "organization": (Action.RUN_AGENTS, Action.VIEW),
    "agent": (Action.USE_TOOLS,),
    "server": (Action.CALL_TOOLS,),
}


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
    names = get_agent_directory().load_names(agent_ids)
    return [
        ClientGrant(grant, tuple(sorted(names.get(str(pk), str(pk)) for pk in grant.agent_ids)))
        for grant in grants
    ]


@dataclass(frozen=True, slots=True)
class ConsentOption:
    """What a user can grant in one organization: one of `roles`, lowest first, and agents."""

    organization: Organization
    resource_name: str
    roles: tuple[Role, ...]
    agents: tuple[tuple[str, str], ...] = ()
    fixed_agents: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsentChoice:
    """The user's choice."""

    role: str
    scopes: Sequence[str]
    agents: Sequence[str]


def list_consent_options(
    user: User, organizations: QuerySet[Organization], address: ResourceAddress
) -> list[ConsentOption]:
    """Return what a user can grant for a resource; empty without access to it.

    `organizations` are those that the session can access.
    """
    active_organizations = organizations.filter(halted_at=None)[:MAX_ORGANIZATIONS]
    options = (_build_consent_option(user, item, address) for item in active_organizations)
    return [item for item in options if item is not None]


def get_default_scopes(authorization_request: AuthorizationRequest) -> tuple[str, ...]:
    """Return the preselected scopes, without managing if possible."""
    unprivileged = tuple(
        scope for scope in authorization_request.scopes if scope != TokenScope.MANAGE
    )
    fitting = tuple(
        scope
        for scope in unprivileged
        if scope == DEFAULT_SCOPES[authorization_request.address.kind]
    )
    return fitting or unprivileged or authorization_request.scopes


def grant_consent(
    user: User,
    authorization_request: AuthorizationRequest,
    option: ConsentOption,
    choice: ConsentChoice,
) -> Token:
    """Create the grant that the user chose; raises `InvalidInput` and `Forbidden`."""
    if choice.role not in option.roles:
        raise InvalidInput("Choose one of the roles.", field="role")
    if not choice.scopes or not set(choice.scopes) <= set(authorization_request.scopes):
        raise InvalidInput("Choose what the client can do.", field="scopes")
    offered_agents = {pk for pk, _name in option.agents}
    if not set(choice.agents) <= offered_agents:
        raise InvalidInput("Choose from the listed agents.", field="agents")
    agents = option.fixed_agents or tuple(map(UUID, choice.agents))
    if not agents and choice.role == Role.MEMBER:
        raise InvalidInput(
            "The member role can only use assigned agents. Choose at least one.", field="agents"
        )
    return oauth_grants.create_grant(
        user,
        option.organization,
        role=Role(choice.role),
        resource=authorization_request.resource,
        client_id=authorization_request.client.client_id,
        client=authorization_request.name,
        scopes=choice.scopes,
        agent_ids=agents,
    )


def _build_consent_option(
    user: User, organization: Organization, address: ResourceAddress
) -> ConsentOption | None:
    try:
        principal = build_user_principal(user, organization)
        target = find_resource_target(address, principal)
    except Problem:
        return None
    actions = REQUIRED_ACTIONS[address.kind]
    roles = tuple(
        role
        for role in list_roles_within(principal.role)
        if any(may(role, action) for action in actions)
    )
    # Roles without view permission come first.
    roles = tuple(sorted(roles, key=lambda role: may(role, Action.VIEW)))
    directory = get_agent_directory()
    if address.kind == "agent":
        is_enabled = directory.is_enabled_for_user(organization.pk, user.pk, target.id)
        return (
            ConsentOption(organization, target.name, roles, fixed_agents=(target.id,))
            if is_enabled
            else None
        )
    if not roles:
        return None
    if address.kind == "server":
        return ConsentOption(organization, target.name, roles)
    agents = directory.list_enabled_choices_of_user(organization.pk, user.pk, most=MAX_AGENTS)
    return ConsentOption(organization, target.name, roles, tuple(agents))
