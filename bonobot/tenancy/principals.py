"""The principal: whoever stands behind a request, in one organization, with one role.

Every surface makes one (session login, token, command line) and passes it down; nothing below a
surface looks at a Django request or at a user.
"""

import getpass
from dataclasses import dataclass
from uuid import UUID

from bonobot.ledger.actors import Actor, ActorKind
from bonobot.lib.problems import Forbidden
from bonobot.tenancy.models import Membership, Organization, Token, User
from bonobot.tenancy.roles import WHO_MAY, Action, Role, may


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Who asks, for which organization, and in which role.

    `agent_id` narrows a token to one agent. `id` is the identity that limits and audit rows use.
    """

    kind: ActorKind
    id: str
    label: str
    organization_id: UUID
    role: Role
    platform_admin: bool = False
    agent_id: UUID | None = None
    token_id: UUID | None = None
    calls_per_minute: int | None = None

    def may(self, action: Action) -> bool:
        """Tell whether this principal may do `action`."""
        return self.platform_admin or may(self.role, action)

    def require(self, action: Action) -> None:
        """Raise `Forbidden` (code `forbidden`) unless this principal may do `action`."""
        if not self.may(action):
            raise Forbidden(
                f"The role `{self.role}` may not do `{action}` here.",
                rule=f"role:{action}",
                remedy=f"Ask someone who may: {WHO_MAY[action]}.",
            )

    @property
    def actor(self) -> Actor:
        """The same identity as the audit writes it."""
        return Actor(kind=self.kind, id=self.id, label=self.label)


def principal_for_user(user: User, organization: Organization) -> Principal:
    """Make the principal of a signed-in person; raises `Forbidden` for a stranger."""
    membership = Membership.objects.filter(user=user, organization=organization).first()
    if membership is None and not user.is_superuser:
        raise Forbidden(
            f"You are not a member of the organization {organization.slug!r}.",
            rule="membership",
            remedy="Ask one of its owners for an invitation.",
        )
    return Principal(
        kind="user",
        id=str(user.pk),
        label=user.get_username(),
        organization_id=organization.pk,
        role=Role(membership.role) if membership else Role.OWNER,
        platform_admin=user.is_superuser,
    )


def principal_for_token(token: Token) -> Principal:
    """Make the principal of a token that was already checked (`tokens.authenticate`)."""
    return Principal(
        kind="token",
        id=str(token.pk),
        label=token.name,
        organization_id=token.organization_id,
        role=Role(token.role),
        agent_id=token.agent_id,
        token_id=token.pk,
        calls_per_minute=token.calls_per_minute,
    )


def cli_principal(organization: Organization) -> Principal:
    """Make the command line's principal: the platform administrator on this host."""
    name = f"cli:{getpass.getuser()}"
    return Principal(
        kind="cli",
        id=name,
        label=name,
        organization_id=organization.pk,
        role=Role.OWNER,
        platform_admin=True,
    )
