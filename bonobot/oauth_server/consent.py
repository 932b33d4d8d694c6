"""What a user can grant a client on the consent page, and the grant of their choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import QuerySet

from bonobot.accounts.extension_points import agent_directory
from bonobot.accounts.models import Organization, Token, User
from bonobot.accounts.principals import build_user_principal
from bonobot.accounts.roles import Action, Role, TokenScope, list_roles_within, may
from bonobot.accounts.tokens import oauth_grants
from bonobot.core.problems import InvalidInput, Problem
from bonobot.oauth_server.authorization_requests import AuthorizationRequest
from bonobot.oauth_server.protected_resources import ResourceAddress, protected_resources

# A role is offered only if it allows one of these actions on the kind of resource.
REQUIRED_ACTIONS: dict[str, tuple[Action, ...]] = {
    "organization": (Action.RUN_AGENTS, Action.VIEW),
    "agent": (Action.USE_TOOLS,),
    "server": (Action.CALL_TOOLS,),
}

MAX_ORGANIZATIONS = 50
MAX_AGENTS = 100
# The scope that is preselected for a kind of resource.
DEFAULT_SCOPES = {
    "organization": TokenScope.AGENTS,
    "agent": TokenScope.TOOLS,
    "server": TokenScope.TOOLS,
}


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
        target = protected_resources.get().find(address, principal)
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
    directory = agent_directory.get()
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
