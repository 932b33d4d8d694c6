"""Consents: what a user can grant a client, and existing grants.

Clients register with the installation; an organization sees those that a member authorized.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet
from oauth2_provider.models import Application

from bonobot.accounts.agent_directory import get_agent_directory
from bonobot.accounts.models import Organization, Token, User
from bonobot.accounts.principals import Principal, build_user_principal
from bonobot.accounts.roles import Action, Role, TokenScope, list_roles_within, may
from bonobot.accounts.tokens import services as tokens
from bonobot.accounts.tokens.services import list_user_grants, revoke
from bonobot.core.problems import InvalidInput, NotFound, Problem
from bonobot.ledger.audit.admin_changes import record_change
from bonobot.oauth_server.authorization_requests import AuthorizationRequest
from bonobot.oauth_server.protected_resources import ResourceAddress, find_resource_target


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
    let_in: tuple[ClientGrant, ...]

    @property
    def name(self) -> str:
        """The client's name for itself; untrusted text."""
        return self.let_in[0].grant.client or self.client_id

    @property
    def last_used_at(self) -> datetime | None:
        """When one of its grants was last used."""
        used = [one.grant.last_used_at for one in self.let_in if one.grant.last_used_at]
        return max(used, default=None)


def list_own_grants(user: User, reached: QuerySet[Organization]) -> list[ClientGrant]:
    """Return a user's active grants in these organizations."""
    return _add_agent_names(_list_user_grants(user, reached))


def end_own(user: User, reached: QuerySet[Organization], grant_id: object) -> Token:
    """Revoke a user's own grant and return it; raises `NotFound` if there is no active one."""
    found = next(
        (one for one in _list_user_grants(user, reached) if str(one.pk) == str(grant_id)), None
    )
    if found is None:
        raise NotFound(
            "There is nothing like that that you let in.", remedy="It may have ended meanwhile."
        )
    revoke(build_user_principal(user, found.organization), found)
    return found


def list_authorized_clients(principal: Principal) -> list[AuthorizedClient]:
    """Return the clients that members of the organization authorized, newest first (3 queries).

    Raises `Forbidden` without the permission to revoke them.
    """
    principal.require(Action.MANAGE_TOKENS)
    by_program: dict[str, list[ClientGrant]] = {}
    for one in _add_agent_names(_list_active_grants(principal)):
        by_program.setdefault(one.grant.client_id, []).append(one)
    since = dict(
        Application.objects.filter(client_id__in=by_program).values_list("client_id", "created")
    )
    return [
        AuthorizedClient(client_id, since.get(client_id), tuple(let_in))
        for client_id, let_in in by_program.items()
    ]


def remove(principal: Principal, client_id: str) -> int:
    """Revoke all grants of a client in the organization; return how many.

    Deletes the client if no grants in other organizations remain. Raises `Forbidden`, and
    `NotFound` if the client has no grants here.
    """
    principal.require(Action.MANAGE_TOKENS)
    mine = [one for one in _list_active_grants(principal) if one.client_id == client_id]
    if not mine:
        raise NotFound("Nobody here lets this program in.", remedy="It may have ended meanwhile.")
    with record_change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action="program_removed",
        resource_type="program",
        resource_id=client_id,
        resource_name=mine[0].client,
        details={"grants": len(mine)},
    ):
        for grant in mine:
            revoke(principal, grant)
        if not Token.objects.living().filter(client_id=client_id).exists():
            by_itself = Application.objects.filter(client_id=client_id)
            by_itself.exclude(registration_source=Application.RegistrationSource.MANUAL).delete()
    return len(mine)


def _list_active_grants(principal: Principal) -> list[Token]:
    rows = Token.objects.living().filter(organization_id=principal.organization_id)
    given = rows.filter(user__isnull=False).exclude(digest="")
    return list(given.select_related("user", "organization").order_by("-created_at"))


def _list_user_grants(user: User, reached: QuerySet[Organization]) -> list[Token]:
    here = set(reached.values_list("pk", flat=True))
    return [one for one in list_user_grants(user.pk) if one.organization_id in here]


def _add_agent_names(grants: Sequence[Token]) -> list[ClientGrant]:
    wanted = [pk for one in grants for pk in one.agent_ids]
    names = get_agent_directory().load_names(wanted)
    return [
        ClientGrant(one, tuple(sorted(names.get(str(pk), str(pk)) for pk in one.agent_ids)))
        for one in grants
    ]


MOST_ORGANIZATIONS = 50
MOST_AGENTS = 100
# The scope that is preselected for a kind of resource.
USUAL = {"organization": TokenScope.AGENTS, "agent": TokenScope.TOOLS, "server": TokenScope.TOOLS}
# A role is offered only if it allows one of these actions on the kind of resource.
USES: dict[str, tuple[Action, ...]] = {
    "organization": (Action.RUN_AGENTS, Action.VIEW),
    "agent": (Action.USE_TOOLS,),
    "server": (Action.CALL_TOOLS,),
}


@dataclass(frozen=True, slots=True)
class ConsentOption:
    """What a user can grant in one organization: one of `roles`, lowest first, and agents."""

    organization: Organization
    place: str
    roles: tuple[Role, ...]
    agents: tuple[tuple[str, str], ...] = ()
    fixed: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsentChoice:
    """The user's choice."""

    role: str
    scopes: Sequence[str]
    agents: Sequence[str]


def list_consent_options(
    user: User, reached: QuerySet[Organization], address: ResourceAddress
) -> list[ConsentOption]:
    """Return what a user can grant for a resource; empty without access to it.

    `organizations` are those that the session can access.
    """
    theirs = reached.filter(halted_at=None)[:MOST_ORGANIZATIONS]
    found = (_build_consent_option(user, one, address) for one in theirs)
    return [one for one in found if one is not None]


def get_default_scopes(asked: AuthorizationRequest) -> tuple[str, ...]:
    """Return the preselected scopes, without managing if possible."""
    plain = tuple(scope for scope in asked.scopes if scope != TokenScope.MANAGE)
    fitting = tuple(scope for scope in plain if scope == USUAL[asked.address.kind])
    return fitting or plain or asked.scopes


def grant_consent(
    user: User, asked: AuthorizationRequest, offer: ConsentOption, choice: ConsentChoice
) -> Token:
    """Create the grant that the user chose; raises `InvalidInput` and `Forbidden`."""
    if choice.role not in offer.roles:
        raise InvalidInput("Choose one of the roles.", field="role")
    if not choice.scopes or not set(choice.scopes) <= set(asked.scopes):
        raise InvalidInput("Choose what the program may do.", field="scopes")
    known = {pk for pk, _name in offer.agents}
    if not set(choice.agents) <= known:
        raise InvalidInput("Choose among the agents.", field="agents")
    agents = offer.fixed or tuple(map(UUID, choice.agents))
    if not agents and choice.role == Role.MEMBER:
        raise InvalidInput(
            "A member reaches the agents that are given to it: choose one.", field="agents"
        )
    return tokens.create_grant(
        user,
        offer.organization,
        role=Role(choice.role),
        resource=asked.resource,
        client_id=asked.program.client_id,
        client=asked.name,
        scopes=choice.scopes,
        agent_ids=agents,
    )


def _build_consent_option(
    user: User, organization: Organization, address: ResourceAddress
) -> ConsentOption | None:
    try:
        principal = build_user_principal(user, organization)
        place = find_resource_target(address, principal)
    except Problem:
        return None
    uses = USES[address.kind]
    roles = tuple(
        role
        for role in list_roles_within(principal.role)
        if any(may(role, action) for action in uses)
    )
    # Roles without view permission come first.
    roles = tuple(sorted(roles, key=lambda role: may(role, Action.VIEW)))
    directory = get_agent_directory()
    if address.kind == "agent":
        reached = directory.is_enabled_for_user(organization.pk, user.pk, place.id)
        return (
            ConsentOption(organization, place.name, roles, fixed=(place.id,)) if reached else None
        )
    if not roles:
        return None
    if address.kind == "server":
        return ConsentOption(organization, place.name, roles)
    listed = directory.list_enabled_choices_of_user(organization.pk, user.pk, most=MOST_AGENTS)
    return ConsentOption(organization, place.name, roles, tuple(listed))
