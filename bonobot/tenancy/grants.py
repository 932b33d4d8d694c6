"""Grants: what a person lets a program do, as a token that the program gets anew each hour.

A grant is a row among the tokens, so that it is listed, bounded, audited and revoked like them, and
so that what a program comes with is checked like any token. It is for one address (RFC 8707), never
for REST, and holds no more than its person may give: who leaves, is switched off or has a lesser
role has ended it (`TokenQuerySet.living`).

The protocol by which a program gets the text is another room's; here is what it stands for.
"""

import secrets
from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from django.utils import timezone

from bonobot.ledger.actors import Actor
from bonobot.ledger.changes import change
from bonobot.lib.problems import Forbidden, Invalid
from bonobot.lib.sayings import say
from bonobot.tenancy import terms
from bonobot.tenancy.models import Organization, Token, User
from bonobot.tenancy.principals import Principal, principal_for_user
from bonobot.tenancy.roles import Role, Scope, within
from bonobot.tenancy.tokens import OF_GRANTS, new_key, newest_pepper, recorded, sealed

# How long a program has to fetch its first token, and how long each is good.
FETCHED_WITHIN = timedelta(seconds=60)
FRESH = timedelta(hours=1)
# A grant that isn't used for so long has ended.
IDLE = timedelta(days=30)
# What may be given to a program: REST is another door.
SCOPES = (Scope.TOOLS, Scope.AGENTS, Scope.MANAGE)


def give(
    user: User,
    organization: Organization,
    *,
    role: Role,
    resource: str,
    client_id: str,
    client: str,
    scopes: Collection[str],
    agent_ids: Collection[UUID] = (),
) -> Token:
    """Let a program in, at one address, as `user`; it has a minute to fetch its token.

    Raises `Forbidden` for a stranger, and for a role that is more than the person's own; `Invalid`
    for scopes that no program gets.
    """
    principal = principal_for_user(user, organization)
    said = terms.checked(
        {"name": f"{client} ({user.get_username()})"[: terms.LONGEST_NAME]}
        | {"client": client[: terms.LONGEST_CLIENT], "scopes": scopes, "agent_ids": agent_ids}
    )
    _check(principal, role, said["scopes"])
    token = Token(
        organization_id=organization.pk,
        key=new_key(),
        pepper_id=newest_pepper(),
        digest="",
        role=role,
        user=user,
        client_id=client_id,
        resource=resource,
        fresh_until=timezone.now(),
        expires_at=timezone.now() + FETCHED_WITHIN,
        **said,
    )
    told = {name: said[name] for name in ("client", "scopes", "agent_ids")}
    about = {"role": role, "resource": resource, "client_id": client_id}
    with recorded(principal, token, "grant_given", told | about):
        token.save()
    return token


def _check(principal: Principal, role: Role, scopes: Collection[str]) -> None:
    if role not in within(principal.role):
        raise Forbidden(
            say("You can't give the role `{role}`: it may do what yours may not.", role=role),
            rule=f"role:{role}",
            remedy=say("Choose among: {within}.", within=", ".join(within(principal.role))),
        )
    if not scopes or not set(SCOPES).issuperset(scopes):
        raise Invalid(
            "A program needs a scope of MCP.",
            field="scopes",
            remedy=say("Choose among: {scopes}.", scopes=", ".join(SCOPES)),
        )


def renew(token: Token, *, first: bool) -> str | None:
    """Return a new text for a living grant; the one before it is worth nothing any more.

    None where it isn't living, or where `first` is wrong: of several that fetch the first text at
    once, one gets it.
    """
    secret = secrets.token_urlsafe(32)
    pepper_id, digest = sealed(secret)
    now = timezone.now()
    mine = Token.objects.filter(pk=token.pk, pk__in=Token.objects.living().values("pk"))
    mine = mine.filter(digest="") if first else mine.exclude(digest="")
    renewed = mine.update(
        pepper_id=pepper_id, digest=digest, fresh_until=now + FRESH, expires_at=now + IDLE
    )
    return f"{OF_GRANTS}_{token.key}_{secret}" if renewed else None


def end(token: Token, *, why: str, actor: Actor | None = None) -> None:
    """End a grant because its program, or the protocol, says so; a second time changes nothing."""
    if token.revoked_at is not None:
        return
    with change(
        organization_id=token.organization_id,
        actor=actor or Actor(kind="token", id=str(token.pk), label=token.name),
        action="grant_ended",
        resource_type="token",
        resource_id=str(token.pk),
        resource_name=token.name,
        details={"why": why},
    ):
        Token.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())


def given_by(user_id: UUID) -> list[Token]:
    """Return what a person lets programs do by now, in all organizations, the latest first."""
    mine = Token.objects.living().filter(user_id=user_id).exclude(digest="")
    return list(mine.select_related("organization").order_by("-created_at"))
