"""Principal: who acts, in which organization, with which role.

Every surface (session, token, command line) builds one and passes it down; services never look at
a Django request or user.
"""

import getpass
from dataclasses import dataclass
from uuid import UUID

from django.db.models import UUIDField

from bonobot.accounts.models import Membership, Organization, Token, User
from bonobot.accounts.roles import (
    Action,
    Role,
    TokenScope,
    build_permission_error,
    is_action_in_scope,
    list_scopes_with_action,
    may,
)
from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden
from bonobot.ledger.types import Actor, ActorKind


class InsufficientScope(Forbidden):
    """The role is sufficient, but the token needs one of `scopes` (RFC 6750)."""

    code = "insufficient_scope"

    def __init__(self, *scopes: TokenScope) -> None:
        self.scopes = scopes
        super().__init__(
            format_message(
                "The token lacks a required scope: {scopes}.", scopes=" or ".join(scopes)
            ),
            rule=f"scope:{scopes[0]}",
            remedy="Use a token that has the scope, or have it added to this token.",
            extra={"scopes": list(scopes)},
        )


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Who makes a request, for which organization, and in which role.

    `agent_ids` limits a token to these agents, `scopes` to a part of its role; an empty set and
    None mean no limit. Rate limits and audit entries identify the principal by `id`. For a grant,
    `granted_by_id` is the person who authorized the client.
    """

    kind: ActorKind
    id: str
    label: str
    organization_id: UUID
    role: Role
    platform_admin: bool = False
    agent_ids: frozenset[UUID] = frozenset()
    scopes: frozenset[TokenScope] | None = None
    token_id: UUID | None = None
    granted_by_id: UUID | None = None
    calls_per_minute: int | None = None

    def may(self, action: Action) -> bool:
        """Return whether this principal may do `action`."""
        return is_action_in_scope(self.scopes, action) and self.has_role_for(action)

    def has_role_for(self, action: Action) -> bool:
        """Return whether the role may do `action`, regardless of scopes."""
        return self.platform_admin or may(self.role, action)

    def can_access_agent(self, agent_id: UUID | None) -> bool:
        """Return whether this principal isn't limited to other agents."""
        return not self.agent_ids or agent_id in self.agent_ids

    def require(self, action: Action) -> None:
        """Raise `Forbidden`, or `InsufficientScope`, unless this principal may do `action`."""
        if not self.has_role_for(action):
            raise build_permission_error(self.role, action)
        if self.scopes is not None and not is_action_in_scope(self.scopes, action):
            raise InsufficientScope(*list_scopes_with_action(action))

    def require_scope(self, scope: TokenScope) -> None:
        """Raise `InsufficientScope` unless this principal has `scope`."""
        if self.scopes is not None and self.scopes.isdisjoint({scope, TokenScope.PLATFORM}):
            raise InsufficientScope(scope)

    @property
    def actor(self) -> Actor:
        """This principal as the actor of audit entries."""
        return Actor(kind=self.kind, id=self.id, label=self.label)


_MEMBERSHIP = PreparedQuery(
    lambda: Membership.objects.filter(
        user=QueryParameter("user", output_field=User._meta.pk),
        organization=QueryParameter("organization", output_field=UUIDField()),
    ).order_by()[:1]
)


def build_user_principal(user: User, organization: Organization) -> Principal:
    """Return the principal of a signed-in user; raises `Forbidden` for non-members."""
    membership: Membership | None = _MEMBERSHIP.fetch_first(
        user=user.pk, organization=organization.pk
    )
    if membership is None and not user.is_superuser:
        raise Forbidden(
            format_message(
                "You aren't a member of the organization {organization_slug!r}.",
                organization_slug=organization.slug,
            ),
            rule="membership",
            remedy="Ask an owner of the organization for an invitation.",
        )
    return Principal(
        kind="user",
        id=str(user.pk),
        label=user.get_username(),
        organization_id=organization.pk,
        role=Role(membership.role) if membership else Role.OWNER,
        platform_admin=user.is_superuser,
    )


def build_token_principal(token: Token, *, with_platform: bool = True) -> Principal:
    """Return the principal of a token that is already authenticated.

    `with_platform` False ignores the scope `platform`, which is for REST only.
    """
    # Unknown scopes are dropped; an empty list means no limit.
    scopes = frozenset(TokenScope) & set(token.scopes) if token.scopes else None
    is_platform = scopes is not None and TokenScope.PLATFORM in scopes and token.user_id is None
    if scopes is not None and not (is_platform and with_platform):
        scopes -= {TokenScope.PLATFORM}
    return Principal(
        kind="token",
        id=str(token.pk),
        label=token.name,
        organization_id=token.organization_id,
        role=Role(token.role),
        platform_admin=is_platform and with_platform,
        agent_ids=frozenset(map(UUID, token.agent_ids)),
        scopes=scopes,
        token_id=token.pk,
        granted_by_id=token.user_id,
        calls_per_minute=token.calls_per_minute,
    )


def build_cli_principal(organization: Organization) -> Principal:
    """Return the principal of the command line: a platform administrator."""
    name = f"cli:{getpass.getuser()}"
    return Principal(
        kind="cli",
        id=name,
        label=name,
        organization_id=organization.pk,
        role=Role.OWNER,
        platform_admin=True,
    )


def require_platform_admin(
    principal: Principal,
    detail: str = format_message("Only a platform administrator can do this."),
    remedy: str = format_message("Contact a platform administrator."),
) -> None:
    """Raise `Forbidden` unless the principal is a platform administrator."""
    if not principal.platform_admin:
        raise Forbidden(detail, rule="platform_admin", remedy=remedy)
