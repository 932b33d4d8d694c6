"""Programs that were let in: those of one person everywhere, and those of an organization.

Programs register with the installation; an organization knows those that one of its people let in.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet
from oauth2_provider.models import Application

from agents.models import Agent
from bonobot.ledger.changes import change
from bonobot.lib.problems import NotFound
from bonobot.tenancy.grants import given_by
from bonobot.tenancy.models import Organization, Token, User
from bonobot.tenancy.principals import Principal, principal_for_user
from bonobot.tenancy.roles import Action
from bonobot.tenancy.tokens import revoke


@dataclass(frozen=True, slots=True)
class LetIn:
    """A grant, with the names of the agents that it is for; none: all that its role reaches."""

    grant: Token
    agents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A program that people of an organization let in, and since when it is registered here."""

    client_id: str
    registered_at: datetime | None
    let_in: tuple[LetIn, ...]

    @property
    def name(self) -> str:
        """What it calls itself: a stranger's word."""
        return self.let_in[0].grant.client or self.client_id

    @property
    def last_used_at(self) -> datetime | None:
        """When one of its grants was used last."""
        used = [one.grant.last_used_at for one in self.let_in if one.grant.last_used_at]
        return max(used, default=None)


def let_in_by(user: User, reached: QuerySet[Organization]) -> list[LetIn]:
    """Return what a person lets programs do by now, in the organizations that are reached."""
    return _named(_given(user, reached))


def end_own(user: User, reached: QuerySet[Organization], grant_id: object) -> Token:
    """End what a person gave to a program; raises `NotFound` for what isn't theirs, or over."""
    found = next((one for one in _given(user, reached) if str(one.pk) == str(grant_id)), None)
    if found is None:
        raise NotFound(
            "There is nothing like that that you let in.", remedy="It may have ended meanwhile."
        )
    revoke(principal_for_user(user, found.organization), found)
    return found


def programs(principal: Principal) -> list[Program]:
    """Return the programs that people of the organization let in, the latest first (3 queries).

    Raises `Forbidden` for those who may not end them.
    """
    principal.require(Action.MANAGE_TOKENS)
    by_program: dict[str, list[LetIn]] = {}
    for one in _named(_living(principal)):
        by_program.setdefault(one.grant.client_id, []).append(one)
    since = dict(
        Application.objects.filter(client_id__in=by_program).values_list("client_id", "created")
    )
    return [
        Program(client_id, since.get(client_id), tuple(let_in))
        for client_id, let_in in by_program.items()
    ]


def remove(principal: Principal, client_id: str) -> int:
    """End all that people of the organization gave to a program; return how much that was.

    A program that nobody else lets in, in no organization, is no longer registered.

    Raises `Forbidden`, and `NotFound` for one that nobody here let in.
    """
    principal.require(Action.MANAGE_TOKENS)
    mine = [one for one in _living(principal) if one.client_id == client_id]
    if not mine:
        raise NotFound("Nobody here lets this program in.", remedy="It may have ended meanwhile.")
    with change(
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


def _living(principal: Principal) -> list[Token]:
    rows = Token.objects.living().filter(organization_id=principal.organization_id)
    given = rows.filter(user__isnull=False).exclude(digest="")
    return list(given.select_related("user", "organization").order_by("-created_at"))


def _given(user: User, reached: QuerySet[Organization]) -> list[Token]:
    here = set(reached.values_list("pk", flat=True))
    return [one for one in given_by(user.pk) if one.organization_id in here]


def _named(grants: Sequence[Token]) -> list[LetIn]:
    names = _agents(pk for one in grants for pk in one.agent_ids)
    return [
        LetIn(one, tuple(sorted(names.get(str(pk), str(pk)) for pk in one.agent_ids)))
        for one in grants
    ]


def _agents(wanted: Iterable[UUID | str]) -> dict[str, str]:
    rows = Agent.objects.filter(pk__in={str(pk) for pk in wanted})
    return {str(pk): name for pk, name in rows.values_list("pk", "name")}
