"""Grants of OAuth clients: create, rotate and end them.

A grant is a token row of a user, listed, limited, audited and revoked like other tokens; its access
tokens begin with `bno_`. It is for one address (RFC 8707), never for REST, and allows no more than
its user may do: it ends when the user leaves, is disabled or gets a lesser role
(`TokenQuerySet.active`).

The OAuth protocol itself is in `oauth_server`.
"""

import secrets
from collections.abc import Collection
from datetime import timedelta
from typing import Literal
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from bonobot.accounts.models import Organization, Token, User
from bonobot.accounts.principals import Principal, build_user_principal
from bonobot.accounts.roles import Role, TokenScope, list_roles_within
from bonobot.accounts.tokens import constraints
from bonobot.accounts.tokens.services import record_token_change
from bonobot.accounts.tokens.token_secrets import (
    GRANT_PREFIX,
    generate_token_key,
    get_newest_pepper,
    hash_secret,
)
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, InvalidInput
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.types import Actor

# Scopes that can be granted: those of the gateway, not REST.
GRANT_SCOPES = (TokenScope.TOOLS, TokenScope.AGENTS, TokenScope.MANAGE)


def get_oauth_lifetime(
    kind: Literal["AUTHORIZATION_CODE", "ACCESS_TOKEN", "REFRESH_TOKEN"],
) -> timedelta:
    """Return the lifetime, as `bonobot/settings/oauth_server.py` declares it."""
    return timedelta(seconds=settings.OAUTH2_PROVIDER[f"{kind}_EXPIRE_SECONDS"])


def create_grant(
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
    """Authorize an OAuth client for one address as `user`; it has a minute to fetch its token.

    Raises `Forbidden` for non-members and for a role beyond the user's own, `InvalidInput` for
    scopes that can't be granted.
    """
    principal = build_user_principal(user, organization)
    cleaned = constraints.clean_constraints(
        {"name": f"{client} ({user.get_username()})"[: constraints.MAX_NAME_LENGTH]}
        | {
            "client": client[: constraints.MAX_CLIENT_LENGTH],
            "scopes": scopes,
            "agent_ids": agent_ids,
        }
    )
    _check_grant(principal, role, cleaned["scopes"])
    token = Token(
        organization_id=organization.pk,
        key=generate_token_key(),
        pepper_id=get_newest_pepper(),
        digest="",
        role=role,
        user=user,
        client_id=client_id,
        resource=resource,
        access_expires_at=timezone.now(),
        expires_at=timezone.now() + get_oauth_lifetime("AUTHORIZATION_CODE"),
        **cleaned,
    )
    audited_terms = {name: cleaned[name] for name in ("client", "scopes", "agent_ids")}
    grant_details = {"role": role, "resource": resource, "client_id": client_id}
    with record_token_change(
        principal, token, "client_access_granted", audited_terms | grant_details
    ):
        token.save()
    return token


def _check_grant(principal: Principal, role: Role, scopes: Collection[str]) -> None:
    if role not in list_roles_within(principal.role):
        raise Forbidden(
            format_message(
                "You can't assign the role `{role}` because it has permissions that your "
                "role lacks.",
                role=role,
            ),
            rule=f"role:{role}",
            remedy=format_message(
                "Choose from: {names}.", names=", ".join(list_roles_within(principal.role))
            ),
        )
    if not scopes or not set(GRANT_SCOPES).issuperset(scopes):
        raise InvalidInput(
            "An OAuth client needs an MCP scope.",
            field="scopes",
            remedy=format_message("Choose from: {names}.", names=", ".join(GRANT_SCOPES)),
        )


def rotate_grant(token: Token, *, first: bool) -> str | None:
    """Return a new access token for an active grant and invalidate the previous one.

    Returns None if the grant isn't active or `first` is wrong: of concurrent first fetches, only
    one succeeds.
    """
    secret = secrets.token_urlsafe(32)
    pepper_id, digest = hash_secret(secret)
    now = timezone.now()
    grants = Token.objects.filter(pk=token.pk, pk__in=Token.objects.active().values("pk"))
    grants = grants.filter(digest="") if first else grants.exclude(digest="")
    updated = grants.update(
        pepper_id=pepper_id,
        digest=digest,
        access_expires_at=now + get_oauth_lifetime("ACCESS_TOKEN"),
        expires_at=now + get_oauth_lifetime("REFRESH_TOKEN"),
    )
    return f"{GRANT_PREFIX}_{token.key}_{secret}" if updated else None


def end_grant(token: Token, *, reason: str, user: User | None = None) -> None:
    """End a grant at the request of its client, the protocol, or its user; idempotent."""
    if token.revoked_at is not None:
        return
    actor = Actor(kind="token", id=str(token.pk), label=token.name)
    if user is not None:
        actor = Actor(kind="user", id=str(user.pk), label=user.get_username())
    with record_change(
        **describe_row("token", token),
        actor=actor,
        action="client_access_revoked",
        details={"why": reason},
    ):
        Token.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())


def end_user_grants(user: User, *, reason: str) -> None:
    """End all grants of a user in all organizations, also those without a token yet."""
    for grant in Token.objects.active().filter(user=user):
        end_grant(grant, reason=reason, user=user)


def list_user_grants(user_id: UUID) -> list[Token]:
    """Return a user's active grants in all organizations, newest first."""
    grants = Token.objects.active().filter(user_id=user_id).exclude(digest="")
    return list(grants.select_related("organization").order_by("-created_at"))
